// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// contender is one command among those that are run in turn.
type contender struct {
	name     string
	argv     []string
	note     string
	optional bool   // may be missing or unable; the row says so
	undo     func() // after a run that failed
	// run is how it is run where argv alone doesn't do; nil: as output does it. Only inPlaces asks.
	run  func(c contender) (stdout []byte, err error)
	rest time.Duration // before each turn of its own
}

// cost is one run of a contender: the whole process, from fork to wait.
type cost struct {
	wall time.Duration
	cpu  time.Duration // user and system, with all it waited for
}

// patience is how long one run may take before it is killed and counts as failed.
const patience = 3 * time.Minute

// time runs a contender once. Nothing but fork, exec and wait lies between the two looks at the clock.
func (b *bench) time(c contender) (cost, error) {
	path, err := exec.LookPath(c.argv[0])
	if err != nil {
		return cost{}, err
	}
	pidfd := -1
	null := b.null.Fd()
	attr := &syscall.ProcAttr{
		Dir: b.dir, Env: b.env, Files: []uintptr{null, null, null},
		Sys: &syscall.SysProcAttr{PidFD: &pidfd},
	}
	began := time.Now()
	pid, err := syscall.ForkExec(path, c.argv, attr)
	if err != nil {
		return cost{}, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(pidfd)
	guard := time.AfterFunc(patience, func() { _ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) })
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, &ru); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	took := time.Since(began)
	guard.Stop()
	switch {
	case err != nil:
		return cost{}, fmt.Errorf("wait for %s: %w", c.name, err)
	case ws.Signaled():
		return cost{}, fmt.Errorf("%s: ended by %v", c.name, ws.Signal())
	case ws.ExitStatus() != 0:
		return cost{}, fmt.Errorf("%s: exit code %d", c.name, ws.ExitStatus())
	}
	return cost{took, time.Duration(ru.Utime.Nano() + ru.Stime.Nano())}, nil
}

// output runs a command that is not timed and returns its two outputs; the error has the last line of
// what it complained about.
func (b *bench) output(argv []string) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err = cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(e.String()), "\n")
		err = fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return o.Bytes(), e.Bytes(), err
}

// once runs a contender without timing it.
func (b *bench) once(c contender) ([]byte, error) {
	if c.run != nil {
		return c.run(c)
	}
	out, _, err := b.output(c.argv)
	return out, err
}

// turns runs every contender once a round, in an order drawn for each round, after one run each to find
// out who can't. What the kernel does after one has ended (network namespaces and cgroups are
// freed later) thus falls on all alike.
func (b *bench) turns(rounds int, cs []contender, once func(contender) error) (absent []Row, err error) {
	able := cs[:0:0]
	for _, c := range cs {
		if _, err := b.once(c); err != nil {
			if c.undo != nil {
				c.undo()
			}
			absent = append(absent, Row{Name: c.name, Note: c.note, NotRun: err.Error(), Optional: c.optional})
			continue
		}
		able = append(able, c)
	}
	order := rand.New(rand.NewPCG(2, 3))
	for range rounds {
		for _, i := range order.Perm(len(able)) {
			if b.ctx.Err() != nil {
				return absent, b.ctx.Err()
			}
			if err := once(able[i]); err != nil {
				if able[i].undo != nil {
					able[i].undo()
				}
				return absent, err
			}
		}
	}
	return absent, nil
}

// race times contenders against each other and compares each with the references. The first rounds warm
// caches (agentrun's compiled filter, everybody's pages) and are dropped.
func (b *bench) race(cs []contender, refs []reference) ([]Row, error) {
	return b.raceAfter(cs, refs, b.size.cold, func(c contender) error { time.Sleep(c.rest); return nil })
}

// raceAfter is race in so many rounds, with something before each turn that isn't timed.
func (b *bench) raceAfter(cs []contender, refs []reference, rounds int, before func(contender) error) ([]Row, error) {
	wall, cpu := samples{}, samples{}
	warmUp := min(b.size.warmUp, rounds)
	absent, err := b.turns(warmUp+rounds, cs, func(c contender) error {
		if err := before(c); err != nil {
			return err
		}
		t, err := b.time(c)
		wall.add(c.name, t.wall.Seconds()*1e3)
		cpu.add(c.name, t.cpu.Seconds()*1e3)
		return err
	})
	if err != nil {
		return absent, err
	}
	wall.drop(warmUp)
	cpu.drop(warmUp)
	var rows []Row
	for _, c := range cs {
		if wall[c.name] == nil {
			continue
		}
		row := wall.row(c.name, "ms", refs)
		row.CPU, row.Note = quantile(cpu[c.name], 0.5), c.note
		rows = append(rows, row)
	}
	return append(rows, absent...), nil
}
