// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

const noMath = `@id("test.nomath")
forbid (principal, action == Action::"tool.invoke", resource == Tool::"math");
`

// M-9, M-10: an operator's policy decides, by file.
func TestM9PolicyFile(t *testing.T) {
	x := newExit(t)
	file := write(t, filepath.Join(t.TempDir(), "p.cedar"), noMath, 0o644)
	got, r := x.raw(x.opts("ring3", "--policy", file), exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)})
	r.want(t, 0, "exited")
	if a := got["math"].Reply; !strings.HasPrefix(a, "HTTP/1.1 403") || strings.Contains(a, `"output"`) || !strings.Contains(a, `"next"`) {
		t.Errorf("got %.400q %s", a, got["math"].Error)
	}
	records := calls(x.n.audit("node"), "tool")
	if len(records) != 1 || records[0].Data["allowed"] != false || !strings.Contains(toText(records[0].Data["rule"]), "test.nomath") {
		t.Errorf("records: %+v, want one that names the policy", records)
	}
	// A policy that isn't one starts nothing.
	bad := write(t, filepath.Join(t.TempDir(), "bad.cedar"), "permit (", 0o644)
	if r := x.run(x.opts("ring3", "--policy", bad), "/probe", "exit", "0"); r.exit != 125 && r.exit != 2 {
		t.Errorf("a broken policy: exit %d\n%s", r.exit, r.stderr)
	}
}

func toText(v any) string {
	s, _ := v.(string)
	return s
}

const untilRefused = `
import os, time, urllib.error, urllib.request
def call():
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/math", b'{"args":{"expression":"6*7"}}', {"Content-Type": "application/json"})
    try: return urllib.request.urlopen(q).read().decode()
    except urllib.error.HTTPError as e: return e.read().decode()
said = False
for i in range(100):
    a = call()
    if '"ok":true' not in a and "rate_limited" not in a:
        print("refused", a, flush=True); break
    if not said: print("allowed", flush=True); said = True
    time.sleep(0.3)
time.sleep(8)
print("after", call(), flush=True)`

func readable(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// M-10: policies change under a live run; a broken file changes nothing.
func TestM10PolicyIsReloaded(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	dir, err := os.MkdirTemp("", "agentrun-policies-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	readable(t, dir) // the gateway reads it again as a user of its own
	file := write(t, filepath.Join(dir, "p.cedar"), "// nothing yet\n"+strings.Replace(noMath, `"math"`, `"other"`, 1), 0o644)
	x.file("loop.py", untilRefused)
	c := x.prepare(x.opts("ring3", "--policy", file), "python3", "loop.py")
	c.startUntil(t, "allowed")
	replace := func(text string) {
		t.Helper()
		if err := os.Rename(write(t, filepath.Join(dir, "new"), text, 0o644), file); err != nil {
			t.Fatal(err)
		}
	}
	replace(noMath)
	// Between the refusal and its last call the agent waits for longer than files go without being looked at.
	eventually(t, 30*time.Second, "the first refusal", func() bool {
		return slices.ContainsFunc(calls(x.n.audit("node"), "tool"), func(e entry) bool { return e.Data["allowed"] == false })
	})
	replace("permit (")
	r := c.finish(t)
	r.want(t, 0, "exited")
	_, after, found := strings.Cut(r.stdout, "after ")
	if !strings.Contains(r.stdout, "refused ") || !found || strings.Contains(after, `"ok":true`) {
		t.Errorf("got %q", r.stdout)
	}
}

// M-9, THREATS "policy": a remote PDP that is down, slow or talks nonsense refuses; one that says yes to everything lifts
// no ring.
func TestM9RemotePDP(t *testing.T) {
	for _, tt := range []struct{ mood, want string }{
		{"allow", "42"}, {"deny", "acl_block"}, {"nonsense", `"code"`}, {"string", `"code"`}, {"twice", `"code"`}, {"endless", `"code"`}, {"hang", `"code"`}, {"down", `"code"`},
	} {
		t.Run(tt.mood, func(t *testing.T) {
			x := newExit(t)
			p := &exittest.PDP{}
			p.Be(tt.mood)
			// http to the loopback is the one case in which no TLS is asked for.
			h := x.host("pdp.test", p)
			x.settings.egress(x.w)
			x.settings.remotePDP("http://" + h.Addr.String())
			if tt.mood == "down" {
				// The run itself is decided about as well (agent.run.invoke).
				x.w.Close()
				if r := x.run(x.opts("ring3"), "true"); r.exit != 125 || !strings.Contains(r.stderr, "no policy decision could be had") {
					t.Errorf("exit %d, %s; want no run", r.exit, r.stderr)
				}
				return
			}
			got, r := x.raw(x.opts("ring3"), exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)})
			r.want(t, 0, "exited")
			a := got["math"].Reply
			if !strings.Contains(a, tt.want) || tt.mood != "allow" && (strings.Contains(a, `"ok":true`) || !strings.HasPrefix(a, "HTTP/1.1 ")) {
				t.Errorf("got %.400q %s, want %s", a, got["math"].Error, tt.want)
			}
		})
	}
}

// M-18, M-20: counts and traces go out, contents don't.
func TestM20Telemetry(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	collector := &exittest.Collector{}
	h := x.host("otlp.test", collector)
	x.settings.egress(x.w)
	x.settings.collector("http://" + h.Addr.String())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	x.file("slow.py", strings.Replace(pythonPlain, "import json", "import json, time", 1)+"\nprint('ready', os.environ.get('TRACEPARENT', ''), flush=True)\ntime.sleep(4)\n")
	c := x.prepare(x.opts("ring3", "--metrics-addr", at), "python3", "slow.py")
	c.startUntil(t, "ready")
	r, err := http.Get("http://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if !strings.Contains(string(b), "agentrun_") || strings.Contains(string(b), "6*7") {
		t.Errorf("metrics: %.1000s", b)
	}
	res := c.finish(t)
	res.want(t, 0, "exited")
	if !strings.Contains(res.stdout, "00-") {
		t.Errorf("no TRACEPARENT in the agent's environment: %q", res.stdout)
	}
	eventually(t, 10*time.Second, "a trace at the collector", func() bool { return collector.Count() > 0 })
	if collector.Holds("6*7") {
		t.Error("the collector has got arguments")
	}
}
