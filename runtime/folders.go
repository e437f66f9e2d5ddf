// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// What a descriptor takes of the kernel's memory is in part charged to no cgroup. Of a folder that is read in part that is much: ext4 keeps
// the names of a block for it, 21 KiB for 330 of two letters (ext4_htree_store_dirent), btrfs a page. 20 processes took 0.9
// GiB from the host in 8 s, charged for 11 MiB; by their limits 128 with 4096 each would have 10 GiB. RLIMIT_NOFILE is each process's, so
// the supervisor looks. What it can't read isn't counted: SECURITY.md says where.
const (
	// mostFolders of a run may be open: 43 MiB of such names.
	mostFolders = 2048
	// mostDescriptors bounds a look, and what takes less: an epoll or a timerfd has 256 bytes that nobody is charged for, a flock 192.
	mostDescriptors = 65536
	// folderLook is the run's processor time between two looks, in which it can take some 180 MB.
	folderLook = time.Second
	// folderRest is how many times as long as the look took the next one waits at the least.
	folderRest = 10
)

// tooManyFolders looks once more when the run has used enough processor time since it looked last.
type tooManyFolders struct {
	seen time.Duration // of processor time
	rest time.Time
}

func (l *tooManyFolders) look(used time.Duration, pids func() ([]int, error)) (string, error) {
	began := time.Now()
	if used-l.seen < folderLook || began.Before(l.rest) {
		return "", nil
	}
	defer func() { l.rest = time.Now().Add(folderRest * time.Since(began)) }()
	l.seen = used
	all, err := pids()
	if err != nil {
		return "", err
	}
	var tables []string
	open := 0
	for _, pid := range all {
		for _, table := range tablesOf(pid) {
			tables = append(tables, table)
			if open += descriptorsIn(table); open > mostDescriptors {
				return fmt.Sprintf("open files: %d and more, at most %d", open, mostDescriptors), nil
			}
		}
	}
	if open <= mostFolders {
		return "", nil
	}
	folders := 0
	for _, table := range tables {
		if folders += foldersIn(table, mostFolders-folders); folders > mostFolders {
			return fmt.Sprintf("open folders: %d and more, at most %d", folders, mostFolders), nil
		}
	}
	return "", nil
}

// tablesOf gives the tables of descriptors of a process: its threads share one, unless they were made without CLONE_FILES. One that ends
// meanwhile has none.
func tablesOf(pid int) []string {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	list, err := os.ReadDir(tasks)
	if err != nil {
		return nil
	}
	var tables []string
	for _, e := range list {
		tid, err := strconv.Atoi(e.Name())
		if err == nil && (tid == pid || !shareTable(pid, tid)) {
			tables = append(tables, tasks+"/"+e.Name()+"/fd")
		}
	}
	return tables
}

// shareTable asks kcmp(2). Where it isn't there or isn't allowed, as under some engines' filters, threads with a table of their own are left
// uncounted, rather than count each thread's for one.
func shareTable(a, b int) bool {
	const files = 2 // KCMP_FILES
	r, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return errno != 0 || r == 0
}

// descriptorsIn counts them; since Linux 6.2 the folder's size says it.
func descriptorsIn(table string) int {
	if info, err := os.Stat(table); err == nil && info.Size() > 0 {
		return int(info.Size())
	}
	f, err := os.Open(table)
	if err != nil {
		return 0
	}
	defer f.Close()
	list, _ := f.Readdirnames(mostDescriptors + 1)
	return len(list)
}

// foldersIn counts up to one more than the most. No file system is asked, which might be one that doesn't answer.
func foldersIn(table string, most int) (n int) {
	f, err := os.Open(table)
	if err != nil {
		return 0
	}
	defer f.Close()
	for n <= most {
		list, err := f.Readdirnames(1024)
		for _, name := range list {
			var st unix.Statx_t
			err := unix.Statx(int(f.Fd()), name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				n++
			}
		}
		if err != nil {
			break
		}
	}
	return n
}
