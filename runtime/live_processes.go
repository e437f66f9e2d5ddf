// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Processes lists the agent's processes. One that ends meanwhile is left out; pid 1 of the sandbox is
// agentrun's and not listed.
func (v *Live) Processes() ([]Process, error) {
	if v.life.Err() != nil {
		return nil, ErrEnded
	}
	pids, err := v.launch.group.Pids()
	if err != nil {
		return nil, v.orEnded(err)
	}
	list := make([]Process, 0, len(pids))
	now := time.Now()
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return nil, os.NewSyscallError("clock_gettime", err)
	}
	for _, pid := range pids {
		if pid == v.launch.initPID {
			continue
		}
		p, ticks, err := readProcess(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && p.Inside == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.First = pid == v.launch.agentPID
		p.User = v.launch.ids.userInside(p.User)
		p.Started = now.Add(time.Duration(ticks)*statTick - time.Duration(up.Nano())) //nolint:gosec // since boot
		list = append(list, p)
	}
	v.joins.pinned(func(entered []int) { comeFrom(list, entered) })
	return list, nil
}

const (
	// statTick is the unit of proc_pid_stat(5) on all 64-bit architectures (USER_HZ).
	statTick = 10 * time.Millisecond
	// mostCommand is what is read of a command line, which may be megabytes.
	mostCommand = 4096
)

// readProcess looks at a pid that was of the run a moment ago. It may be another process by now, of this run
// or of the host: what is told is for people, and nothing is decided by it. All of it is one process', as the
// folder is held. The second value is when it began, in clock ticks after the machine.
func readProcess(pid int) (Process, uint64, error) {
	dir, err := os.OpenRoot(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return Process{}, 0, err
	}
	defer dir.Close()
	stat, err := dir.ReadFile("stat")
	if err != nil {
		return Process{}, 0, err
	}
	p, ticks, err := parseStat(stat)
	if err != nil {
		return p, 0, err
	}
	status, err := dir.ReadFile("status")
	if err != nil {
		return p, 0, err
	}
	if p.Inside, p.User, err = parseStatus(status); err != nil {
		return p, 0, err
	}
	// The kernel reads it from memory that is the process' own. It takes no page that a file system of the
	// agent's would have to bring (CVE-2018-1120): a process can't make this wait.
	f, err := dir.Open("cmdline")
	if err != nil {
		return p, 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostCommand))
	if len(text) > 0 {
		p.Command = strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	}
	return p, ticks, err
}

// comeFrom goes from each process to its parents, up to one that is the run's first or has entered. Who has lost
// a parent is pid 1's child, and nobody knows any more.
func comeFrom(list []Process, entered []int) {
	parents := map[int]int{}
	known := map[int]ProcessFrom{}
	for _, p := range list {
		parents[p.PID] = p.PPID
		if p.First {
			known[p.PID] = FromCommand
		}
	}
	for _, pid := range entered {
		known[pid] = FromEntered
	}
	for i := range list {
		at := list[i].PID
		for range len(list) { // numbers are read one after another: what they say may go round
			if known[at] != "" || parents[at] == 0 {
				break
			}
			at = parents[at]
		}
		list[i].From = known[at]
	}
}

// parseStatus reads the number that a process has in its innermost pid namespace, and its effective user here,
// of proc_pid_status(5). The number is 0 for one that is in no namespace but ours: it is about to enter.
// The kernel escapes line ends in the name, so no line is the agent's.
func parseStatus(b []byte) (inside, user int, err error) {
	user = -1
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case key == "Uid" && len(fields) == 4:
			user, err = strconv.Atoi(fields[1])
		case key == "NSpid" && len(fields) > 1:
			inside, err = strconv.Atoi(fields[len(fields)-1])
		}
		if err != nil {
			return 0, -1, fmt.Errorf("process status %.80q: %w", line, unix.EBADMSG)
		}
	}
	if user < 0 {
		return 0, -1, fmt.Errorf("process status without a user: %w", unix.EBADMSG)
	}
	return inside, user, nil
}

// parseStat reads proc_pid_stat(5), and when the process began, in ticks. The name is the agent's choice and
// may hold parentheses and spaces: it ends at the last one.
func parseStat(b []byte) (Process, uint64, error) {
	bad := func() (Process, uint64, error) {
		return Process{}, 0, fmt.Errorf("process status %.80q: %w", b, unix.EBADMSG)
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return bad()
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	rest := bytes.Fields(b[end+1:])
	if err != nil || len(rest) < 20 {
		return bad()
	}
	ppid, err := strconv.Atoi(string(rest[1]))
	if err != nil {
		return bad()
	}
	threads, err := strconv.Atoi(string(rest[17]))
	if err != nil {
		return bad()
	}
	ticks, err := strconv.ParseUint(string(rest[19]), 10, 64)
	if err != nil {
		return bad()
	}
	return Process{PID: pid, PPID: ppid, Threads: threads, Comm: string(b[open+1 : end]), State: rest[0][0]}, ticks, nil
}

// cpuTicks is the time that a process and its waited-for children used (fields 14 to 17 of proc_pid_stat(5));
// 0 for what isn't one.
func cpuTicks(b []byte) (sum uint64) {
	rest := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(rest) < 15 {
		return 0
	}
	for _, f := range rest[11:15] {
		n, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return 0
		}
		sum += n
	}
	return sum
}
