// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Who watches a file by epoll(7) is woken where the file gets ready: for a timerfd or a signal of a timer in the timer's interrupt, one
// watch after the other, 0.3 µs each, with interrupts off. That time is nobody's: a ring 2 run with 1.5 million watches of one timer
// took a processor from the host for half a second at each expiry, and used 10 µs of its own. One file can be watched by each epoll under
// each number that it has, so open files bound nothing, and fs.epoll.max_user_watches is 5 million on a host of 24 GiB. So the
// supervisor looks. What it can't see is in SECURITY.md.
const (
	// mostWatches of a run: 5 ms in which a processor hears nothing. Servers have one or two for each connection.
	mostWatches = 16384
	// mostTimers are those of timerfds, signalfds, eventfds and what else has no inode of its own. An agent that sleeps while a timer wakes
	// 16 000 has most of a processor for nothing; a loop has one to wake it and one or two more.
	mostTimers = 1024
	// mostEpolls bounds a look. A process has one or two, a runtime with threads one for each.
	mostEpolls = 2048
	// watchLook is the run's processor time between two looks: making a watch takes 1.3 µs.
	watchLook = time.Millisecond
	// watchRest is how many times as long as the look took the next one waits at the least.
	watchRest = 20
)

// tooManyWatches looks once more when the run has used enough processor time since it looked last.
type tooManyWatches struct {
	seen time.Duration // of processor time
	rest time.Time
}

func (l *tooManyWatches) look(used time.Duration, pids func() ([]int, error)) (string, error) {
	began := time.Now()
	if used-l.seen < watchLook || began.Before(l.rest) {
		return "", nil
	}
	defer func() { l.rest = time.Now().Add(watchRest * time.Since(began)) }()
	l.seen = used
	all, err := pids()
	if err != nil {
		return "", err
	}
	if n := polled(all); n > mostPolled {
		return fmt.Sprintf("descriptors that are polled: %d and more, at most %d", n, mostPolled), nil
	}
	var known []epoll
	watches, timers := 0, 0
	for _, pid := range all {
		for _, table := range tablesOf(pid) {
			for _, e := range epollsIn(table) {
				at, there := slices.BinarySearchFunc(known, e, epoll.compare)
				if there {
					continue // inherited or sent: it is the same
				}
				known = slices.Insert(known, at, e)
				if len(known) > mostEpolls {
					return fmt.Sprintf("epolls: %d and more, at most %d", len(known), mostEpolls), nil
				}
				all, anonymous := e.watches()
				if timers += anonymous; timers > mostTimers {
					return fmt.Sprintf("epoll watches of timers and the like: %d and more, at most %d", timers, mostTimers), nil
				}
				if watches += all; watches > mostWatches {
					return fmt.Sprintf("epoll watches: %d and more, at most %d", watches, mostWatches), nil
				}
			}
		}
	}
	return "", nil
}

// epoll is a descriptor of a thread's.
type epoll struct {
	table   string // its folder in /proc
	tid, fd int
}

// compare puts open files into an order of the kernel's. One that can't be compared, as its process is gone or kcmp(2) not allowed, is
// another: what is shared may then be counted twice, and none is left out.
func (e epoll) compare(other epoll) int {
	const file = 0 // KCMP_FILE

	//nolint:gosec // numbers of the kernel's
	r, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(e.tid), uintptr(other.tid), file, uintptr(e.fd), uintptr(other.fd), 0)
	switch {
	case errno != 0:
		return 1
	case r == 0:
		return 0
	case r == 1:
		return -1
	}
	return 1
}

// watches counts what it watches, and what of that has the inode that the epoll itself has. One that is gone has none.
func (e epoll) watches() (all, anonymous int) {
	var st unix.Stat_t
	number := strconv.Itoa(e.fd)
	b, err := os.ReadFile(e.table + "info/" + number)
	if err != nil || unix.Stat(e.table+"/"+number, &st) != nil {
		return 0, 0
	}
	return bytes.Count(b, []byte("\ntfd:")), bytes.Count(b, fmt.Appendf(nil, " ino:%x ", st.Ino))
}

func epollsIn(table string) (found []epoll) {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(mostDescriptors)
	tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(table)))
	b := make([]byte, 64)
	for _, name := range names {
		n, err := unix.Readlinkat(int(f.Fd()), name, b)
		if fd, errFD := strconv.Atoi(name); err == nil && errFD == nil && string(b[:n]) == "anon_inode:[eventpoll]" {
			found = append(found, epoll{table, tid, fd})
		}
	}
	return found
}
