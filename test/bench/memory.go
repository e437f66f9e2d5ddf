// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memory weighs what stays in memory beside a sleeping agent: the process that was started, and whatever
// else it keeps (pid 1 of the sandbox; helpers that should be gone). The agent itself does not count.
func (b *bench) memory() ([]Row, error) {
	// Processes that lose their parent then become our children, so that none escapes the weighing.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	bundle, err := b.bundle([]string{insideCost, "hold"}, object{
		"destination": insideCost, "type": "bind", "source": b.path("syscost"), "options": []string{"bind", "ro", "nosuid", "nodev"},
	})
	if err != nil {
		return nil, err
	}
	places := b.places(3)
	var rows []Row
	for _, k := range []struct {
		name  string
		argv  []string
		crowd int
	}{
		{exec3, with(places[2].argv, "hold"), 1},
		{exec3, with(places[2].argv, "hold"), b.size.crowd},
		{"bwrap", with(places[1].argv, "hold"), 1},
		{"runc run", b.oci("runc", bundle).argv, 1},
	} {
		weights := samples{}
		beside := ""
		for range b.size.memory {
			if b.ctx.Err() != nil {
				return rows, b.ctx.Err()
			}
			w, err := b.weigh(k.argv, k.crowd)
			if err != nil {
				return rows, fmt.Errorf("%s: %w", k.name, err)
			}
			weights.add("supervisor, resident", w.rss)
			weights.add("supervisor, proportional", w.pss)
			weights.add("beside it, proportional", w.others)
			beside = w.names
		}
		for _, what := range []string{"supervisor, resident", "supervisor, proportional", "beside it, proportional"} {
			row := weights.row(what, "MiB", nil)
			row.Name = fmt.Sprintf("%s, %d at once: %s", k.name, k.crowd, what)
			if strings.HasPrefix(what, "beside") {
				row.Note = beside
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// weight is per sandbox, in MiB.
type weight struct {
	rss, pss float64
	others   float64
	names    string // of the others
}

// rest is how long a supervisor is left alone before it is weighed: what is asked is its weight while the
// agent works, not in the moment after the launch.
const rest = time.Second

func (b *bench) weigh(argv []string, crowd int) (w weight, err error) {
	keepers := map[int]bool{}
	var held []*holder
	defer func() {
		for _, h := range held {
			err = errors.Join(err, h.release())
		}
	}()
	for range crowd {
		h, err := b.hold(argv)
		if err != nil {
			return w, err
		}
		held = append(held, h)
		keepers[h.cmd.Process.Pid] = true
	}
	time.Sleep(rest)
	all, err := descendants(os.Getpid())
	if err != nil {
		return w, err
	}
	count := map[string]int{}
	for _, pid := range all {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(line), insideCost) {
			continue
		}
		pss, err := memoryField(pid, "smaps_rollup", "Pss:")
		if err != nil {
			return w, err
		}
		if !keepers[pid] {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			count[strings.TrimSpace(string(comm))]++
			w.others += pss
			continue
		}
		rss, err := memoryField(pid, "status", "VmRSS:")
		if err != nil {
			return w, err
		}
		w.rss += rss
		w.pss += pss
	}
	n := float64(crowd)
	w.rss, w.pss, w.others = w.rss/n, w.pss/n, w.others/n
	w.names = "no process"
	for name, c := range count {
		w.names = strings.TrimPrefix(w.names, "no process")
		w.names += fmt.Sprintf("%g × %s ", float64(c)/n, name)
	}
	w.names = strings.TrimSpace(w.names)
	return w, nil
}

// holder is a sandbox whose agent lives until its standard input ends.
type holder struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader // what the agent says after "up"
}

// hold starts one and returns when the agent runs.
func (b *bench) hold(argv []string) (*holder, error) {
	cmd := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = patience
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &holder{cmd, stdin, bufio.NewReader(stdout)}
	line, err := h.line()
	if err != nil || line != "up\n" {
		return nil, fmt.Errorf("the agent said %q, not up: %w: %s", line, errors.Join(err, h.release()), complaint.String())
	}
	return h, nil
}

// line is the next that the agent says.
func (h *holder) line() (string, error) {
	guard := time.AfterFunc(patience, func() { _ = h.cmd.Process.Kill() })
	defer guard.Stop()
	return h.lines.ReadString('\n')
}

func (h *holder) release() error {
	h.stdin.Close()
	return h.cmd.Wait()
}

// descendants are all processes below one.
func descendants(top int) ([]int, error) {
	children, err := family()
	return below(children, top), err
}

func below(children map[int][]int, top int) []int {
	var all []int
	for todo := children[top]; len(todo) > 0; todo = todo[1:] {
		all = append(all, todo[0])
		todo = append(todo, children[todo[0]]...)
	}
	return all
}

// family is who has which children, on the whole machine.
func family() (map[int][]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // gone since
		}
		// "pid (comm) state ppid …", and comm may hold anything.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		ppid, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		if fields[0] != "Z" { // the dead weigh nothing
			children[ppid] = append(children[ppid], pid)
		}
	}
	return children, nil
}

// memoryField reads a "Name:  123 kB" line of a /proc file, in MiB.
func memoryField(pid int, file, field string) (float64, error) {
	name := fmt.Sprintf("/proc/%d/%s", pid, file)
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s: %w", name, field, err)
			}
			return kb / 1024, nil
		}
	}
	return 0, fmt.Errorf("%s: no %s", name, field)
}
