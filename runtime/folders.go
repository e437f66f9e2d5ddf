// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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
	// mostMerged bounds what the kernel keeps of the open folders of overlays (mergedIn), where they are more than fewMerged: somebody's folder
	// of a million names may be listed.
	mostMerged, fewMerged = 512 << 20, 3
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
	var overlays map[string]bool // of the run, whose processes have one mount namespace
	open := 0
	for _, pid := range all {
		if overlays == nil {
			overlays = overlaysOf(pid)
		}
		for _, table := range tablesOf(pid) {
			tables = append(tables, table)
			if open += descriptorsIn(table); open > mostDescriptors {
				return fmt.Sprintf("open files: %d and more, at most %d", open, mostDescriptors), nil
			}
		}
	}
	if len(overlays) > 0 {
		merged, bytes := 0, int64(0)
		for _, table := range tables {
			n, b := mergedIn(table, overlays)
			if merged, bytes = merged+n, bytes+b; merged > fewMerged && bytes > mostMerged {
				return fmt.Sprintf("open folders of an overlay: %d and more, of more than %d MiB", merged, mostMerged>>20), nil
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

// overlaysOf gives the devices of the overlays that a process can write to (proc_pid_mountinfo(5)).
func overlaysOf(pid int) map[string]bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil // it has ended, and the next one is asked
	}
	overlays := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 5 && strings.Contains(line, " - overlay ") && strings.HasPrefix(f[5]+",", "rw,") {
			overlays[f[2]] = true
		}
	}
	return overlays
}

// mergedIn adds up what open folders of overlays may take. Whoever reads one gets a list of all of its names from the kernel, up to 512 bytes
// each, which no cgroup is charged for and which is kept until the folder is closed, also when the next one who reads it gets a newer list
// (ovl_dir_cache, fs/overlayfs/readdir.c). A folder's size is that of its upper layer, in tmpfs 20 bytes for a name; of the host's layer below
// it there are thousands of names. What is on its way through a unix socket can't be seen, and is taken for folders of 16 000 names.
func mergedIn(table string, overlays map[string]bool) (folders int, bytes int64) {
	const perSize, lower, unseen = 26, 1 << 20, 8 << 20
	f, err := os.Open(table)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	list, _ := f.Readdirnames(mostDescriptors)
	for _, name := range list {
		var st unix.Statx_t
		if unix.Statx(int(f.Fd()), name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_SIZE, &st) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if overlays[fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)] {
				folders++
				bytes += lower + perSize*int64(min(st.Size, mostMerged)) //nolint:gosec // it is bounded
			}
		case unix.S_IFSOCK:
			n := sentThrough(table + "info/" + name)
			folders += n
			bytes += unseen * int64(n)
		}
	}
	return folders, bytes
}

// sentThrough counts the descriptors that wait in a unix socket to be received (Linux 5.6).
func sentThrough(fdinfo string) int {
	b, _ := os.ReadFile(fdinfo)
	_, rest, _ := strings.Cut(string(b), "\nscm_fds:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return max(0, n)
}
