// SPDX-License-Identifier: Apache-2.0

package sagafile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/sagas"
)

const trip = `name: trip
agent: planner
session: s_1
steps:
  - id: build
    execute:
      command: [make, "1"]
      ring: 2
      profile: ring2
      workspace: src
    undo:
      command: [make, clean]
    max_retries: 0
  - id: tell
    execute_api: http://localhost:8080/tell?a=b
    undo_api: http://[::1]/untell
    input: {text: hi, n: 1.5, on: true, none: ~, list: [1, {a: b}]}
    idempotent: true
    retry_delay_seconds: 0
    step_timeout_seconds: 10
`

func ptr[T any](v T) *T { return &v }

func TestParse(t *testing.T) {
	f, err := Parse("trip.yaml", []byte(trip), "/srv")
	if err != nil {
		t.Fatal(err)
	}
	want := File{Name: "trip", Agent: "planner", Session: "s_1", Steps: []Step{
		{ID: "build", Execute: &Command{Command: []string{"make", "1"}, Ring: 2, Profile: "ring2", Workspace: "/srv/src"},
			Undo: &Command{Command: []string{"make", "clean"}, Ring: 3}, MaxRetries: ptr(0)},
		{ID: "tell", ExecuteAPI: "http://localhost:8080/tell?a=b", UndoAPI: "http://[::1]/untell", Idempotent: true,
			Input:      map[string]any{"text": "hi", "n": 1.5, "on": true, "none": nil, "list": []any{1.0, map[string]any{"a": "b"}}},
			RetryDelay: ptr(0.0), StepTimeout: ptr(10.0)},
	}}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	again(t, f)
}

// again holds f to the promise that the journal gives it back.
func again(t *testing.T, f File) {
	t.Helper()
	def, err := f.Definition()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(def)
	if err != nil {
		t.Fatalf("%v\n%s", err, def)
	}
	if diff := cmp.Diff(f, back); diff != "" {
		t.Errorf("from the journal (-want +got)\n%s", diff)
	}
}

// Each field, wrong: line, path and what is wanted.
func TestProblems(t *testing.T) {
	step := func(lines string) string {
		return "name: a\nsteps:\n  - id: x\n    " + strings.ReplaceAll(lines, "\n", "\n    ") + "\n"
	}
	const run = "execute: {command: [ls]}\n"
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", "f: empty"},
		{"comment only", "# nothing\n", "f: empty"},
		{"null", "~\n", "f: empty"},
		{"not YAML", "a: [", "f:1: not YAML: did not find"},
		{"not UTF-8", "name: \xff", "f: not UTF-8"},
		{"large", strings.Repeat("#", MaxFileBytes+1), "f: longer than 262144 bytes"},
		{"two documents", trip + "---\na: b\n", "more than one document"},
		{"list", "- a\n", "f:1: want a mapping"},
		{"no name", "steps: [{id: x, execute: {command: [ls]}}]\n", "name: missing"},
		{"name", "name: 1\n", "f:1: name: want text"},
		{"name 2", "name: a/b\n", `f:1: name: "a/b" is no identifier`},
		{"agent", "agent: a b\n", "f:1: agent:"},
		{"session", "session: a.b\n", `f:1: session: "a.b" is no session id`},
		{"no steps", "name: a\n", "steps: 0 steps, want 1 to 256"},
		{"steps", "name: a\nsteps: {}\n", "f:2: steps: want a list"},
		{"unknown", "name: a\nretries: 1\n", "f:2: retries: unknown key; known: agent, name, session, steps"},
		{"twice", "name: a\nname: b\n", "f:2: name: given twice, first on line 1"},
		{"anchor", "name: &x a\n", "anchors"},
		{"tag", "name: !!str 1\n", "tags"},
		{"merge", "name: a\n<<: {agent: b}\n", "a key is a plain word"},
		{"step id", step(run) + "  - id: x\n    execute: {command: [ls]}\n", `f:6: steps[1].id: "x" is the id of steps[0] too`},
		{"nothing", "name: a\nsteps:\n  - id: x\n", "f:3: steps[0]: does nothing"},
		{"both", step(run + "execute_api: http://127.0.0.1/"), "steps[0]: has both execute"},
		{"both undos", step(run + "undo: {command: [ls]}\nundo_api: http://127.0.0.1/"), "steps[0]: has both undo"},
		{"command", step("execute: {command: ls}"), "f:4: steps[0].execute.command: want a list"},
		{"no program", step("execute: {command: []}"), "steps[0].execute.command: names no program"},
		{"flag", step("execute: {command: [--help]}"), "is no name of a program"},
		{"number", step("execute: {command: [sleep, 010]}"), "steps[0].execute.command[1]: want text, got int"},
		{"NUL", step(`execute: {command: [ls, "\0"]}`), "steps[0].execute.command[1]: contains a NUL"},
		{"ring 0", step("execute: {command: [ls], ring: 0}"), "steps[0].execute.ring: 0, want 1, 2 or 3"},
		{"ring 4", step("execute: {command: [ls], ring: 4}"), "ring: 4"},
		{"ring true", step("execute: {command: [ls], ring: true}"), "ring: want a whole number"},
		{"ring text", step(`execute: {command: [ls], ring: "2"}`), "ring: want a whole number"},
		{"ring hex", step("execute: {command: [ls], ring: 0x2}"), "ring: want a whole number"},
		{"profile", step("execute: {command: [ls], profile: --x}"), "is no name of a profile"},
		{"workspace", step(`execute: {command: [ls], workspace: "a\nb"}`), "is no path"},
		{"https", step("execute_api: https://127.0.0.1/"), "https isn't spoken here"},
		{"elsewhere", step("execute_api: http://192.0.2.1/"), "loopback only"},
		{"name in DNS", step("execute_api: http://localhost.example.com/"), "loopback only"},
		{"integer address", step("execute_api: http://2130706433/"), "loopback only"},
		{"user", step("execute_api: http://a:b@127.0.0.1/"), "password"},
		{"userinfo trick", step("execute_api: http://127.0.0.1@example.com/"), "password"},
		{"port", step("execute_api: http://127.0.0.1:99999/"), "port 99999"},
		{"mapped", step(`execute_api: "http://[::ffff:192.0.2.1]/"`), "loopback only"},
		{"ftp", step("execute_api: ftp://127.0.0.1/"), "want http://"},
		{"input", step("execute_api: http://127.0.0.1/\ninput: 1"), "steps[0].input: want a mapping"},
		{"input of a command", step(run + "input: {a: b}"), "steps[0].input: goes to no API"},
		{"input date", step("execute_api: http://127.0.0.1/\ninput: {a: 2026-01-01}"), "steps[0].input.a: want what JSON has"},
		{"input NaN", step("execute_api: http://127.0.0.1/\ninput: {a: .nan}"), "input.a: want what JSON has"},
		{"input deep", step("execute_api: http://127.0.0.1/\ninput: {a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}"), "nested deeper"},
		{"idempotent", step(run + "idempotent: yes"), "steps[0].idempotent: want true or false"},
		{"retries", step(run + "max_retries: -1"), "max_retries: -1, want 0 to 100"},
		{"retries 2", step(run + "max_retries: 1e1"), "max_retries: want a whole number"},
		{"retries 3", step(run + "max_retries: 99999999999999999999"), "max_retries: want a whole number"},
		{"delay", step(run + "retry_delay_seconds: -1"), "retry_delay_seconds: -1, want 0 to 3600"},
		{"delay inf", step(run + "retry_delay_seconds: .inf"), "want a decimal number"},
		{"timeout", step(run + "step_timeout_seconds: 0"), "step_timeout_seconds: 0, want 0.001 to 86400"},
		{"timeout of a command", step(run + "step_timeout_seconds: 300.5"), "300.5: a command runs for 300 s at most"},
		{"timeout of an undo", step("execute_api: http://127.0.0.1/\nundo: {command: [ls]}\nstep_timeout_seconds: 301"), "a command runs for 300 s at most"},
		{"timeout null", step(run + "step_timeout_seconds:"), "want a decimal number, got nothing"},
	} {
		_, err := Parse("f", []byte(c.file), "/srv")
		if _, ok := errors.AsType[*read.InvalidError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

type means struct{ calls []string }

func (m *means) RunCommand(_ context.Context, c Command, limit time.Duration, call sagas.Call) error {
	m.calls = append(m.calls, fmt.Sprint(c.Command, " ", c.Ring, " ", limit, " ", call.Key))
	return nil
}

func (m *means) Call(_ context.Context, url string, input []byte, call sagas.Call) error {
	m.calls = append(m.calls, url+string(input)+call.Key)
	if call.Undo {
		return nil
	}
	return errors.New("down")
}

func TestRun(t *testing.T) {
	f, err := Parse("f", []byte(strings.Replace(trip, "    retry_delay_seconds: 0\n", "    retry_delay_seconds: 0\n    max_retries: 1\n", 1)), "/srv")
	if err != nil {
		t.Fatal(err)
	}
	var m means
	if _, err := f.Saga(Means{Runner: &m}); err == nil {
		t.Error("a step without means was taken")
	}
	s, err := f.Saga(Means{&m, &m})
	if err != nil {
		t.Fatal(err)
	}
	o, err := sagas.New(sagas.Options{Journal: sagas.NewMemory(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	s.ID = "t"
	rec, err := o.Run(t.Context(), s)
	if err != nil || rec.State != sagas.Aborted {
		t.Fatal(rec, err)
	}
	const tell = `http://localhost:8080/tell?a=b{"list":[1,{"a":"b"}],"n":1.5,"none":null,"on":true,"text":"hi"}t/tell`
	if diff := cmp.Diff([]string{"[make 1] 2 0s t/build", tell, tell, "[make clean] 3 0s t/build/undo"}, m.calls); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, bad := range []string{``, `{}`, `null`, `{"name":"a","steps":[{"id":"x","execute":{"command":["ls"],"ring":0}}]}`,
		`{"name":"a","steps":[{"id":"x","execute":{"command":["ls"],"ring":3}}],"more":1}`,
		`{"name":"a","steps":[{"id":"x","execute":{"command":["ls"],"ring":3}}]} {}`} {
		if f, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s: got %+v", bad, f)
		}
	}
}

// Exactly one of file, error; what is taken can be run and comes back from the journal as it was.
func FuzzParse(f *testing.F) {
	f.Add([]byte(trip))
	f.Add([]byte("name: a\nsteps: [{id: x, execute: {command: [ls]}}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data, "/srv")
		if err != nil {
			if len(file.Steps) > 0 || file.Name != "" || err.Error() == "" {
				t.Errorf("both: %+v, %v", file, err)
			}
			return
		}
		again(t, file)
		s, err := file.Saga(Means{&means{}, &means{}})
		if err != nil {
			t.Fatal(err)
		}
		o, err := sagas.New(sagas.Options{Journal: sagas.NewMemory(), Now: time.Now, Audit: never{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Run(t.Context(), s); !errors.Is(err, errNever) {
			t.Errorf("%s: %v", data, err)
		}
	})
}

var errNever = errors.New("never")

type never struct{}

func (never) SagaTransition(context.Context, sagas.Transition) error { return errNever }
