// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/shown"
	"agentrun/rings"
	"agentrun/supervisor"
)

// liveGlobal is what the verbs need of the global flags.
func liveGlobal() *global { return &global{caller: supervisor.OwnCaller()} }

func named(name string) func(*control.Sandbox) { return func(s *control.Sandbox) { s.Name = name } }
func ofAgent(id string) func(*control.Sandbox) { return func(s *control.Sandbox) { s.Agent = id } }
func detached(s *control.Sandbox)              { s.Detached = true }
func elevatedFor(d time.Duration) func(*control.Sandbox) {
	return func(s *control.Sandbox) {
		s.Ring = 2
		s.Elevation = &control.Elevation{ID: "loan", From: rings.Sandbox, Target: rings.Standard, ExpiresAt: liveNow.Add(d), Reason: "deploy"}
	}
}

func TestM23PSGolden(t *testing.T) {
	a := &fakeSuper{boxes: []control.Sandbox{
		box("k3x7q2m5t9w1a8c4", named("planner"), ofAgent("planner-1"), elevatedFor(59500*time.Millisecond)),
		box("p5d8s2j6v1n9b3f7", ofAgent("mailer"), func(s *control.Sandbox) {
			s.BaseRing, s.Ring, s.Quarantined, s.StartedAt = 2, 3, true, liveNow.Add(-3*time.Hour)
			s.Command = []string{"/usr/bin/python3", "-c", "import this"}
		}),
	}}
	b := &fakeSuper{boxes: []control.Sandbox{box("aaaaaaaaaaaaaaaa", func(s *control.Sandbox) { s.State, s.Usage.Memory = control.Frozen, 700<<10 })}}
	l, n := liveOn(t, a, b)
	const want = `ID                NAME     AGENT      RING     STATE      AGE   CPU   MEM  PIDS  COMMAND
p5d8s2j6v1n9b3f7  -        mailer     2→3      running Q   3h  1.5s   12M     2  /usr/bin/python3 -c "import this"
aaaaaaaaaaaaaaaa  -        -          3        frozen     90s  1.5s  700K     2  agent.py
k3x7q2m5t9w1a8c4  planner  planner-1  3→2 60s  running    90s  1.5s   12M     2  agent.py
`
	out, errs, code := liveDo(t, l, "", "ps")
	if code != 0 || errs != "" {
		t.Errorf("got code %d, %q", code, errs)
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("ps (-want +got):\n%s", diff)
	}
	if out, _, _ := liveDo(t, l, "", "ps", "-q", "--agent", "mailer"); out != "p5d8s2j6v1n9b3f7\n" {
		t.Errorf("got %q, want the agent's run", out)
	}
	if out, _, _ := liveDo(t, l, "", "ps", "-q", "--ring", "2"); out != "k3x7q2m5t9w1a8c4\n" {
		t.Errorf("got %q, want the run that is in ring 2 now", out)
	}
	var list []control.Sandbox
	out, _, _ = liveDo(t, l, "", "ps", "--state", "frozen", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].ID != "aaaaaaaaaaaaaaaa" {
		t.Errorf("got %+v, %v", list, err)
	}
	if out, _, _ := liveDo(t, l, "", "ps", "--session", "nobody", "--json"); out != "[]\n" {
		t.Errorf("got %q, want an empty list", out)
	}
	n.silent = errHung
	for _, args := range [][]string{{"ps"}, {"ps", "-q"}, {"ps", "--json"}, {"top", "--once"}} {
		out, errs, code := liveDo(t, l, "", args...)
		if code != 1 || !strings.Contains(errs, "supervisor zzz") || !strings.Contains(out, "k3x7q2m5t9w1a8c4") {
			t.Errorf("%v: got code %d, %q, %q; want the others' runs, and 1 for the one that doesn't answer", args, code, out, errs)
		}
	}
}

func TestM23PSFitsTheTerminal(t *testing.T) {
	list := []control.Sandbox{
		box("k3x7q2m5t9w1a8c4", named(strings.Repeat("n", 200)), ofAgent(strings.Repeat("a", 200)), func(s *control.Sandbox) { s.Command = []string{strings.Repeat("c", 500)} }),
		box("p5d8s2j6v1n9b3f7", named("日本語のなまえ日本語"), ofAgent("e\u0301e\u0301")),
	}
	for _, width := range []int{20, 80, 100, 250} {
		for line := range strings.Lines(psTable(list, width, liveNow)) {
			if n := shown.Cells(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
	}
	if text := psTable(list, narrow, liveNow); !strings.Contains(text, "k3x7q2m5t9w1a8c4") || !strings.Contains(text, "…") {
		t.Errorf("got %q, want whole ids and cut names", text)
	}
	list = append(list, box("k3x7q2m5t9zzzzzz"), box("k3"))
	if text := psTable(list, 80, liveNow); !strings.Contains(text, "k3x7q2m5t9w  ") || !strings.Contains(text, "agent.py") {
		t.Errorf("got %q, want as much of the ids as tells them apart, and room for the command", text)
	}
}

// M-3: what a run waits for is told, and where no kernel tells it, that.
func TestM3PressureIsTold(t *testing.T) {
	for _, tt := range []struct {
		p              *control.Pressure
		inspect, waits string
	}{
		{nil, "not told for a run by this kernel (cgroup v1, or without PSI)", "-"},
		{&control.Pressure{}, "of the last 10 s waited for cpu 0%, memory 0%, io 0%", "mem 0%"},
		{&control.Pressure{CPU: 30, Memory: 20, IO: 10}, "of the last 10 s waited for cpu 30%, memory 20%, io 10%", "cpu 30%"},
		{&control.Pressure{Memory: 97.4}, "of the last 10 s waited for cpu 0%, memory 97%, io 0%", "mem 97%"},
		{&control.Pressure{IO: 1}, "of the last 10 s waited for cpu 0%, memory 0%, io 1%", "io 1%"},
	} {
		if got := pressureText(tt.p); got != tt.inspect {
			t.Errorf("%+v: got %q", tt.p, got)
		}
		b := box("one")
		b.Usage.Pressure = tt.p
		text := strings.Join(topLines(look{At: liveNow, Sandboxes: []topRun{{Sandbox: b}}}, 0), "\n")
		if !strings.Contains(text, "  WAITS  COMMAND") || !strings.Contains(text, tt.waits+"  agent.py") {
			t.Errorf("%+v: top says\n%s", tt.p, text)
		}
	}
}

func TestM23InspectGolden(t *testing.T) {
	b := box("k3x7q2m5t9w1a8c4", named("planner"), ofAgent("planner-1"), elevatedFor(time.Minute))
	b.EndsAt, b.Usage.Pressure = liveNow.Add(150*time.Second), &control.Pressure{CPU: 12.5, Memory: 3}
	f := &fakeSuper{boxes: []control.Sandbox{b}, inside: control.Inspection{
		Sandbox: b, Plan: json.RawMessage(`{"digest":"f39ee389","tty":false}`), Refused: map[string]uint64{"mount": 1, "clone": 2},
		Processes: []control.Process{
			{PID: 100, Inside: 2, Parent: 99, User: 1000, Threads: 1, State: "sleeping", StartedAt: liveNow.Add(-90 * time.Second), Name: "python3", Command: []string{"python3", "a b"}, First: true, From: "command"},
			{PID: 4101, Inside: 17, Parent: 98, User: -1, Threads: 12, State: "zombie", StartedAt: liveNow, Name: "sh\x1b[2J", From: "entered"},
		},
	}}
	l, _ := liveOn(t, f)
	const want = `id          k3x7q2m5t9w1a8c4
name        planner
agent       planner-1
state       running
ring        3→2 60s (admitted to 3, profile ring3)
elevation   loan to ring 2 until 2026-11-21T12:01:00Z: deploy
command     agent.py
started     2026-11-21T11:58:30Z, 90s ago
pid         100, supervisor 99
ends        2026-11-21T12:02:30Z, in 2m30s
limits      cpu 1, memory 256MiB, pids 64
usage       cpu time 1.5s, memory 12M (peak 20M), pids 2, output 4K
pressure    of the last 10 s waited for cpu 12%, memory 3%, io 0%
plan        f39ee389
refused     clone 2, mount 1

INSIDE   PID  PARENT  USER  THREADS  STATE     AGE  FROM     COMMAND
     2   100      99  1000        1  sleeping  90s  first    python3 "a b"
    17  4101      98     -       12  zombie     0s  entered  [sh\u001b[2J]
`
	out, errs, code := liveDo(t, l, "", "inspect", "k3")
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("code %d, %s; inspect (-want +got):\n%s", code, errs, diff)
	}
	if out, _, code := liveDo(t, l, "", "ps", "planner"); code != 0 || !strings.HasSuffix(want, "\n\n"+out) || !strings.HasPrefix(out, "INSIDE") {
		t.Errorf("ps REF: code %d\n%s", code, out)
	}
	for line, want := range map[string]int{"ps nobody": 1, "ps planner --all": 2, "ps planner other": 2, "ps -q planner": 2} {
		if out, errs, code := liveDo(t, l, "", strings.Fields(line)...); code != want || out != "" || !strings.Contains(errs, "hint: ") {
			t.Errorf("%s: code %d %s%s", line, code, out, errs)
		}
	}
	var in control.Inspection
	out, _, _ = liveDo(t, l, "", "inspect", "planner", "--json")
	if err := json.Unmarshal([]byte(out), &in); err != nil || len(in.Processes) != 2 || in.Processes[1].Name != "sh\x1b[2J" {
		t.Errorf("got %+v, %v", in, err)
	}
}

// Each line: what is typed, the exit code, what is said, and what supervisors were asked to do.
func TestM23Verbs(t *testing.T) {
	deny := map[string]error{
		"freeze two":  &control.Error{Code: control.CodeEnded, Message: "run two has ended"},
		"pause two":   &control.Error{Code: control.CodeConflict, Message: "run two is paused already", Hint: "agentrun inspect REF"},
		"elevate two": &control.Error{Code: string(rings.CodeInsufficientTrust), Message: "score 0.3 is below 0.5"},
		"elevate one": nil,
		"revoke two":  &control.Error{Code: control.CodeNotFound, Message: "no active elevation", Hint: "there is none"},
		"kill two":    &control.Error{Code: control.CodeInternal, Message: "cgroup: busy"},
	}
	for _, tt := range []struct {
		line string
		code int
		says string // in stdout or stderr
		did  string
	}{
		{"freeze one", 0, "run one is frozen\n", "freeze one"},
		{"freeze one one three", 0, "run three (third) is frozen", "freeze one,freeze three"},
		{"freeze two one", 1, "agentrun: freeze run two: run two has ended (run_ended)\nhint: agentrun ps", "freeze two,freeze one"},
		{"freeze one nobody", 1, `agentrun: run "nobody": no live run "nobody" (not_found)` + "\nhint: ", ""},
		{"freeze two one --json", 1, `"done": false`, "freeze two,freeze one"},
		{"freeze", 2, "which run?\nhint: ", ""},
		{"thaw third", 0, "goes on", "thaw three"},
		{"thaw", 2, "which run?", ""},
		{"pause one", 0, "run one is paused, 3M of its memory given back\n", "pause one"},
		{"pause one --json", 0, `"given_back_bytes": 3145728`, "pause one"},
		{"pause two one", 1, "pause run two: run two is paused already (conflict)\nhint: agentrun inspect", "pause two,pause one"},
		{"pause", 2, "which run?", ""},
		{"resume third", 0, "goes on", "resume three"},
		{"resume", 2, "which run?", ""},
		{"signal one --signal hup", 0, "got SIGHUP", "signal one 1"},
		{"signal one", 0, "got SIGTERM", "signal one 15"},
		{"signal one --signal 37", 0, "got signal 37", "signal one 37"},
		{"signal one --signal 65", 2, "is no signal", ""},
		{"signal one --signal KILL", 2, "hint: agentrun kill", ""},
		{"signal one --signal 9", 2, "hint: agentrun kill", ""},
		{"signal one --signal SIGSTOP", 2, "hint: agentrun freeze", ""},
		{"signal one --signal NOPE", 2, "is no signal", ""},
		{"update one --memory 512M", 0, "run one now has memory 512MiB; before: cpu 1, memory 256MiB, pids 64", "update one {0 536870912 0} false"},
		{"update one --cpus 0.5 --pids 32 --dry-run", 0, "would have cpu 0.5, pids 32", "update one {0.5 0 32} true"},
		{"update one", 2, "nothing to change", ""},
		{"update one --memory 64M", 0, "run one now has memory 64MiB", "update one {0 67108864 0} false"},
		{"update one --memory lots", 2, "--memory", ""},
		{"update one --cpus 0.001", 2, "--cpus", ""},
		{"update one --cpus NaN", 2, "--cpus", ""},
		{"update one --cpus 0", 2, "--cpus", ""},
		{"update one --pids 2", 2, "--pids", ""},
		{"update one --pids=-1", 2, "--pids", ""},
		{"update one --pids 3.5", 2, "--pids", ""},
		{"update one --memory 4G", 0, "run one now has memory 4GiB", "update one {0 4294967296 0} false"}, // its supervisor knows the ranges
		{"extend one 1h", 0, "run one never ends by its time limit; cpu time none in all", "extend one 1h0m0s 0s"},
		{"extend one 30m --cpu-time 10m --reason slow", 0, "cpu time 600s in all", "extend one 30m0s 10m0s slow"},
		{"extend one --cpu-time 10m", 0, "cpu time 600s in all", "extend one 0s 10m0s"},
		{"extend one", 2, "nothing to add", ""},
		{"extend one 0s", 2, "want a time to add", ""},
		{"extend one 60", 2, "want a number with a unit", ""},
		{"extend one -1h", 2, "-1h", ""},
		{"extend one none", 2, "want a time to add", ""},
		{"extend one 1h 2h", 2, "takes 2 argument(s), got 3", ""},
		{"extend one 1h --reason=", 2, "--reason is missing", ""},
		{"update one three --pids 32", 2, "takes 1 argument", ""},
		{"elevate one --to 2 --ttl 60s --reason x", 0, "run one is in ring 2 until 2026-11-21T12:01:00Z (60s): elevation loan", "elevate one ring 2 1m0s x false"},
		{"elevate one --to 1 --reason x --dry-run", 0, "would be in ring 1 for 300s", "elevate one ring 1 0s x true"},
		{"elevate two --to 2 --reason x", 1, "agentrun: elevate run two to ring 2: score 0.3 is below 0.5 (insufficient_trust)\nhint: agentrun score", "elevate two ring 2 0s x false"},
		{"elevate one --to 0 --reason x", 2, "H-12", ""},
		{"elevate one --to 3 --reason x", 2, "--to", ""},
		{"elevate one --to two --reason x", 2, "--to", ""},
		{"elevate one --reason x", 2, "--to is missing", ""},
		{"elevate one --to 2", 2, "--reason is missing", ""},
		{"elevate one --to 2 --reason x --ttl 0s", 2, "--ttl", ""},
		{"elevate one --to 2 --reason x --ttl 2h", 2, "--ttl", ""},
		{"elevate one --to 2 --reason x --ttl soon", 2, "--ttl", ""},
		{"elevate one three --to 2 --reason x", 2, "takes 1 argument", ""},
		{"elevate one --too 2", 2, "--help lists the flags", ""},
		{"revoke one", 0, "run one has no elevation any more", "revoke one"},
		{"revoke one --id loan", 0, "no elevation", "revoke one loan"},
		{"revoke two", 1, "no active elevation (not_found)\nhint: there is none", "revoke two"},
		{"kill one", 0, "run one is dead: 3 processes killed in 12.3ms\n", "kill one false"},
		{"kill one gone", 1, `run "gone"`, "kill one false"},
		{"kill two one", 1, "kill run two: cgroup: busy (internal)", "kill one false,kill two false"},
		{"kill --agent planner-1 --reason odd", 0, "run one is dead", "kill planner-1 false odd"},
		{"kill --agent nobody", 0, "no such run is live", "kill nobody false"},
		{"kill --session s1", 0, "no such run is live", "kill s1 false"},
		{"kill --all", 0, "run three is dead", "kill true"}, // not a terminal: nobody to ask
		{"kill --all --json", 0, `"processes_killed": 3`, "kill true"},
		{"kill", 2, "which runs?", ""},
		{"kill one --all", 2, "more than one way", ""},
		{"kill --all --agent a", 2, "more than one way", ""},
		{"kill --agent=", 2, "--agent", ""},
		{"kill --session a/b", 2, "--session", ""},
		{"inspect gone", 1, "not_found", ""},
		{"inspect", 2, "which run?", ""},
		{"ps one --all", 2, "--all is of the list of runs", ""},
		{"ps --ring 0", 2, "--ring", ""},
		{"ps --state dead", 2, "--state", ""},
		{"ps --agent=", 2, "--agent is empty", ""},
		{"top --interval 1ms", 2, "--interval", ""},
		{"top --interval never", 2, "--help", ""},
		{"events one two", 2, "takes 1 argument", ""},
		{"events --since x", 2, "--since", ""},
		{"events gone", 1, "not_found", ""},
		{"wait gone", 125, "not_found", ""},
		{"wait", 125, "which run?", ""},
		{"attach gone", 125, "not_found", ""},
		{"attach one", 125, "hint: agentrun exec --detach", ""},
		{"output one", 1, "hint: agentrun exec --detach", ""},
		{"output", 2, "which run?", ""},
		{"logs gone", 1, "not_found", ""},
		{"quarantine one", 2, "--reason is missing", ""},
		{"quarantine --reason x", 2, "want a run or --agent", ""},
		{"quarantine one --agent a --reason x", 2, "want a run or --agent", ""},
		{"quarantine two --reason x", 1, "run two belongs to no agent", ""},
		{"quarantine gone --reason x", 1, "not_found", ""},
		{"release one", 2, "--witness is missing", ""},
		{"score", 2, "SCORE", ""},
		{"score one", 2, "SCORE", ""},
		{"quarantine", 2, "--reason is missing", ""},
		{"release --witness -", 2, "want a run or --agent", ""},
		{"inspect --json=x one", 2, "hint: ", ""},
		{"score one high", 2, "SCORE", ""},
		{"score one 1.5", 2, "SCORE", ""},
		{"score one NaN", 2, "SCORE", ""},
		{"score one 0.5 --agent b", 2, "want a run or --agent", ""},
		{"score --agent b/c 0.5", 2, "--agent", ""},
	} {
		f := &fakeSuper{boxes: []control.Sandbox{box("one", ofAgent("planner-1")), box("two"), box("three", named("third"))}, refuse: deny}
		l, _ := liveOn(t, f)
		out, errs, code := liveDo(t, l, "", strings.Fields(tt.line)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: got %d, %q, %q; want %d and %q", tt.line, code, out, errs, tt.code, tt.says)
		}
		if code != 0 && tt.code != 1 && !strings.Contains(errs, "hint: ") {
			t.Errorf("%s: no hint: %q", tt.line, errs)
		}
		did := f.asked()
		slices.Sort(did)
		want := strings.Split(tt.did, ",")
		slices.Sort(want)
		if got := strings.Join(did, ","); got != strings.Join(want, ",") {
			t.Errorf("%s: asked for %q, want %q", tt.line, got, want)
		}
	}
}

func TestH22KillSaysWhatIsNotKnown(t *testing.T) {
	for result, want := range map[string]string{
		`{"processes_killed":2,"processes_dead":false,"duration":1}`: "not known to be dead",
		`"what"`: "not known to be dead",
		`{"processes_killed":2,"processes_dead":true,"duration":1,"errors":[{"stage":"handler","name":"save\u001b[2J","message":"hung"}]}`: `handler save\u001b[2J: hung`,
	} {
		f := &fakeSuper{boxes: []control.Sandbox{box("one")}, kills: map[string]string{"one": result}}
		l, _ := liveOn(t, f)
		out, errs, code := liveDo(t, l, "", "kill", "one")
		if dead := strings.Contains(out, "is dead"); !strings.Contains(errs, want) || dead == (code != 0) {
			t.Errorf("%s: got %d, %q, %q; want %q", result, code, out, errs, want)
		}
	}
}

// A supervisor that doesn't answer may have runs of that agent: nobody may think they are dead.
func TestM23KillNamesSilentSupervisors(t *testing.T) {
	hung := &fakeSuper{boxes: []control.Sandbox{box("two", ofAgent("a"))}, refuse: map[string]error{"kill": errHung}}
	ended := &fakeSuper{refuse: map[string]error{"kill": &control.Error{Code: control.CodeNotFound, Message: "has ended"}}}
	l, n := liveOn(t, &fakeSuper{boxes: []control.Sandbox{box("one", ofAgent("a"))}}, hung, ended)
	out, errs, code := liveDo(t, l, "", "kill", "--agent", "a")
	if code != 1 || !strings.Contains(out, "run one is dead") || !strings.Contains(errs, "supervisor zzz") || strings.Contains(errs, "has ended") {
		t.Errorf("got %d, %q, %q", code, out, errs)
	}
	n.supers, n.silent = n.supers[:1], errHung
	if _, errs, code := liveDo(t, l, "", "kill", "--all"); code != 1 || !strings.Contains(errs, "supervisor zzz") {
		t.Errorf("got %d, %q", code, errs)
	}
}

func TestM23Wait(t *testing.T) {
	f := &fakeSuper{
		boxes: []control.Sandbox{box("ok"), box("bad"), box("out"), box("lost"), box("odd")},
		status: map[string]string{
			"ok": `{"id":"ok","state":"exited","exit_code":0}`, "bad": `{"id":"bad","state":"exited","exit_code":3}`,
			"out": `{"id":"out","state":"timeout","exit_code":124,"reason":"wall clock\u001b[2J"}`, "odd": `{}`,
		},
		refuse: map[string]error{"wait lost": io.ErrUnexpectedEOF},
	}
	l, _ := liveOn(t, f)
	for _, tt := range []struct {
		line string
		code int
		errs string
	}{
		{"wait ok", 0, ""},
		{"wait bad", 3, ""},
		{"wait ok out bad", 124, `timeout: wall clock\u001b[2J`},
		{"wait bad out", 3, "timeout"},
		{"wait lost", 125, "unexpected EOF"},
		{"wait odd", 125, "doesn't say how it ended"},
	} {
		_, errs, code := liveDo(t, l, "", strings.Fields(tt.line)...)
		if code != tt.code || !strings.Contains(errs, tt.errs) {
			t.Errorf("%s: got %d, %q; want %d", tt.line, code, errs, tt.code)
		}
	}
	if out, _, _ := liveDo(t, l, "", "wait", "bad", "--json"); out != `{"id":"bad","state":"exited","exit_code":3}`+"\n" {
		t.Errorf("got %q", out)
	}
}

// The verbs do to a run's agent what agentrun agent does.
func TestH31HoldByRun(t *testing.T) {
	f := &fakeSuper{boxes: []control.Sandbox{box("one", ofAgent("planner-1"))}}
	l, _ := liveOn(t, f)
	out, errs, code := liveDo(t, l, "", "score", "one", "0.97", "--consensus", "--json")
	if code != 0 || !strings.Contains(out, `"agent_id": "planner-1"`) || !strings.Contains(out, `"has_consensus": true`) {
		t.Errorf("got %d, %q, %q", code, out, errs)
	}
	out, errs, code = liveDo(t, l, "", "quarantine", "one", "--reason", "odd calls")
	if code != 0 || !strings.Contains(out, "agent planner-1 is in quarantine") {
		t.Errorf("got %d, %q, %q", code, out, errs)
	}
	if out, _, code = liveDo(t, l, "", "score", "--agent", "planner-1", "0.2"); code != 0 || !strings.Contains(out, "ring        3") {
		t.Errorf("got %d, %q", code, out)
	}
	if _, errs, code = liveDo(t, l, "no attestation", "release", "one", "--witness", "-"); code != 1 || !strings.Contains(errs, "hint: ") {
		t.Errorf("got %d, %q; want a refusal", code, errs)
	}
	if got := f.asked(); len(got) > 0 {
		t.Errorf("a supervisor was asked for %q; the state is what they follow", got)
	}
}

func TestM23Completion(t *testing.T) {
	f := &fakeSuper{boxes: []control.Sandbox{box("k3x7q2m5t9w1a8c4", named("planner")), box("p5d8s2j6v1n9b3f7", named("$(rm -rf ~)"))}}
	l, _ := liveOn(t, f)
	var all []*cli.Command
	for _, c := range l.commands() {
		for _, sub := range c.Subcommands { // the words of their group have the example
			sub.Description = c.Description
		}
		if all = append(all, c.Subcommands...); c.Subcommands == nil {
			all = append(all, c)
		}
	}
	for _, c := range all {
		if !strings.Contains(c.Description, "agentrun ") || c.OnUsageError == nil || !strings.Contains(c.Description, "Exit code") {
			t.Errorf("%s: no example, exit code or hint in its help", c.Name)
		}
		if c.ArgsUsage != "" && c.BashComplete == nil {
			t.Errorf("%s: doesn't complete the runs it takes", c.Name)
		}
	}
	var out strings.Builder
	l.completeRuns(testContext(t, &out))
	if got, want := out.String(), "k3x7q2m5t9w1a8c4\nplanner\np5d8s2j6v1n9b3f7\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
