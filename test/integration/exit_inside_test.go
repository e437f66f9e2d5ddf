// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const overDescriptor = `
import os, json
def call(path, body):
    body = json.dumps(body).encode()
    os.write(3, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path, len(body)) + body)
    return os.read(3, 65536).decode().rsplit("\r\n", 1)[1]
print(call(b"/internal/tools/math", {"args": {"expression": "6*7"}}))
print(call(b"/internal/wallet/x", {}))
try:
    import socket
    print("socket", socket.socket())
except OSError as e:
    print("no socket", e.errno)`

// M-4, M-7: a profile without sockets has its tools over the descriptor that it inherits, and nothing else by it.
func TestM7StrictHasToolsByDescriptor(t *testing.T) {
	x := newExit(t)
	x.file("fd.py", overDescriptor)
	o := opts{profile: "strict", state: x.n.dir, flags: []string{"--workspace", x.ws}}
	r := x.run(o, "/usr/bin/python3", "/workspace/fd.py")
	r.want(t, 0, "exited")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 3 || lines[0] != `{"ok":true,"output":42}` || !strings.Contains(lines[1], "route_forbidden") || !strings.HasPrefix(lines[2], "no socket") {
		t.Errorf("got %q", lines)
	}
}

// M-18: the logs of runs stay for their time, of those that ended well too, and can be read; the next run that finds them too
// old deletes them, those of failed ones later. A share of the former may be left out.
func TestM18LogsOfRuns(t *testing.T) {
	x := newExit(t)
	logs := func() (ids []string) {
		names, err := filepath.Glob(filepath.Join(x.n.dir, "runs", "*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			ids = append(ids, strings.TrimSuffix(filepath.Base(name), ".jsonl"))
		}
		return ids
	}
	aged := func(days int, ids ...string) {
		at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		for _, id := range ids {
			if err := os.Chtimes(filepath.Join(x.n.dir, "runs", id+".jsonl"), at, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(filepath.Join(x.n.dir, "runs-swept"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	ask := "curl -s --noproxy '*' " + "http://" + toolsAt + "/internal/tools/math -d '" + math42 + "' -H 'Content-Type: application/json' >/dev/null; exit "
	x.settings["telemetry"] = object{"logs": object{"level": "debug"}}
	good := x.run(x.opts("ring2"), "sh", "-c", ask+"0")
	good.want(t, 0, "exited")
	for _, ref := range []string{good.status.ID, good.status.ID[:6]} {
		shown := x.n.must("logs", ref).stdout
		for _, want := range []string{`"msg":"gateway serves"`, `"msg":"call","kind":"tool","tool":"math","code":"ok"`, `{"run_ended":"ok"}`} {
			if !strings.Contains(shown, want) {
				t.Errorf("logs %s: no %s in %q", ref, want, shown)
			}
		}
	}
	if r := x.n.do("logs", "nosuchrun"); r.exit != 1 || !strings.Contains(r.stderr, "no live run") {
		t.Errorf("logs of nobody: exit %d, %q", r.exit, r.stderr)
	}
	x.settings["telemetry"] = object{"logs": object{"sample": 0}}
	x.run(x.opts("ring2"), "sh", "-c", ask+"0").want(t, 0, "exited")
	bad := x.run(x.opts("ring2"), "sh", "-c", ask+"3")
	bad.want(t, 3, "exited")
	if got := logs(); len(got) != 2 || !slices.Contains(got, good.status.ID) || !slices.Contains(got, bad.status.ID) {
		t.Fatalf("logs of %v, want %s and %s: one of a sample of none was kept, or another was not", got, good.status.ID, bad.status.ID)
	}
	for _, days := range []int{4, 8} {
		aged(days, logs()...)
		x.run(x.opts("ring2"), "true").want(t, 0, "exited")
		if got := logs(); days == 4 && !slices.Equal(got, []string{bad.status.ID}) || days == 8 && len(got) != 0 {
			t.Errorf("after %d days: logs of %v", days, got)
		}
	}
}

const executing = `
import json, os, urllib.request, urllib.error
def run(code):
    body = json.dumps({"args": {"language": "python", "code": code}}).encode()
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/code-executor", body, {"Content-Type": "application/json"})
    try: return urllib.request.urlopen(q).read().decode()
    except urllib.error.HTTPError as e: return e.read().decode()
print(run("print(6*7)"))
print(run("import socket; socket.create_connection(('127.0.0.1', 7600))"))
print(run("import os; print(os.fork())"))
print(run("import os; print(os.listdir('/workspace'))"))
print(run("while True: pass"))`

// M-12: the code-executor runs in a sandbox of its own, which has neither the caller's files nor a way out, is limited in time,
// and leaves a run of its own on record.
func TestM12CodeExecutor(t *testing.T) {
	x := newExit(t)
	x.file("code.py", executing)
	r := x.run(x.opts("ring2"), "/usr/bin/python3", "code.py")
	r.want(t, 0, "exited")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 5 {
		t.Fatalf("got %q\n%s", lines, r.stderr)
	}
	for i, want := range []string{`"output":"42\n"`, "Connection refused", "PermissionError", "FileNotFoundError", "tool_timeout"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("%d: got %.300q, want %s in it", i, lines[i], want)
		}
	}
	var runs int
	for _, e := range x.n.audit("node") {
		if e.Kind == "sandbox_end" {
			runs++
		}
	}
	if runs != 6 {
		t.Errorf("%d runs on record, want 6: the agent's and one for each call", runs)
	}
	noAgents(t)
}

// M-8, M-12: where the operator has TLS intercepted, rules of methods and paths hold, the secret is put in, and the agent has
// neither the secret nor a way to sign.
func TestM8Interception(t *testing.T) {
	x := newExit(t)
	api := x.host("api.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("hello " + r.Header.Get("Authorization")))
	}))
	plain := x.host("plain.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("untouched")) }))
	e := x.settings.section("egress")
	e["allow"] = []string{"plain.test"}
	e["rules"] = []object{{"host": "api.test", "ports": []int{443}, "methods": []string{"GET"}, "paths": []string{"/v1/"}, "intercept": true,
		"headers": object{"Authorization": object{"secret": "key", "prefix": "Bearer "}}}}
	o := x.opts("ring2")
	// The root view's own certificates have the run's CA: no variable of the test's.
	o.flags = slices.DeleteFunc(slices.Clone(o.flags), func(f string) bool { return f == "--env" || strings.HasSuffix(f, "=/ca.pem") })
	curl := func(name string, args ...string) step {
		return step{name, append([]string{"/usr/bin/curl", "-sS", "--max-time", "10", "-H", "Authorization: Bearer made-up"}, args...)}
	}
	got, r := x.programs(o,
		curl("get", "https://api.test/v1/x"), curl("captured", "--noproxy", "*", "https://api.test/v1/x"),
		curl("post", "-d", "x", "https://api.test/v1/x"), curl("path", "https://api.test/v2/x"),
		curl("plain", "--cacert", "/ca.pem", "https://plain.test/"),
		step{"keys", []string{"/usr/bin/find", "/etc", "/run", "-name", "*key*"}})
	r.want(t, 0, "exited")
	for _, name := range []string{"get", "captured"} {
		if a := got[name]; a.Exit != 0 || !strings.HasPrefix(a.Out, "hello Bearer *") || strings.Contains(a.Out, x.secret) {
			t.Errorf("%s: got %d %q %s", name, a.Exit, a.Out, a.Err)
		}
	}
	for _, name := range []string{"post", "path"} {
		if !strings.Contains(got[name].Out, "egress_denied") {
			t.Errorf("%s: got %q %s, want egress_denied", name, got[name].Out, got[name].Err)
		}
	}
	if got["plain"].Out != "untouched" {
		t.Errorf("plain: got %q %s", got["plain"].Out, got["plain"].Err)
	}
	for _, v := range api.Visits() {
		if v.Header.Get("Authorization") != "Bearer "+x.secret {
			t.Errorf("the upstream has got %v", v.Header)
		}
	}
	if len(api.Visits()) != 2 || len(plain.Visits()) != 1 {
		t.Errorf("visits: %d and %d, want 2 and 1", len(api.Visits()), len(plain.Visits()))
	}
}

// M-8: TLS is read in a supplied root too, as an image's: in its /etc nothing is made, and a bundle of its own is covered.
func TestM8InterceptionInASuppliedRoot(t *testing.T) {
	t.Parallel()
	needProgram(t, "curl")
	x := newExit(t)
	x.host("api.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	x.settings.section("egress")["rules"] = []object{{"host": "api.test", "intercept": true}}
	for _, bundle := range []bool{false, true} {
		root := tinyRoot(t)
		for _, name := range []string{"lib", "lib64"} {
			if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		argv := []string{"/usr/bin/curl", "-sS", "-m", "10", "https://api.test/"}
		if bundle {
			if err := os.MkdirAll(filepath.Join(root, "etc/ssl/certs"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"), "none", 0o644)
			argv = append([]string{"/usr/bin/env", "-u", "CURL_CA_BUNDLE", "-u", "SSL_CERT_FILE"}, argv...)
		}
		before := tree(t, root)
		for _, profile := range []string{"ring1", "ring2"} {
			o := x.intercepting("--rootfs", root, "--ro-bind", "/usr")
			o.profile = profile
			if r := x.run(o, argv...); r.exit != 0 || r.stdout != "hello" {
				t.Errorf("%s, bundle %v: exit %d, %q\n%s", profile, bundle, r.exit, r.stdout, r.stderr)
			}
		}
		if after := tree(t, root); after != before {
			t.Errorf("the supplied root was changed\n%s\n%s", before, after)
		}
	}
}

// M-12: what may begin the secret that is put in comes as soon as anything else a server says: an agent that has it echo guesses
// would else learn by what is missing which of them is right, letter by letter.
func TestM12EchoedGuessesAreToldAlike(t *testing.T) {
	x := newExit(t)
	x.host("api.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("the guess is " + r.URL.Query().Get("guess")))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	x.settings.section("egress")["rules"] = []object{{"host": "api.test", "ports": []int{443}, "methods": []string{"GET"}, "paths": []string{"/v1/"}, "intercept": true,
		"headers": object{"Authorization": object{"secret": "key", "prefix": "Bearer "}}}}
	half := len(x.secret) / 2
	o := x.opts("ring2")
	o.flags = slices.DeleteFunc(slices.Clone(o.flags), func(f string) bool { return f == "--env" || strings.HasSuffix(f, "=/ca.pem") })
	var steps []step
	guesses := map[string]string{"right": x.secret[:half], "wrong": x.secret[:half-1] + "!", "whole": x.secret}
	for name, guess := range guesses {
		steps = append(steps, step{name, []string{"/usr/bin/curl", "-sSN", "--max-time", "6", "https://api.test/v1/x?guess=" + guess}})
	}
	got, r := x.programs(o, steps...)
	r.want(t, 0, "exited")
	guesses["whole"] = strings.Repeat("*", len(x.secret))
	for name, guess := range guesses {
		if a := got[name]; a.Out != "the guess is "+guess {
			t.Errorf("%s: got %q %s, want the guess %q", name, a.Out, a.Err, guess)
		}
	}
}
