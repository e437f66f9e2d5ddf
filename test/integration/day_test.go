// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The day of docs/kept.md, in its order: each line of it is one of the test's (M-23).
func TestM23ADayInASandbox(t *testing.T) {
	for _, name := range []string{"node", "npm", "git"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("need: %s: scripts/install-deps.sh test installs it", name)
		}
	}
	p := newPlace(t)
	app := filepath.Join(t.TempDir(), "app")
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(app, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("package.json", `{"name":"app","version":"1.0.0","dependencies":{"greet":"file:greet"},"scripts":{"test":"node --test"}}`)
	write("greet/package.json", `{"name":"greet","version":"1.0.0","main":"index.js"}`)
	write("greet/index.js", "exports.greet = name => `hello ${name}`\n")
	write("sum.js", "exports.sum = (a, b) => a - b\n")
	write("server.js", "const {greet} = require('greet')\nrequire('http').createServer((q, a) => a.end(greet(q.url.slice(1)) + '\\n')).listen(3000)\n")
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one"}} {
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir = app
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}

	p.must("create", "--name", "dev", "--no-gateway", "--ring", "2", "--workspace", app, "--workspace-mode", "overlay")
	for _, name := range []string{"dev", "try-1", "try-2"} {
		t.Cleanup(func() { p.do("rm", "-f", name) })
	}
	p.must("start", "dev")
	p.in("dev", "git clone -q /workspace ~/app && cd ~/app && npm install --no-audit --no-fund")
	p.must("exec", "--in", "dev", "-d", "--", "/bin/sh", "-c", "cd ~/app && exec node server.js")
	port := asked[portInfo](p, "port", "publish", "dev", "3000")
	eventually(t, hang(), "the server answers", func() bool { status, _, _ := port.get(t, "/day", port.Token); return status == 200 })
	if _, body, _ := port.get(t, "/day", port.Token); body != "hello day\n" {
		t.Errorf("the server says %q", body)
	}
	if status, _, _ := port.get(t, "/day", ""); status == 200 {
		t.Error("it answers without the token")
	}

	edited := filepath.Join(t.TempDir(), "sum.test.js")
	if err := os.WriteFile(edited, []byte("const {test} = require('node:test')\ntest('sums', () => require('assert').equal(require('./sum').sum(1, 2), 3))\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.must("cp", edited, "dev:/tmp/sandbox/home/app/sum.test.js")
	if r := p.inside("dev", nil, "/bin/sh", "-c", "cd ~/app && npm test"); r.exit != 1 {
		t.Errorf("the new test of what is broken: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}

	p.must("pause", "dev")
	p.must("snapshot", "dev", "broken")
	for name, fix := range map[string]string{"try-1": "b - a", "try-2": "a + b"} {
		p.must("fork", "dev@broken", name)
		p.must("start", name)
		r := p.inside(name, nil, "/bin/sh", "-c", "cd ~/app && echo 'exports.sum = (a, b) => "+fix+"' > sum.js && npm test && cp sum.js sum.test.js /workspace/")
		if want := map[string]int{"try-1": 1, "try-2": 0}[name]; r.exit != want {
			t.Errorf("%s: exit %d, want %d\n%s%s", name, r.exit, want, r.stdout, r.stderr)
		}
		p.must("stop", name)
	}
	if diff := p.must("diff", "try-2").stdout; !strings.Contains(diff, "+exports.sum = (a, b) => a + b") || !strings.Contains(diff, "sum.test.js") {
		t.Errorf("diff: %s", diff)
	}
	if b, _ := os.ReadFile(filepath.Join(app, "sum.js")); strings.Contains(string(b), "+") {
		t.Error("the workspace has it before anybody has looked")
	}
	p.must("apply", "try-2")
	if b, err := os.ReadFile(filepath.Join(app, "sum.js")); err != nil || string(b) != "exports.sum = (a, b) => a + b\n" {
		t.Errorf("applied: %q, %v", b, err)
	}
	p.must("resume", "dev")
	if _, body, _ := port.get(t, "/again", port.Token); body != "hello again\n" {
		t.Errorf("after the pause the server says %q", body)
	}
	for _, name := range []string{"try-1", "try-2", "dev"} {
		p.must("rm", "-f", name)
	}
	if left, _ := filepath.Glob(filepath.Join(p.state, "[sl]a[ny]*", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	noAgents(t)
}
