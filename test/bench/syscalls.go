// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
)

// insideCost is where the measuring program is seen in the sandboxes.
const insideCost = "/opt/syscost"

// places are where the measuring program runs. A whole processor, because waiting for the next period of
// a cpu quota is not a cost of the call.
func (b *bench) places(rings ...int) []contender {
	bind := b.path("syscost") + ":" + insideCost
	cs := []contender{
		{name: "host", argv: []string{b.path("syscost")}},
		{name: "bwrap", argv: with(bwrapFull, "--ro-bind", b.path("syscost"), insideCost, "--", insideCost), note: "no seccomp, no Landlock"},
	}
	for _, r := range rings {
		cs = append(cs, contender{
			name: fmt.Sprintf("ring %d", r),
			argv: []string{b.agentrun, "exec", "--ring", fmt.Sprint(r), "--on-breach", "record", "--cpus", "1", "--ro-bind", bind, "--", insideCost},
		})
	}
	return cs
}

var fromHostAndBwrap = []reference{{name: "host", label: "host", added: true}, {name: "bwrap", label: "bwrap", added: true}}

// systemCalls measures single calls: what the filter, Landlock and the namespaces add.
func (b *bench) systemCalls() ([]Row, error) {
	return b.inPlaces(b.places(2, 3), "ns", 1, "calls", strconv.Itoa(b.size.callLoop))
}

// spawns measures fork, exec and wait of a static program. In every ring the kernel asks the supervisor about each fork;
// in ring 3 there is nothing to measure before it is elevated, it is refused.
func (b *bench) spawns() ([]Row, error) {
	elevated := b.places(3)[2]
	elevated.name += ", elevated to 2"
	elevated.argv = with(elevated.argv, "await")
	elevated.run = b.elevated
	return b.inPlaces(append(b.places(1, 2), elevated), "µs", 1e3, "spawn", strconv.Itoa(b.size.spawnLoop))
}

// elevated runs a contender and elevates it while it waits for that.
func (b *bench) elevated(c contender) ([]byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_, err := b.elevate(ctx, cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if werr := cmd.Wait(); err != nil || werr != nil {
		return nil, fmt.Errorf("%w: %s", errors.Join(err, werr), e.String())
	}
	return o.Bytes(), nil
}

// inPlaces runs the measuring program with args in every place in turn and makes a row of each figure
// and place.
func (b *bench) inPlaces(cs []contender, unit string, scale float64, args ...string) ([]Row, error) {
	for i := range cs {
		cs[i].argv = with(cs[i].argv, args...)
	}
	figures := map[string]samples{}
	var names []string
	absent, err := b.turns(b.size.calls, cs, func(c contender) error {
		out, err := b.once(c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			var name string
			var ns float64
			if _, err := fmt.Sscan(s.Text(), &name, &ns); err != nil {
				return fmt.Errorf("%s says %q: %w", c.name, s.Text(), err)
			}
			if figures[name] == nil {
				figures[name] = samples{}
				names = append(names, name)
			}
			figures[name].add(c.name, ns/scale)
		}
		return nil
	})
	if err != nil {
		return absent, err
	}
	var rows []Row
	for _, name := range names {
		for _, c := range cs {
			if figures[name][c.name] == nil {
				continue
			}
			row := figures[name].row(c.name, unit, fromHostAndBwrap)
			row.Name, row.Note = name+", "+c.name, c.note
			rows = append(rows, row)
		}
	}
	return append(rows, absent...), nil
}
