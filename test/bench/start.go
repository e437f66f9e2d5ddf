// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const exec3 = "agentrun exec --ring 3"

// bwrapView shows the host's programs and nothing else.
var bwrapView = strings.Fields("bwrap --unshare-all --ro-bind /usr /usr" +
	" --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64")

// bwrapFull adds what agentrun's view has too.
var bwrapFull = append(bwrapView[:len(bwrapView):len(bwrapView)],
	strings.Fields("--proc /proc --dev /dev --tmpfs /tmp --new-session --die-with-parent --cap-drop ALL")...)

// coldStart times whole sandboxes around a program that does nothing.
func (b *bench) coldStart() ([]Row, error) {
	root := filepath.Join(b.dir, "floor-root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	bundle, err := b.bundle([]string{"/bin/true"})
	if err != nil {
		return nil, fmt.Errorf("bundle for runc and crun: %w", err)
	}
	return b.race([]contender{
		{name: exec3, argv: b.exec(3, "/bin/true")},
		{name: "floor", argv: []string{b.path("floor"), root, b.path("true")}, note: "static C: clone3, tmpfs root, pivot_root, exec; no sandbox"},
		{name: "bwrap --unshare-all", argv: with(bwrapView, "--", "/bin/true"), note: "no cgroup, no seccomp, no /proc, no /dev"},
		{name: "bwrap, fuller view", argv: with(bwrapFull, "--", "/bin/true"), note: "with /proc, /dev, /tmp; no cgroup, no seccomp"},
		b.oci("runc", bundle),
		b.oci("crun", bundle),
	}, []reference{{name: "runc run", label: "runc"}, {name: "bwrap --unshare-all", label: "bwrap"}, {name: "floor", label: "floor"}})
}

func (b *bench) exec(ring int, command ...string) []string {
	return with([]string{b.agentrun, "exec", "--ring", fmt.Sprint(ring), "--"}, command...)
}

func with(argv []string, more ...string) []string {
	return append(argv[:len(argv):len(argv)], more...)
}

// bareStart times what the binaries cost before they do anything.
func (b *bench) bareStart() ([]Row, error) {
	empty, err := b.emptyGo()
	if err != nil {
		return nil, err
	}
	return b.race([]contender{
		{name: "agentrun --version", argv: []string{b.agentrun, "--version"}},
		{name: "empty Go program", argv: []string{empty}},
		{name: "bwrap --version", argv: []string{"bwrap", "--version"}},
		{name: "runc --version", argv: []string{"runc", "--version"}},
	}, []reference{{name: "empty Go program", label: "empty Go", added: true}})
}

// launchSteps reads agentrun's own clock: what each step of a launch took, and what lies outside of them.
func (b *bench) launchSteps() ([]Row, error) {
	times, cpus := samples{}, samples{}
	var order []string
	argv := with([]string{b.agentrun, "--log-level", "debug", "--log-format", "json"}, b.exec(3, "/bin/true")[1:]...)
	for range b.size.steps {
		began := time.Now()
		_, log, err := b.output(argv)
		whole := time.Since(began)
		if err != nil {
			return nil, err
		}
		steps, launch, err := parseSteps(log)
		if err != nil {
			return nil, err
		}
		order = order[:0]
		for _, s := range steps {
			order = append(order, s.name)
			times.add(s.name, s.took.Seconds()*1e3)
			cpus.add(s.name, s.cpu.Seconds()*1e3)
		}
		order = append(order, allSteps, outside)
		times.add(allSteps, launch.Seconds()*1e3)
		times.add(outside, (whole-launch).Seconds()*1e3)
	}
	var rows []Row
	for _, name := range order {
		if len(times[name]) != b.size.steps {
			return nil, fmt.Errorf("step %q in %d of %d launches", name, len(times[name]), b.size.steps)
		}
		row := times.row(name, "ms", nil)
		row.Note = stepNotes[name]
		if cpu := cpus[name]; len(cpu) > 0 {
			row.CPU = cpus.row(name, "ms", nil).Median
		}
		rows = append(rows, row)
	}
	return rows, nil
}

const (
	allSteps = "the launch"
	outside  = "outside the launch"
)

var stepNotes = map[string]string{
	"probe":  "the promises, looked up in the live process",
	allSteps: "as agentrun reports it: all steps, and loading the filter",
	outside:  "start of the binary, plan, the agent's run, taking down, exit",
}

type stepTime struct {
	name string
	took time.Duration
	cpu  time.Duration // of the launching thread
}

// parseSteps reads the log of one run at level debug, as JSON lines.
func parseSteps(log []byte) (steps []stepTime, launch time.Duration, err error) {
	for line := range strings.Lines(string(log)) {
		var l struct {
			Msg    string
			Step   string
			Took   time.Duration
			CPU    time.Duration
			Launch time.Duration
		}
		if json.Unmarshal([]byte(line), &l) != nil {
			continue // the agent's stderr is mixed in
		}
		switch l.Msg {
		case "launch":
			steps = append(steps, stepTime{l.Step, l.Took, l.CPU})
		case "started":
			launch = l.Launch
		}
	}
	if len(steps) == 0 || launch == 0 {
		return nil, 0, errors.New("the log names no launch steps")
	}
	return steps, launch, nil
}
