// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	exittest "agentrun/test/exit"
)

// hosted is a coding agent that isn't one: a package as npm would have installed it, with a description of the
// operator's, whose model is a host of the test's.
type hosted struct {
	*exit
	model  *exittest.Host
	config string // the folder of descriptions
	env    []string
}

const hostedKey = "sk-hosted-0123456789abcdefghijklmn"

// It tells what it finds, works in its folder, counts its runs in its home, and asks its model with what it has for a
// key.
const hostedProgram = `#!/usr/bin/python3
import json, os, subprocess, sys
home, key = os.environ["HOME"], os.environ.get("FAKE_API_KEY", "")
here = os.path.dirname(os.path.realpath(__file__))
runs = os.path.join(home, "runs")
open(runs, "a").write("x")
open("made-by-agent", "w").write("code")
if "wait" in sys.argv:
    print("has its home", flush=True)
    sys.stdin.read()
at = os.environ.get("ANTHROPIC_BASE_URL", "https://model.test")
ask = ["/usr/bin/curl", "-sS", "--max-time", "20", "-H", "x-api-key: " + key, "-H", "content-type: application/json", at + "/v1/messages"]
if "ANTHROPIC_BASE_URL" in os.environ:
    ask += ["-d", '{"model":"any-model","max_tokens":64,"messages":[{"role":"user","content":"hello"}]}']
settings = os.path.join(home, ".fake/settings.json")
print(json.dumps({
    "args": sys.argv[1:], "cwd": os.getcwd(), "key": key, "telemetry": os.environ.get("FAKE_TELEMETRY"),
    "runs": len(open(runs).read()), "sibling": open(os.path.join(here, "../sibling/data")).read(),
    "settings": os.path.exists(settings) and open(settings).read(), "terminal": os.isatty(1),
    "said": "no-model" not in sys.argv and subprocess.run(ask, capture_output=True, text=True).stdout,
}))
`

const hostedDescription = `
name: fake
description: An agent of the tests
program: fake-agent
package: fake-agent
places: [{path: $FAKE_PREFIX/bin, why: where the test puts it}]
ring: 2
limits: {memory: 256MiB, timeout: 8h, why: "it is small, and would stay for longer than a run may"}
keys: [{env: FAKE_API_KEY, host: model.test, header: X-Api-Key, why: its model}]
environment: [{name: FAKE_TELEMETRY, value: "off", why: nobody is to hear of the test}]
arguments: [{text: --no-sandbox, why: as one whose own would nest}]
home: [{path: .fake/settings.json, content: onboarded, why: it would ask}]
`

func newHosted(t *testing.T) *hosted {
	t.Helper()
	needProgram(t, "python3", "curl")
	h := &hosted{exit: newExit(t), config: t.TempDir()}
	h.model = h.host("model.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"heard":%q}`, r.URL.Path)
	}))
	prefix := t.TempDir()
	modules := filepath.Join(prefix, "lib/node_modules")
	for _, dir := range []string{prefix + "/bin", modules + "/fake-agent", modules + "/sibling", h.config + "/agentrun/agents"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, modules+"/fake-agent/cli.py", hostedProgram, 0o755)
	write(t, modules+"/sibling/data", "beside", 0o644)
	if err := os.Symlink("../lib/node_modules/fake-agent/cli.py", prefix+"/bin/fake-agent"); err != nil {
		t.Fatal(err)
	}
	h.describe("fake", hostedDescription, 0o644)
	h.env = []string{"XDG_CONFIG_HOME=" + h.config, "FAKE_PREFIX=" + prefix, "FAKE_API_KEY=" + hostedKey}
	return h
}

func (h *hosted) describe(name, text string, mode os.FileMode) {
	h.t.Helper()
	file := write(h.t, filepath.Join(h.config, "agentrun/agents", name+".yaml"), text, mode)
	if err := os.Chmod(file, mode); err != nil {
		h.t.Fatal(err)
	}
}

// call is `agentrun host` on the test's node. Its model is only where the host's names are the test's.
func (h *hosted) call(env, flags []string, argv ...string) *call {
	h.t.Helper()
	gateway := h.opts("ring2").flags[:2]
	o := opts{state: h.n.dir, flags: slices.Concat(gateway, flags), env: slices.Concat(h.env, env)}
	var c *call
	if slices.Contains(argv, "no-model") {
		c = prepare(h.t, o, argv...)
	} else {
		c = h.prepare(o, argv...)
	}
	c.Args[slices.Index(c.Args, "exec")] = "host"
	return c
}

func (h *hosted) start(env, flags []string, argv ...string) result {
	h.t.Helper()
	c := h.call(env, flags, argv...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	return c.finish(h.t)
}

type hostedTold struct {
	Args      []string `json:"args"`
	Cwd       string   `json:"cwd"`
	Key       string   `json:"key"`
	Telemetry string   `json:"telemetry"`
	Runs      int      `json:"runs"`
	Sibling   string   `json:"sibling"`
	Settings  any      `json:"settings"`
	Terminal  bool     `json:"terminal"`
	Said      any      `json:"said"`
}

func (h *hosted) told(r result) (told hostedTold) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), &told); err != nil {
		h.t.Fatalf("exit %d, %v\n%s%s", r.exit, err, r.stdout, r.stderr)
	}
	return told
}

// F "one short command" (M-8, M-2, M-3): a description becomes one exec, in which the agent finds its package, its
// folder, its home with its questions answered, and no key; its model hears the key all the same.
func TestHost(t *testing.T) {
	h := newHosted(t)
	in := []string{"--workspace", h.ws}
	r := h.start(nil, in, "fake", "--print", "task")
	r.want(t, 0, "exited")
	got := h.told(r)
	want := hostedTold{
		Args: []string{"--no-sandbox", "--print", "task"}, Cwd: "/workspace", Key: "agentrun-puts-the-key-in", Telemetry: "off",
		Runs: 1, Sibling: "beside", Settings: "onboarded", Said: `{"heard":"/v1/messages"}`,
	}
	if a, b := mustJSON(t, got), mustJSON(t, want); a != b {
		t.Errorf("got  %s\nwant %s", a, b)
	}
	if r.status.Ring != 2 {
		t.Errorf("ring %d, want the description's", r.status.Ring)
	}
	if v := h.model.Visits(); len(v) != 1 || v[0].Header.Get("X-Api-Key") != hostedKey {
		t.Errorf("the model was visited %d times: %+v", len(v), v)
	}
	if made, err := os.ReadFile(filepath.Join(h.ws, "made-by-agent")); err != nil || string(made) != "code" {
		t.Errorf("the workspace has %q, %v", made, err)
	}
	if out, _ := exec.Command("grep", "-rlF", hostedKey, h.n.dir).Output(); len(out) > 0 {
		t.Errorf("the key lies in %s", out)
	}

	// The home is kept, for exec too; what the agent made of our answers stays.
	files := filepath.Join(h.n.dir, "homes/fake/files")
	write(t, filepath.Join(files, ".fake/settings.json"), "changed", 0o600)
	keyFile := write(t, filepath.Join(t.TempDir(), "key"), hostedKey+"2\n", 0o600)
	got = h.told(h.start([]string{"FAKE_API_KEY="}, append(in, "--api-key-file", keyFile), "fake"))
	if got.Runs != 2 || got.Settings != "changed" {
		t.Errorf("got %+v, want the second run in its home", got)
	}
	if v := h.model.Visits(); len(v) != 2 || v[1].Header.Get("X-Api-Key") != hostedKey+"2" {
		t.Errorf("visits: %+v", v)
	}
	r = run(t, opts{profile: "ring2", state: h.n.dir, flags: []string{"--home", "fake"}}, "/bin/sh", "-c", `cat "$HOME/runs"; id -u; stat -c %u "$HOME"`)
	if r.want(t, 0, "exited"); r.stdout != "xx1000\n1000\n" {
		t.Errorf("exec in the same home: %q", r.stdout)
	}
}

// M-17: by the model door the gateway asks the provider, with the key, and puts the call on record; --way egress of the
// same description goes past it.
func TestHostByTheModelDoor(t *testing.T) {
	h := newHosted(t)
	door := "way: door\nkeys: [{env: FAKE_API_KEY, host: model.test, header: X-Api-Key, why: its model,\n" +
		"  door: {base_url: https://model.test/v1, dialects: [messages], allow_private: true, ca_file: " + h.w.CAFile + "}}]"
	text := strings.Replace(hostedDescription, "keys: [{env: FAKE_API_KEY, host: model.test, header: X-Api-Key, why: its model}]", door, 1)
	h.describe("fake", text, 0o644)
	in := []string{"--workspace", h.ws}
	for i, way := range []string{"door", "egress"} {
		flags := in
		if way == "egress" {
			flags = append(in, "--way", way)
		}
		r := h.start(nil, flags, "fake")
		r.want(t, 0, "exited")
		if told := h.told(r); !strings.Contains(fmt.Sprint(told.Said), `"heard":"/v1/messages"`) || told.Key != "agentrun-puts-the-key-in" {
			t.Errorf("%s: got %+v", way, told)
		}
		if v := h.model.Visits(); len(v) != i+1 || v[i].Header.Get("X-Api-Key") != hostedKey {
			t.Fatalf("%s: visits %+v", way, v)
		}
		if n := len(calls(h.n.audit("node"), "llm")); n != 1 {
			t.Errorf("%s: %d calls of models on record, want the door's", way, n)
		}
	}
	for _, tt := range []struct{ way, text, want string }{
		{"window", text, `--way: "window" is none of egress, door`},
		{"door", hostedDescription, "--way door: the description of fake names no provider behind it"},
	} {
		h.describe("fake", tt.text, 0o644)
		if r := h.start(nil, append(in, "--way", tt.way), "fake"); r.exit != 125 || !strings.Contains(r.stderr, tt.want) {
			t.Errorf("exit %d, %q, want %q", r.exit, r.stderr, tt.want)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What makes no sense, or would give the agent what it is not to have, is refused before anything starts.
func TestHostRefuses(t *testing.T) {
	h := newHosted(t)
	in := []string{"--workspace", h.ws}
	h.describe("anybodys", strings.ReplaceAll(hostedDescription, "name: fake", "name: anybodys"), 0o666)
	h.describe("claude", strings.ReplaceAll(hostedDescription, "name: fake", "name: claude"), 0o644)
	h.describe("typo", strings.ReplaceAll(hostedDescription, "ring: 2", "rng: 2"), 0o644)
	h.describe("absent", strings.NewReplacer("name: fake", "name: absent", "program: fake-agent", "program: no-such-agent").Replace(hostedDescription), 0o644)
	open := write(t, filepath.Join(t.TempDir(), "key"), hostedKey, 0o644)
	inside := write(t, filepath.Join(h.ws, "key"), hostedKey, 0o600)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	home := "HOME=" + h.ws
	none := []string{"FAKE_API_KEY="}
	for _, tt := range []struct {
		name       string
		env, flags []string
		agent      string
		want       string
	}{
		{"the whole machine", nil, []string{"--workspace", "/"}, "fake", "it is the whole machine"},
		{"a link to it", nil, []string{"--workspace", link}, "fake", "it is the whole machine"},
		{"a home", []string{home}, in, "fake", "your home is in it"},
		{"a folder above it", []string{home}, []string{"--workspace", filepath.Dir(h.ws), "--yes"}, "fake", "your home is in it"},
		{"a folder of the system", nil, []string{"--workspace", "/etc"}, "fake", "it holds more than a project"},
		{"a folder nobody named", nil, nil, "fake", "hint: --yes, or --workspace DIR, says so"},
		{"no key", none, in, "fake", "no key: FAKE_API_KEY isn't set"},
		{"a key anybody may read", none, append(in, "--api-key-file", open), "fake", "mode 0644"},
		{"a key in the workspace", none, append(in, "--api-key-file", inside), "fake", "lies in the workspace"},
		{"a command that fails", none, append(in, "--api-key-command", "exit 3"), "fake", "--api-key-command: exit status 3"},
		{"a command that says nothing", none, append(in, "--api-key-command", "true"), "fake", "there is no key in it"},
		{"the key by a flag", nil, append(in, "--env", "X=a"+hostedKey), "fake", "would give the agent the key"},
		{"the key by its variable", nil, append(in, "--env-pass", "FAKE_API_KEY"), "fake", "would give the agent the key"},
		{"nobody's description", nil, in, "nosuch", "there are absent, anybodys, claude, codex, fake"},
		{"a path for a name", nil, in, "../agents/fake", "nobody has described this agent"},
		{"a description that others may write", nil, in, "anybodys", "mode 0666"},
		{"a built-in name", nil, in, "claude", "a built-in description has this name"},
		{"a misspelt key", nil, in, "typo", "typo.yaml:7: rng: unknown key; did you mean ring?"},
		{"a program that isn't there", nil, in, "absent", "npm install -g fake-agent"},
		{"a ring that keeps nothing", nil, append(in, "--ring", "3"), "fake", "--home: profile ring3 may write nothing that lasts"},
		{"a home with a path for a name", nil, append(in, "--home", "../x"), "fake", "is no name of a home"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := h.start(tt.env, tt.flags, tt.agent)
			if r.exit != 125 || !strings.Contains(r.stderr, tt.want) || strings.Contains(r.stderr, hostedKey) {
				t.Errorf("exit %d, %q, want %q", r.exit, r.stderr, tt.want)
			}
		})
	}
	quiet(t, h.model)
	if runs, _ := filepath.Glob(filepath.Join(h.n.dir, "homes/*/files/runs")); runs != nil {
		t.Errorf("an agent has run in %v", runs)
	}
}

// What an agent has left where PATH leads is not run on the host: not even to hear its version.
func TestHostRunsNoNodeOfTheWorkspace(t *testing.T) {
	h := newHosted(t)
	h.describe("project", strings.NewReplacer("name: fake", "name: project", "program: fake-agent", "program: planted").Replace(hostedDescription)+"node: 18\n", 0o644)
	bin, ran := filepath.Join(h.ws, "node_modules/.bin"), filepath.Join(t.TempDir(), "ran")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, bin+"/planted", "#!/usr/bin/env node\n", 0o755)
	write(t, bin+"/node", "#!/bin/sh\n: > "+ran+"; echo v22.1.0\n", 0o755)
	away, deep, kept, led := t.TempDir(), filepath.Join(h.ws, "src/deep"), filepath.Join(t.TempDir(), "home"), filepath.Join(h.ws, "led")
	for _, dir := range []string{deep, kept, led, h.ws + "/.git"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, led+"/planted", "#!/usr/bin/env node\n", 0o755)
	if err := errors.Join(os.Rename(bin+"/node", kept+"/node"), os.Symlink(kept+"/node", bin+"/node"), os.Symlink(kept+"/node", led+"/node")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dir, home, path, named string
		want                   bool
	}{
		{h.ws, "/nonexistent", bin, "", false}, {bin, "/nonexistent", bin, "", false}, {h.ws, h.ws, bin, "", true}, {away, "/nonexistent", bin, "", true},
		{deep, "/nonexistent", bin, "", false}, {away, "/nonexistent", bin, h.ws, false}, {h.ws, "/nonexistent", led, "", false}, {deep, "/nonexistent", led, "", false},
	} {
		flags := []string{"--dry-run"}
		if tt.named != "" {
			flags = append(flags, "--workspace", tt.named)
		}
		c := h.call([]string{"PATH=" + tt.path + ":" + os.Getenv("PATH"), "HOME=" + tt.home}, flags, "project", "no-model")
		c.Dir = tt.dir
		c.Stdout, c.Stderr = nil, nil
		text, err := c.Cmd.CombinedOutput()
		_, lerr := os.Lstat(ran)
		if got := lerr == nil; got != tt.want || !tt.want && (err == nil || !strings.Contains(string(text), "where agents write")) {
			t.Errorf("%+v: it ran: %t; %v %s", tt, got, err, text)
		}
		_ = os.Remove(ran)
	}
	// Nor does a program's link out of there choose what is shown.
	secret := write(t, filepath.Join(kept, "node_modules.sh"), "#!/bin/sh\n", 0o755)
	if err := errors.Join(os.Remove(led+"/planted"), os.Symlink(secret, led+"/planted")); err != nil {
		t.Fatal(err)
	}
	c := h.call([]string{"PATH=" + led + ":" + os.Getenv("PATH"), "HOME=/nonexistent"}, []string{"--dry-run"}, "project", "no-model")
	c.Dir, c.Stdout, c.Stderr = h.ws, nil, nil
	if text, err := c.Cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), "leads out of there to "+secret) {
		t.Errorf("a program's link: %v %s", err, text)
	}
}

// host --list says what is here, in words and as JSON; a description that is broken takes no other away.
func TestHostList(t *testing.T) {
	h := newHosted(t)
	h.describe("broken", "name: x", 0o644)
	cmd := exec.Command(agentrun, "host", "--list", "--json")
	cmd.Env = append(os.Environ(), h.env...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name, Program, Error string
		Shown, Missing       []string
		Keys                 map[string]bool
	}
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := map[string]int{}
	for i, a := range list {
		seen[a.Name] = i
	}
	for _, name := range []string{"broken", "claude", "codex", "fake", "gemini", "opencode", "pi", "qwen"} {
		if _, ok := seen[name]; !ok {
			t.Errorf("%s is not listed", name)
		}
	}
	fake, broken := list[seen["fake"]], list[seen["broken"]]
	if !strings.HasSuffix(fake.Program, "/lib/node_modules/fake-agent/cli.py") || len(fake.Shown) != 1 ||
		!strings.HasSuffix(fake.Shown[0], "/lib/node_modules") || !fake.Keys["FAKE_API_KEY"] || len(fake.Missing) > 0 {
		t.Errorf("got %+v", fake)
	}
	if !strings.Contains(broken.Error, "broken.yaml:1: name") {
		t.Errorf("got %+v", broken)
	}
}

// A home is one run's at a time, whoever supervises; it has a quota, is the agent's alone, and goes when an operator
// or gc removes it. A supervisor that is killed holds it no longer.
func TestHomeIsOneRunsAtATime(t *testing.T) {
	h := newHosted(t)
	in := []string{"--workspace", h.ws, "--no-daemon"}
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	first := h.call(nil, in, "fake", "wait", "no-model")
	first.Stdin = stdin
	first.startUntil(t, "has its home")
	stdin.Close()
	second := run(t, opts{profile: "ring2", state: h.n.dir, flags: []string{"--home", "fake"}}, "/bin/true")
	if second.exit != 125 || !strings.Contains(second.stderr, "--home fake: a live run has it") {
		t.Errorf("a second run: exit %d, %s", second.exit, second.stderr)
	}
	if r := h.n.do("home", "rm", "fake"); r.exit != 125 || !strings.Contains(r.stderr, "a live run has it") {
		t.Errorf("home rm: exit %d, %s", r.exit, r.stderr)
	}
	if r := h.n.must("home", "ls", "--json"); !strings.Contains(r.stdout, `"live": true`) {
		t.Errorf("home ls: %s", r.stdout)
	}
	if err := first.Process.Kill(); err != nil { // of the supervisor, by its own pid: execve keeps it
		t.Fatal(err)
	}
	_ = first.Wait()
	noAgents(t)
	third := run(t, opts{profile: "ring2", state: h.n.dir, flags: []string{"--home", "fake"}}, "/bin/sh", "-c", `cat "$HOME/runs"; dd if=/dev/zero of="$HOME/big" bs=1M count=3 2>&1 | tail -1`)
	if third.want(t, 0, "exited"); !strings.HasPrefix(third.stdout, "x") {
		t.Errorf("after the first was killed: %q", third.stdout)
	}

	small := write(t, filepath.Join(t.TempDir(), "config.yaml"), "homes: {quota: 1MiB, keep: 1h}\n", 0o600)
	r := h.n.do("--config", small, "exec", "--ring", "2", "--home", "fake", "--", "/bin/true")
	if r.exit != 125 || !strings.Contains(r.stderr, "its quota is 1MiB") {
		t.Errorf("over its quota: exit %d, %s", r.exit, r.stderr)
	}
	other := run(t, opts{profile: "ring2", state: h.n.dir, flags: []string{"--bind", filepath.Join(h.n.dir, "homes/fake/files") + ":/other", "--home", "mine"}}, "/bin/true")
	if other.exit != 125 || !strings.Contains(other.stderr, "other_session") {
		t.Errorf("another's home by a bind: exit %d, %s", other.exit, other.stderr)
	}

	if r := h.n.must("--config", small, "gc"); strings.Contains(r.stdout, "home fake") {
		t.Errorf("gc removed a home that was just used: %s", r.stdout)
	}
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(h.n.dir, "homes/fake/lock"), long, long); err != nil {
		t.Fatal(err)
	}
	if r := h.n.must("--config", small, "gc"); !strings.Contains(r.stdout, "removed home fake") {
		t.Errorf("gc: %s", r.stdout)
	}
	if _, err := os.Stat(filepath.Join(h.n.dir, "homes/fake")); err == nil {
		t.Error("the home is still there")
	}
}

// M-5: an ordinary user's homes are in that user's own state, and inside the agent's.
func TestHomeOfAnOrdinaryUser(t *testing.T) {
	u := someone(t)
	for _, want := range []string{"x\n1000\n", "x\nx\n1000\n"} {
		code, out, text := u.run(t, "exec", "--best-effort", "--no-gateway", "--ring", "2", "--home", "mine", "--",
			"/bin/sh", "-c", `echo x >>"$HOME/runs"; cat "$HOME/runs"; stat -c %u "$HOME/runs"`)
		if code != 0 || out != want {
			t.Errorf("exit %d, %q, want %q\n%s", code, out, want, text)
		}
	}
	// What the agent has closed to its own user hides no home, and is removed.
	code, out, text := u.run(t, "exec", "--best-effort", "--no-gateway", "--ring", "2", "--home", "shut", "--", "/bin/sh", "-c", `mkdir -p "$HOME/a/b" && chmod 0 "$HOME/a"`)
	if code != 0 {
		t.Errorf("exit %d, %q %s", code, out, text)
	}
	if code, out, text := u.run(t, "home", "ls"); code != 0 || !strings.Contains(out, "mine ") || !strings.Contains(out, "shut ") {
		t.Errorf("home ls: exit %d, %q %s", code, out, text)
	}
	long := time.Now().Add(-100 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(u.home, ".local/state/agentrun/homes/shut/lock"), long, long); err != nil {
		t.Fatal(err)
	}
	if code, out, text := u.run(t, "gc"); code != 0 || !strings.Contains(out, "removed home shut\n") {
		t.Errorf("gc: exit %d, %q %s", code, out, text)
	}
	if code, out, text := u.run(t, "home", "rm", "mine"); code != 0 || out != "removed home mine\n" {
		t.Errorf("home rm: exit %d, %q %s", code, out, text)
	}
}

// On a terminal host asks about the current folder, and the agent has a terminal. A daemon takes the run over.
func TestHostOnATerminal(t *testing.T) {
	h := newHosted(t)
	term := openTerminal(t, 100, 40)
	c := h.call(nil, nil, "fake", "no-model")
	c.Dir = h.ws
	term.begin(c)
	term.until("may read and write " + h.ws)
	term.until("Type yes: ")
	term.type_("yes\r")
	shown := term.until(`"said"`)
	c.finish(t).want(t, 0, "exited")
	if !strings.Contains(shown, `"terminal": true`) {
		t.Errorf("shown: %s", shown)
	}

	d := startDaemon(t)
	c = h.call(nil, []string{"--workspace", h.ws}, "fake", "no-model")
	for flag, dir := range map[string]string{"--state-dir": d.state, "--run-dir": d.run} {
		c.Args[slices.Index(c.Args, flag)+1] = dir
	}
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t)
	if r.want(t, 0, "exited"); h.told(r).Runs != 1 || d.said("carried out") != 1 {
		t.Errorf("the daemon didn't take it over: %+v", r.status)
	}
	d.drain(t)
}
