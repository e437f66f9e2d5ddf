// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/shown"
)

func testContext(t *testing.T, out io.Writer) *cli.Context {
	t.Helper()
	c := cli.NewContext(&cli.App{Writer: out}, nil, nil)
	c.Context = t.Context()
	return c
}

// What a terminal would obey: ESC and 8-bit CSI, line ends, bells, backspaces, directions, and bytes that are no text.
const hostile = "x\x1b[2J\x1b]0;owned\a\u009b31m\r\n\b\u202e\u2066\u200b\xff\x9b2J"

func obeys(text string) bool {
	if !utf8.ValidString(text) {
		return true
	}
	return strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2066' || r == '\u200b'
	})
}

// THREATS, supervisor: an operator looks at what hostile agents have named; none of it acts on the terminal, nor makes lines.
func TestM23HostileNamesStayText(t *testing.T) {
	b := box("one", named(hostile), ofAgent(hostile), detached, func(s *control.Sandbox) {
		s.Session, s.Profile, s.Command, s.State = hostile, hostile, []string{hostile, hostile}, control.State(hostile)
		s.Ring, s.Elevation = 2, &control.Elevation{ID: hostile, Reason: hostile, ExpiresAt: liveNow}
	})
	f := &fakeSuper{
		boxes: []control.Sandbox{b},
		inside: control.Inspection{
			Sandbox: b, Plan: json.RawMessage(`{"digest":"\u001b[2J"}`), Processes: []control.Process{{PID: 1, Name: hostile}, {PID: 2, Name: hostile, Command: []string{hostile, hostile}, State: hostile, From: hostile}}, Refused: map[string]uint64{hostile: 1},
		},
		events: []control.Event{{Seq: 1, Kind: hostile, ID: hostile, Data: map[string]string{hostile: hostile}}},
		status: map[string]string{"one": `{"state":"policy","exit_code":137,"reason":"\u001b[2J\nagentrun: all is well"}`},
		kills:  map[string]string{"one": `{"processes_dead":false}`},
		refuse: map[string]error{"freeze": &control.Error{Code: hostile, Message: hostile, Hint: hostile}, "thaw": context.DeadlineExceeded},
	}
	l, n := liveOn(t, f)
	n.silent = &control.Error{Message: "supervisor x\x1b[2J"}
	lines := map[string]int{"ps": 2, "ps one": 3, "inspect one": 22, "top --once": 6, "events": 1}
	for _, line := range []string{
		"ps", "ps --json", "ps one", "ps one --json", "inspect one", "inspect one --json", "top --once", "top --once --json", "events", "events --json", "events one",
		"freeze one", "freeze one --json", "thaw one", "kill one", "kill one --json", "elevate one --to 2 --reason x", "update one --pids 32",
		"wait one", "wait one --json", "quarantine one --reason x", "signal one",
	} {
		out, errs, _ := liveDo(t, l, "", strings.Fields(line)...)
		if obeys(out) || obeys(errs) {
			t.Errorf("%s: a terminal would obey %q %q", line, out, errs)
		}
		if want := lines[line]; want > 0 && strings.Count(out, "\n") > want {
			t.Errorf("%s: %d lines, want at most %d: %q", line, strings.Count(out, "\n"), want, out)
		}
		if strings.Contains(errs, "\nagentrun: all is well") {
			t.Errorf("%s: an agent's text is a line of ours: %q", line, errs)
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add(hostile, 40)
	f.Add("日本語\u0301", 3)
	f.Fuzz(func(t *testing.T, text string, width int) {
		if width < 1 || width > 500 {
			return
		}
		b := box("one", named(text), ofAgent(text), func(s *control.Sandbox) { s.Command = []string{text, text} })
		out := psTable([]control.Sandbox{b}, width, liveNow)
		if obeys(out) || strings.Count(out, "\n") != 2 {
			t.Fatalf("%q at %d: got %q", text, width, out)
		}
		for line := range strings.Lines(out) {
			if n := shown.Cells(strings.TrimSuffix(line, "\n")); n > width {
				t.Fatalf("%q: a line of %d at width %d", text, n, width)
			}
		}
	})
}

func TestM23OutputOnATerminal(t *testing.T) {
	f := &fakeSuper{boxes: []control.Sandbox{box("one", detached)}, output: "a\tb\r\nüber 日本\x1b[2J\xff\n\xe6"}
	l, _ := liveOn(t, f)
	var raw, safe strings.Builder
	if err := l.writeOutput(t.Context(), "one", false, &raw, false); err != nil || raw.String() != f.output {
		t.Errorf("got %q, %v; want the bytes as they are", raw.String(), err)
	}
	if err := l.writeOutput(t.Context(), "one", true, &safe, true); err != nil || safe.String() != "a\tb\nüber 日本\\u001b[2J\ufffd\n\ufffd" {
		t.Errorf("got %q, %v", safe.String(), err)
	}
}

func TestM23Top(t *testing.T) {
	f := &fakeSuper{boxes: []control.Sandbox{box("idle"), box("busy"), box("new")}}
	l, _ := liveOn(t, f)
	before := look{At: liveNow.Add(-2 * time.Second), used: map[string]time.Duration{"idle": 1500 * time.Millisecond, "busy": 500 * time.Millisecond}}
	v := l.look(t.Context(), func(control.Sandbox) bool { return true }, before)
	var got []string
	for _, r := range v.Sandboxes {
		got = append(got, r.ID)
	}
	if strings.Join(got, " ") != "busy idle new" || v.Sandboxes[0].CPUPercent != 50 || v.Sandboxes[2].CPUPercent != 0 {
		t.Errorf("got %v, %v; want the busiest first, and 0 for one seen once", got, v.Sandboxes)
	}
	lines := topLines(v, 60)
	if len(lines) != 6 || !strings.Contains(lines[0], "3 runs") || !strings.Contains(lines[1], "cpu 50.0%") {
		t.Errorf("got %q", lines)
	}
	if text := frame(lines, 4); strings.Count(text, "\r\n") != 3 || strings.HasSuffix(text, "\n") || !strings.HasPrefix(text, topLeft) {
		t.Errorf("got %q, want 4 lines that don't scroll", text)
	}
}
