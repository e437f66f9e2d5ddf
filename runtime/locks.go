// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A record lock (fcntl(2), F_SETLK) is 192 bytes of the kernel's memory, which no cgroup is charged for;
// RLIMIT_LOCKS has counted nothing since Linux 2.4. One process makes 83 000 a second, so 20 s of processor
// time would take 320 MB from the host. The filter can't count them: what is locked or unlocked lies behind a
// pointer. So the supervisor looks at the kernel's list.
const (
	// mostLocks is far above what databases hold: SQLite has a few for each connection.
	mostLocks = 4096
	// lockLook is the run's processor time between two looks. Reading /proc/locks makes every lock on the
	// host wait for some microseconds (file_rwsem), so an idle run has it read never, and all runs together
	// at most once a second for each processor. In that time a run can make locks of 16 MB.
	lockLook = time.Second
	// lockRest is how many times as long as the look took the next one waits at the least. The kernel writes
	// the list page by page, each time from its beginning: 4096 locks of one run took every busy neighbour 9
	// ms.
	lockRest = 200
)

// tooManyLocks looks once more when the run has used enough processor time since it looked last.
type tooManyLocks struct {
	space string        // the run's pid namespace
	seen  time.Duration // of processor time
	rest  time.Time
}

func (l *tooManyLocks) look(used time.Duration, agentPID int) (string, error) {
	began := time.Now()
	if used-l.seen < lockLook || began.Before(l.rest) {
		return "", nil
	}
	defer func() { l.rest = time.Now().Add(lockRest * time.Since(began)) }()
	l.seen = used
	var err error
	if l.space == "" {
		if l.space, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", agentPID)); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return "", nil // it has ended
			}
			return "", err
		}
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	n, err := recordLocks(f, func(pid string) bool {
		space, err := os.Readlink("/proc/" + pid + "/ns/pid")
		return err == nil && space == l.space
	})
	if n > mostLocks {
		return fmt.Sprintf("file locks: %d and more, at most %d", n, mostLocks), nil
	}
	return "", err
}

// recordLocks counts the lines of /proc/locks (proc(5)) whose process is one of ours; past the limit it reads
// no further. A lock is its process's as long as it is there: the filter refuses open file description locks,
// which have none, and a table of descriptors that two processes share, in which a lock would outlive its
// maker.
func recordLocks(list io.Reader, ours func(pid string) bool) (n int, err error) {
	known := map[string]bool{}
	for s := bufio.NewScanner(list); ; {
		if !s.Scan() {
			return n, s.Err()
		}
		fields := strings.Fields(strings.Replace(s.Text(), "->", "", 1)) // "->": one that waits for the one above
		if len(fields) < 5 {
			continue
		}
		pid := fields[4]
		mine, ok := known[pid]
		if !ok {
			if number, err := strconv.Atoi(pid); err == nil && number > 0 {
				mine = ours(pid)
			}
			known[pid] = mine
		}
		if mine {
			if n++; n > mostLocks {
				return n, nil
			}
		}
	}
}
