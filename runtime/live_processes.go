// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

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
	for _, pid := range pids {
		if pid == v.launch.initPID {
			continue
		}
		p, err := readProcess(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.First = pid == v.launch.agentPID
		list = append(list, p)
	}
	return list, nil
}

// readProcess looks at a pid that was of the run a moment ago. It may be another process by now, of this run
// or of the host: what is told is for people, and nothing is decided by it.
func readProcess(pid int) (Process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	return parseStat(b)
}

// parseStat reads proc_pid_stat(5). The name is the agent's choice and may hold parentheses and spaces: it
// ends at the last one.
func parseStat(b []byte) (Process, error) {
	bad := func() (Process, error) { return Process{}, fmt.Errorf("process status %.80q: %w", b, unix.EBADMSG) }
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return bad()
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	rest := bytes.Fields(b[end+1:])
	if err != nil || len(rest) < 18 {
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
	return Process{PID: pid, PPID: ppid, Threads: threads, Comm: string(b[open+1 : end])}, nil
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
