// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// supervisor starts commands without a sandbox: what is tested here is the conversation.
type supervisor struct {
	link.Supervisor
	commands map[string]link.Command
	why      string // said about every end
	err      error
	live     atomic.Int32
}

type process struct {
	s       *supervisor
	cmd     *exec.Cmd
	in, out *os.File
	done    chan struct{}
	once    sync.Once
}

func (s *supervisor) Execute(_ context.Context, tool string) (link.Process, error) {
	c, known := s.commands[tool]
	if !known || s.err != nil {
		return nil, errors.Join(s.err, errors.New("no such command: "+tool))
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p := &process{s: s, cmd: exec.Command(c.Argv[0], c.Argv[1:]...), in: inW, out: outR, done: make(chan struct{})}
	p.cmd.Stdin, p.cmd.Stdout = inR, outW
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	s.live.Add(1)
	inR.Close()
	outW.Close()
	go func() { p.cmd.Wait(); close(p.done) }() //nolint:errcheck // the exit code says it
	return p, nil
}

func (p *process) Stdin() *os.File  { return p.in }
func (p *process) Stdout() *os.File { return p.out }

func (p *process) Wait(ctx context.Context) (int, string, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), p.s.why, nil
	case <-ctx.Done():
		return 0, "", ctx.Err()
	}
}

func (p *process) Close() error {
	p.once.Do(func() {
		p.cmd.Process.Kill() //nolint:errcheck // may have ended
		<-p.done
		p.in.Close()
		p.out.Close()
		p.s.live.Add(-1)
	})
	return nil
}

func nodeOf(text string) *read.Node {
	return read.YAML(read.Source{Path: "tools.x.command", Max: 1 << 20}, []byte(text))
}

// script is a tool of a shell script.
func script(t testing.TB, s *supervisor, body, output string) tools.Tool {
	t.Helper()
	n := nodeOf("argv: [/bin/sh, -c, " + string(must(json.Marshal(body))) + "]\noutput: " + output)
	commands, err := Commands("x", n)
	if err != nil {
		t.Fatal(err)
	}
	s.commands = map[string]link.Command{"x": commands[0]}
	tool, err := Factory(Options{Supervisor: s})("x", n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := s.live.Load(); n != 0 {
			t.Errorf("%d processes are left", n)
		}
	})
	return tool
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func call(ctx context.Context, tool tools.Tool, args string) (string, error) {
	r, err := tool.Call(ctx, tools.Call{Args: telemetry.NewPlaintext(json.RawMessage(args)), Limit: 4096})
	return string(r.Output), err
}

func refused(t *testing.T, ctx context.Context, tool tools.Tool, args string, want rings.Code) *gate.Error {
	t.Helper()
	got, err := call(ctx, tool, args)
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != want || got != "" {
		t.Fatalf("%.100s: got %.100q, %v, want %v", args, got, err, want)
	}
	return e
}

func TestM12CommandGetsItsArgumentsOnStdin(t *testing.T) {
	args := `{"a":"$(id) '\"; rm -rf /"}`
	if out, err := call(t.Context(), script(t, &supervisor{}, "cat", "json"), args); err != nil || out != args {
		t.Errorf("got %s, %v, want %s", out, err, args)
	}
	if out, err := call(t.Context(), script(t, &supervisor{}, "echo \"a b\"", "text"), args); err != nil || out != `"a b\n"` {
		t.Errorf("got %s, %v", out, err)
	}
	// A program that reads nothing, of more than a pipe holds.
	if out, err := call(t.Context(), script(t, &supervisor{}, "echo 1", "json"), `{"a":"`+strings.Repeat("a", 1<<20)+`"}`); err != nil || out != "1" {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestM12CommandsThatFail(t *testing.T) {
	ctx := t.Context()
	refused(t, ctx, script(t, &supervisor{}, "echo secret; exit 3", "json"), "{}", gate.CodeToolFailed)
	refused(t, ctx, script(t, &supervisor{}, "echo not json", "json"), "{}", gate.CodeToolFailed)
	refused(t, ctx, script(t, &supervisor{}, `echo '{"a":1,"a":2}'`, "json"), "{}", gate.CodeToolFailed)
	refused(t, ctx, script(t, &supervisor{}, `printf '\377'`, "text"), "{}", gate.CodeToolFailed)
	refused(t, ctx, script(t, &supervisor{}, "while :; do echo endless; done", "text"), "{}", gate.CodeTooLarge)
	for why, want := range map[string]rings.Code{
		"timeout": gate.CodeToolTimeout, "policy": gate.CodeToolRestricted, "policy: output size": gate.CodeToolRestricted, "oom": gate.CodeToolRestricted,
		"killed": gate.CodeToolFailed, "failed": gate.CodeUnavailable, "something new": gate.CodeToolFailed,
	} {
		refused(t, ctx, script(t, &supervisor{why: why}, "echo 1", "json"), "{}", want)
	}
	down := &supervisor{}
	tool := script(t, down, "echo 1", "json")
	down.err = errors.New("link: /run/secret/path is gone")
	if e := refused(t, ctx, tool, "{}", gate.CodeUnavailable); strings.Contains(e.Message+e.Next, "secret") {
		t.Errorf("the agent is told %v", e)
	}
	refused(t, ctx, command{entry: "x"}, "{}", gate.CodeUnavailable)
}

// A call that ends takes its command with it, also one that ignores everything.
func TestM12CommandDiesWithItsCall(t *testing.T) {
	s := &supervisor{}
	tool := script(t, s, "trap '' TERM INT PIPE; exec sleep 1000", "json")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	refused(t, ctx, tool, "{}", gate.CodeToolTimeout)
	if n := s.live.Load(); n != 0 {
		t.Errorf("%d processes are left after the call", n)
	}
	ended, end := context.WithCancelCause(t.Context())
	end(&gate.Error{Code: gate.CodeQuarantined})
	refused(t, ended, tool, "{}", gate.CodeQuarantined)
}

func TestM12ConfigurationsAreStrict(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "argv", "argv: [sh]": "whole path", "argv: [/bin/sh]\nrings: 2": "unknown key", "argv: [/bin/sh]\noutput: xml": "output", "argv: [/bin/sh]\nring: 4": "ring", "argv: [/bin/sh]\nring: 1": "ring: is 2 or 3, not 1", "argv: /bin/sh": "list",
	} {
		_, err := Factory(Options{})("x", nodeOf(text))
		if _, err2 := Commands("x", nodeOf(text)); err == nil || err2 == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v and %v, want %q", text, err, err2, want)
		}
	}
	got, err := Commands("x", nodeOf("argv: [/bin/a, b]\nmemory: 256M\nenv: [A=b]"))
	if d := cmp.Diff([]link.Command{{Tool: "x", Argv: []string{"/bin/a", "b"}, Ring: 3, Memory: "256M", Env: []string{"A=b"}}}, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
}

func executor(t *testing.T) tools.Definition {
	t.Helper()
	s := &supervisor{commands: map[string]link.Command{}}
	for _, c := range CodeCommands() {
		if c.Ring != 3 {
			t.Errorf("%s: ring %d, want 3", c.Tool, c.Ring)
		}
		s.commands[c.Tool] = c
	}
	return CodeExecutor(s)
}

func TestM12CodeExecutor(t *testing.T) {
	d := executor(t)
	if d.Category != gate.CategoryC || d.Action.RequiredRing() != rings.Standard || d.Action.Check() != nil {
		t.Errorf("got category %s and %v", d.Category, d.Action.RequiredRing())
	}
	for language, cases := range map[string]map[string]string{
		"python": {
			`{"language":"python","code":"import sys\nprint(sys.stdin.read().upper(), __name__)","stdin":"in"}`: `{"output":"IN __main__\n","exit_code":0}`,
			`{"language":"python","code":"import sys; print('e', file=sys.stderr); sys.exit(3)"}`:               `{"output":"e\n","exit_code":3}`,
		},
		"javascript": {
			`{"language":"javascript","code":"process.stdin.on('data',d=>console.log(String(d).toUpperCase()))","stdin":"in"}`: `{"output":"IN\n","exit_code":0}`,
			`{"language":"javascript","code":"console.error('e'); process.exitCode = require('os') ? 3 : 4"}`:                  `{"output":"e\n","exit_code":3}`,
		},
		"sh": {`{"language":"sh","code":"echo e >&2; exit 3"}`: `{"output":"e\n","exit_code":3}`},
	} {
		path := map[string]string{"python": "/usr/bin/python3", "javascript": "/usr/bin/node", "sh": "/bin/sh"}[language]
		if _, err := os.Stat(path); err != nil {
			t.Logf("%s is not here: %v", path, err)
			continue
		}
		for args, want := range cases {
			if out, err := call(t.Context(), d.Tool, args); err != nil || out != want {
				t.Errorf("%s: got %s, %v, want %s", args, out, err, want)
			}
		}
	}
	for _, args := range []string{
		`{"language":"perl","code":"1"}`, `{"language":"../x","code":"1"}`, `{"language":"sh"}`, `{"language":"sh","code":"cat","stdin":"x"}`, `{"language":"sh","code":"x","argv":["y"]}`, `{"Language":"sh","code":"x"}`,
	} {
		refused(t, t.Context(), d.Tool, args, gate.CodeBadArguments)
	}
}

func BenchmarkCommand(b *testing.B) {
	tool := script(b, &supervisor{}, "exec cat", "json")
	for b.Loop() {
		if _, err := call(b.Context(), tool, `{"a":1}`); err != nil {
			b.Fatal(err)
		}
	}
}
