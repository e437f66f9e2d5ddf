// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kinds are the harms, one for each hostile run; the last one does all of them in turn.
var kinds = []string{"forks", "calls", "execs", "names", "arguments", "routes", "asks", "connections", "lookups", "inotify",
	"sockets", "huge", "locks", "output", "burn", "memory", "signals", "pipes", "files", "all"}

func main() {
	agentrun := flag.String("agentrun", "bin/agentrun", "the `program` under attack")
	probe := flag.String("probe", "bin/probe", "the `program` that attacks")
	length := flag.Duration("time", time.Hour, "how long the mix lasts")
	alone := flag.Duration("alone", 2*time.Minute, "how long the quiet ones are measured alone")
	which := flag.String("kinds", strings.Join(kinds, ","), "the hostile runs, by their `KIND,…`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	m, err := newMix(*agentrun, *probe)
	if err == nil {
		m.kinds = strings.Split(*which, ",")
		err = m.run(ctx, *alone, *length)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// settle is how long the mix runs before it is measured: twenty starts at once are the operator's doing. pause is how long an operator
// takes, at the least, to start anew what has ended: without it the starts would be much of what is measured.
const (
	settle = 10 * time.Second
	pause  = 30 * time.Second
	lasts  = "300s" // the longest that ring 3 has
)

// mix is one measurement.
type mix struct {
	agentrun, probe, dir string
	kinds                []string

	mu    sync.Mutex
	ended map[string]int // how hostile runs ended, by kind and exit code
}

func newMix(agentrun, probe string) (*mix, error) {
	m := &mix{ended: map[string]int{}}
	var err error
	if m.agentrun, err = filepath.Abs(agentrun); err != nil {
		return nil, err
	}
	if m.probe, err = filepath.Abs(probe); err != nil {
		return nil, err
	}
	if m.dir, err = os.MkdirTemp("", "agentrun-hostile-"); err != nil {
		return nil, err
	}
	return m, errors.Join(os.Mkdir(m.path("state"), 0o700), os.Mkdir(m.path("run"), 0o755), os.Mkdir(m.path("host"), 0o700))
}

func (m *mix) path(name string) string { return filepath.Join(m.dir, name) }

// pulses are the times of pieces of work, in microseconds: units of work, and tool calls. Failed calls are counted apart.
type pulses struct {
	units, calls []float64
	failed       int
}

func (p *pulses) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		kind, at, _ := strings.Cut(s.Text(), " ")
		us, err := strconv.ParseFloat(at, 64)
		switch {
		case err != nil:
		case kind == "u":
			p.units = append(p.units, us)
		case kind == "c":
			p.calls = append(p.calls, us)
		case kind == "f":
			p.failed++
		}
	}
}

// run measures alone, then in the mix, and judges.
func (m *mix) run(ctx context.Context, alone, length time.Duration) error {
	defer func() { _ = os.RemoveAll(m.dir) }()
	fmt.Printf("%s: alone for %v, then %d hostile runs for %v\n", time.Now().Format(time.TimeOnly), alone, len(m.kinds), length)
	quiet, host, err := m.quiet(ctx, alone)
	if err != nil {
		return err
	}
	before, err := m.audit()
	if err != nil {
		return err
	}
	hostile, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	for _, kind := range m.kinds {
		all.Go(func() { m.harm(hostile, kind) })
	}
	var peaks limits
	all.Go(func() { peaks = watch(hostile) })
	select {
	case <-time.After(settle):
	case <-ctx.Done():
	}
	mixed, mixedHost, err := m.quiet(ctx, length)
	end()
	all.Wait()
	if err != nil {
		return err
	}
	after, err := m.audit()
	if err != nil {
		return err
	}
	bad := m.report(
		compare{"quiet run, unit of work", quiet.units, mixed.units},
		compare{"quiet run, tool call", quiet.calls, mixed.calls},
		compare{"host, unit of work", host.units, mixedHost.units})
	perMinute := float64(after-before) / length.Minutes() / 1e6
	fmt.Printf("\naudit: %.2f MB a minute; failed tool calls of the quiet run: %d of %d\n", perMinute, mixed.failed, mixed.failed+len(mixed.calls))
	if perMinute >= 1 {
		bad = append(bad, "the audit grows by 1 MB a minute or more")
	}
	bad = append(bad, peaks.report()...)
	m.told()
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// harm keeps one hostile run alive: what ends it (timeout, limits, its own doing) is followed by the next.
func (m *mix) harm(ctx context.Context, kind string) {
	for ctx.Err() == nil {
		cmd := m.exec(ctx, lasts, "/probe", "hostile", kind)
		err := cmd.Run()
		if ctx.Err() != nil {
			return
		}
		how := fmt.Sprintf("%s %d", kind, cmd.ProcessState.ExitCode())
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			how = kind + " " + err.Error()
		}
		m.mu.Lock()
		m.ended[how]++
		m.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// exec is a ring 3 run with the probe in it. At the end of ctx it is told, not killed: it shall leave nothing.
func (m *mix) exec(ctx context.Context, timeout string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.agentrun, append([]string{"--state-dir", m.path("state"), "--run-dir", m.path("run"),
		"exec", "--ring", "3", "--on-breach", "record", "--timeout", timeout, "--no-daemon", "--ro-bind", m.probe + ":/probe", "--"}, argv...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Dir = m.path("host")
	return cmd
}

// quiet measures the run and the host's program beside each other for the time given.
func (m *mix) quiet(ctx context.Context, length time.Duration) (run, host pulses, err error) {
	end := time.Now().Add(length)
	var both sync.WaitGroup
	both.Go(func() {
		for time.Until(end) > 5*time.Second && ctx.Err() == nil {
			seconds := min(time.Until(end), 280*time.Second).Seconds()
			cmd := m.exec(ctx, lasts, "/probe", "pulse", fmt.Sprintf("%.0f", seconds-3), "/tmp/sandbox", "calls")
			err = errors.Join(err, piped(cmd, run.read))
		}
	})
	var hostErr error
	both.Go(func() {
		cmd := exec.CommandContext(ctx, m.probe, "pulse", fmt.Sprintf("%.0f", length.Seconds()-3), m.path("host"))
		// A service has a session of its own; in this one's autogroup (sched(7)) it would share one place with all supervisors.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		hostErr = piped(cmd, host.read)
	})
	both.Wait()
	return run, host, errors.Join(err, hostErr)
}

func piped(cmd *exec.Cmd, read func(io.Reader)) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	read(out)
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 124 {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// audit is the size of the state folder, in bytes: log, state, filters and all.
func (m *mix) audit() (sum int64, err error) {
	err = filepath.WalkDir(m.path("state"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

// compare is one thing measured alone and in the mix.
type compare struct {
	what       string
	alone, mix []float64
}

func (m *mix) report(rows ...compare) (bad []string) {
	fmt.Printf("\n| | n alone | p50 ms | p99 ms | n mix | p50 ms | p99 ms | p99 to alone |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if len(r.alone) < 10 || len(r.mix) < 10 {
			bad = append(bad, fmt.Sprintf("%s: %d times alone and %d in the mix are too few to tell", r.what, len(r.alone), len(r.mix)))
			continue
		}
		ratio := quantile(r.mix, 0.99) / quantile(r.alone, 0.99)
		fmt.Printf("| %s | %d | %.2f | %.2f | %d | %.2f | %.2f | %.2f |\n", r.what,
			len(r.alone), quantile(r.alone, 0.5)/1e3, quantile(r.alone, 0.99)/1e3, len(r.mix), quantile(r.mix, 0.5)/1e3, quantile(r.mix, 0.99)/1e3, ratio)
		if ratio > 1.5 {
			bad = append(bad, fmt.Sprintf("%s: p99 is %.2f times that of alone", r.what, ratio))
		}
	}
	return bad
}

// told says how the hostile runs ended, which is part of what was measured.
func (m *mix) told() {
	var lines []string
	for how, n := range m.ended {
		lines = append(lines, fmt.Sprintf("%s ×%d", how, n))
	}
	slices.Sort(lines)
	fmt.Printf("hostile runs ended (kind, exit code): %s\n", strings.Join(lines, ", "))
}

func quantile(all []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
