// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
)

const (
	byDaemon = "agentrun exec, by the daemon"
	alone    = "agentrun exec, alone"
)

// settled is when a start's aftermath is over: teardown, and the next sandbox of the daemon's pool, 20 ms after and some 50 more.
const settled = 120 * time.Millisecond

// daemon measures starts through agentrun serve beside starts without it, one at a time, as many as go, and hundreds at once.
func (b *bench) daemon() ([]Row, error) {
	root := filepath.Join(b.dir, "daemon-floor-root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	ring3 := []string{b.agentrun, "exec", "--ring", "3"}
	cs := []contender{
		{name: byDaemon, argv: with(ring3, "--", "/bin/true"), note: "a sandbox kept ready counts, if the daemon keeps any"},
		{name: alone, argv: with(ring3, "--no-daemon", "--", "/bin/true")},
		{name: "bwrap --unshare-all", argv: with(bwrapView, "--", "/bin/true"), note: "no cgroup, no seccomp, no /proc, no /dev"},
		{name: "floor", argv: []string{b.path("floor"), root, b.path("true")}, note: "static C; no sandbox"},
	}
	refs := []reference{{name: alone, label: "alone"}, {name: "bwrap --unshare-all", label: "bwrap"}, {name: "floor", label: "floor"}}
	rows, err := b.beside(nil, func() ([]Row, error) {
		rows, err := b.race(cs, refs)
		for i := range rows {
			rows[i].Name = "cold start, " + rows[i].Name
		}
		if err != nil {
			return rows, err
		}
		// Once more, each when what the others left to do is done: the kernel takes namespaces down afterwards, and the daemon its runs.
		apart := slices.Delete(slices.Clone(cs), 1, 2)
		for i := range apart {
			apart[i].rest = settled
		}
		more, err := b.race(apart, refs[1:])
		for i := range more {
			more[i].Name = "start apart, " + more[i].Name
		}
		return append(rows, more...), err
	})
	for cores := 1; err == nil && cores <= min(2, goruntime.NumCPU()); cores++ {
		var more []Row
		more, err = b.sustained(cores, cs, refs)
		rows = append(rows, more...)
	}
	for _, way := range []string{byDaemon, alone} {
		if err != nil {
			break
		}
		var more []Row
		more, err = b.hundreds(way)
		rows = append(rows, more...)
	}
	return rows, err
}

// beside does something while a daemon serves, which is bound to cpus; nil: to none.
func (b *bench) beside(cpus []int, do func() ([]Row, error)) (rows []Row, err error) {
	cmd := exec.Command(b.agentrun, "serve", "--max-sandboxes", "10000", "--queue-timeout", "300s", "--memory-share", "1000")
	cmd.Dir, cmd.Env = b.dir, b.env
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := bound(cpus, cmd.Start); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		guard := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer guard.Stop()
		if werr := cmd.Wait(); werr != nil {
			err = errors.Join(err, fmt.Errorf("the daemon: %w: %s", werr, lastLine(said.String())))
		}
	}()
	b.daemonPID = cmd.Process.Pid
	if err := b.awaitDaemon(cmd.Process.Pid); err != nil {
		return nil, err
	}
	return do()
}

// awaitDaemon returns when runs are the daemon's, which one of them proves.
func (b *bench) awaitDaemon(pid int) error {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for ; ; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return fmt.Errorf("the daemon doesn't answer: %w", ctx.Err())
		}
		if _, err := os.Stat(filepath.Join(b.runDir(), "control", "exec.handoff")); err != nil {
			continue
		}
		c, err := control.Open(b.runDir(), "daemon")
		if err != nil {
			continue
		}
		if _, err := c.Version(ctx); err == nil {
			break
		}
	}
	if _, _, err := b.output([]string{b.agentrun, "exec", "--detach", "--", "/bin/sleep", "60"}); err != nil {
		return err
	}
	list, err := b.live(1)
	if err != nil {
		return err
	}
	if list[0].Supervisor != pid {
		return fmt.Errorf("a run wasn't handed over to the daemon: %+v", list)
	}
	return b.killAll()
}

// bound starts something on certain processors only.
func bound(cpus []int, start func() error) error {
	if cpus == nil {
		return start()
	}
	failed := make(chan error)
	go func() {
		goruntime.LockOSThread() // for good: the thread ends with the goroutine
		if err := pin(cpus); err != nil {
			failed <- err
			return
		}
		failed <- start()
	}()
	return <-failed
}

// pin binds the calling thread, and what it starts.
func pin(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &set))
}

// processors are the first n we may use.
func processors(n int) ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	var cpus []int
	for c := 0; len(cpus) < min(n, set.Count()); c++ {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// sustained is how many sandboxes are started and ended in a second, on so many processors for all that takes part.
func (b *bench) sustained(cores int, cs []contender, refs []reference) ([]Row, error) {
	cpus, err := processors(cores)
	if err != nil {
		return nil, err
	}
	return b.beside(cpus, func() ([]Row, error) {
		rates, cpu := samples{}, samples{}
		order := rand.New(rand.NewPCG(2, 3))
		for range b.size.rates {
			for _, i := range order.Perm(len(cs)) {
				if b.ctx.Err() != nil {
					return nil, b.ctx.Err()
				}
				before := b.daemonTime()
				n, r, err := b.rate(cs[i], cpus)
				if err != nil {
					return nil, err
				}
				rates.add(cs[i].name, r)
				cpu.add(cs[i].name, (b.daemonTime()-before).Seconds()*1e3/float64(n))
			}
		}
		var rows []Row
		for _, c := range cs {
			row := rates.row(c.name, "/s", refs)
			row.Name, row.Note = fmt.Sprintf("sustained on %d, %s", cores, c.name), fmt.Sprintf("%d at once", 2*cores)
			if c.name == byDaemon {
				row.CPU = cpu.row(c.name, "ms", nil).Median
				row.Note += "; cpu: of the daemon and of what it starts, for each"
			}
			rows = append(rows, row)
		}
		return rows, nil
	})
}

// daemonTime is the processor time of the daemon, and of all that it has waited for.
func (b *bench) daemonTime() (sum time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.daemonPID))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime, in hundredths of a second (proc_pid_stat(5))
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// rate keeps two runs for each processor going.
func (b *bench) rate(c contender, cpus []int) (runs int, perSecond float64, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	began := time.Now()
	for range 2 * len(cpus) {
		wg.Go(func() {
			err := bound(cpus, func() error {
				for time.Since(began) < b.size.rateTime && b.ctx.Err() == nil {
					if _, err := b.time(c); err != nil {
						return err
					}
					mu.Lock()
					runs++
					mu.Unlock()
				}
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return runs, float64(runs) / time.Since(began).Seconds(), errors.Join(errs...)
}

// hundreds starts many sandboxes whose agents sleep, weighs them and kills them all.
func (b *bench) hundreds(way string) ([]Row, error) {
	if way == byDaemon {
		return b.beside(nil, func() ([]Row, error) { return b.hundredsMore(way) })
	}
	return b.hundredsMore(way)
}

func (b *bench) hundredsMore(way string) (rows []Row, err error) {
	n := b.size.hundreds
	argv := []string{b.agentrun, "exec", "--ring", "3", "--timeout", "300s", "--detach", "--", "/bin/sleep", "3600"}
	if way == alone {
		argv = slices.Insert(argv, 2, "--no-daemon")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.killAll())
		}
	}()
	began := time.Now()
	todo := make(chan struct{}, n)
	for range n {
		todo <- struct{}{}
	}
	close(todo)
	var wg sync.WaitGroup
	errs := make([]error, 2*goruntime.NumCPU())
	for i := range errs {
		wg.Go(func() {
			for range todo {
				if _, _, errs[i] = b.output(argv); errs[i] != nil || b.ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	time.Sleep(rest)
	list, err := b.live(n)
	if err != nil {
		return nil, err
	}
	supervisors, others, err := weighRuns(list)
	if err != nil {
		return nil, err
	}
	began = time.Now()
	if err := b.killAll(); err != nil {
		return nil, err
	}
	killed := time.Since(began)
	name := func(what string) string {
		return fmt.Sprintf("%d at once, %s: %s", n, strings.TrimPrefix(way, "agentrun exec, "), what)
	}
	one := func(what, unit string, v float64, note string) Row {
		row := samples{what: {v}}.row(what, unit, nil)
		row.Name, row.Note = name(what), note
		return row
	}
	return []Row{
		one("all started", "s", took.Seconds(), fmt.Sprintf("%d clients; until the last agent is executed", len(errs))),
		one("supervisor, proportional, each", "MiB", supervisors/float64(n), "all supervisors, divided by the sandboxes"),
		one("beside it, proportional, each", "MiB", others/float64(n), "without the agent"),
		one("all killed", "s", killed.Seconds(), "agentrun kill --all: every one proved dead"),
	}, nil
}

// live are all n runs, whoever supervises them. A supervisor that the machine has no time for is asked again.
func (b *bench) live(n int) (list []control.Sandbox, err error) {
	for began := time.Now(); b.ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		out, _, perr := b.output([]string{b.agentrun, "ps", "--json"})
		if err = perr; err == nil {
			err = json.Unmarshal(out, &list)
		}
		if err == nil && len(list) == n {
			return list, nil
		}
		if time.Since(began) > patience {
			return nil, errors.Join(fmt.Errorf("%d live runs, want %d", len(list), n), err)
		}
	}
	return nil, b.ctx.Err()
}

// killAll asks again when a supervisor had no time to answer, or ended on the way.
func (b *bench) killAll() (err error) {
	for began := time.Now(); ; {
		if _, _, err = b.output([]string{b.agentrun, "kill", "--all", "--yes"}); err == nil || time.Since(began) > patience {
			return err
		}
	}
}

// weighRuns gives Pss of the supervisors and of what they keep beside the agents, in MiB.
func weighRuns(list []control.Sandbox) (supervisors, others float64, err error) {
	children, err := family()
	if err != nil {
		return 0, 0, err
	}
	agents := map[int]bool{}
	tops := map[int]bool{}
	for _, s := range list {
		agents[s.PID], tops[s.Supervisor] = true, true
	}
	for top := range tops {
		v, err := memoryField(top, "smaps_rollup", "Pss:")
		if err != nil {
			return 0, 0, err
		}
		supervisors += v
		for _, pid := range below(children, top) {
			if agents[pid] {
				continue
			}
			v, err := memoryField(pid, "smaps_rollup", "Pss:")
			if err != nil {
				return 0, 0, err
			}
			others += v
		}
	}
	return supervisors, others, nil
}
