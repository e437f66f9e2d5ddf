// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// keyed is a node with the agent a, which has a role, and its folder of keys.
type keyed struct {
	node
	dir string
}

func newKeyed(t *testing.T) keyed {
	k := keyed{newNode(t), t.TempDir()}
	k.must("agent", "set", "a", "--role", "reader")
	return k
}

// issue makes a key, and returns its id and its file.
func (k keyed) issue(agent, ttl, may string) (id, file string) {
	k.t.Helper()
	file = filepath.Join(k.dir, agent+ttl+may)
	r := k.must("key", "issue", "--agent", agent, "--ttl", ttl, "--may", may, "--out", file, "--json")
	var said struct {
		ID string `json:"key_id"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &said); err != nil || said.ID == "" {
		k.t.Fatalf("got %s", r.stdout)
	}
	return said.ID, file
}

const bothKinds = "agent.run.invoke,tool.math"

// M-9: what is wrong with a key, or with who comes with it, refuses the start by its reason, on record, before anything runs.
func TestM9KeysDecideAboutStarts(t *testing.T) {
	t.Parallel()
	other := newKeyed(t)
	_, foreign := other.issue("a", "1h", bothKinds)
	for _, tt := range []struct {
		name  string
		flags func(k keyed) []string
		want  string // code; empty: it runs
	}{
		{"good", func(k keyed) []string {
			_, f := k.issue("a", "1h", bothKinds)
			return []string{"--agent", "a", "--key-file", f}
		}, ""},
		{"good, without a way out", func(k keyed) []string {
			_, f := k.issue("a", "1h", bothKinds)
			return []string{"--agent", "a", "--key-file", f, "--no-gateway"}
		}, ""},
		{"another agent's", func(k keyed) []string {
			_, f := k.issue("b", "1h", bothKinds)
			return []string{"--agent", "a", "--key-file", f}
		}, "key_invalid"},
		{"nobody's run", func(k keyed) []string { _, f := k.issue("a", "1h", bothKinds); return []string{"--key-file", f} }, "key_invalid"},
		{"another node's", func(keyed) []string { return []string{"--agent", "a", "--key-file", foreign, "--no-gateway"} }, "key_invalid"},
		{"wrong signature", func(k keyed) []string {
			_, f := k.issue("a", "1h", bothKinds)
			b, err := os.ReadFile(f)
			if err != nil {
				k.t.Fatal(err)
			}
			at := len(b) - 20
			b[at] ^= 3 // a letter for a letter: still base64
			write(k.t, f, string(b), 0o600)
			return []string{"--agent", "a", "--key-file", f}
		}, "key_invalid"},
		{"expired", func(k keyed) []string {
			_, f := k.issue("a", "1s", bothKinds)
			eventually(k.t, 10*time.Second, "the key expires", func() bool { return strings.Contains(k.must("key", "list").stdout, "expired") })
			return []string{"--agent", "a", "--key-file", f}
		}, "key_invalid"},
		{"revoked", func(k keyed) []string {
			id, f := k.issue("a", "1h", bothKinds)
			k.must("key", "revoke", id)
			return []string{"--agent", "a", "--key-file", f}
		}, "key_invalid"},
		{"no role", func(k keyed) []string {
			_, f := k.issue("b", "1h", bothKinds)
			return []string{"--agent", "b", "--key-file", f}
		}, "no_role"},
		{"not for runs", func(k keyed) []string {
			_, f := k.issue("a", "1h", "tool.math")
			return []string{"--agent", "a", "--key-file", f, "--no-gateway"}
		}, "capability_missing"},
		{"none, where one is required", func(keyed) []string { return []string{"required", "--agent", "a", "--no-gateway"} }, "key_invalid"},
		{"nobody, where one is required", func(keyed) []string { return []string{"required"} }, "key_invalid"},
		{"one, where it is required", func(k keyed) []string {
			_, f := k.issue("a", "1h", bothKinds)
			return []string{"required", "--agent", "a", "--key-file", f}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := newKeyed(t)
			flags, args := tt.flags(k), []string{"exec"}
			if flags[0] == "required" {
				args, flags = []string{"--config", write(t, filepath.Join(k.dir, "config.yaml"), "keys: required\n", 0o600), "exec"}, flags[1:]
			}
			r := k.do(slices.Concat(args, flags, []string{"--", "echo", "ran"})...)
			began, recorded := 0, 0
			for _, e := range k.audit("node") {
				switch {
				case e.Kind == "sandbox_start":
					began++
				case e.Kind == "ring_check" && e.Data["rule"] == "M-9" && e.Data["reason"] == tt.want:
					recorded++
				}
			}
			if tt.want == "" {
				if r.exit != 0 || began != 1 {
					t.Errorf("exit %d, %d begun: %s", r.exit, began, r.stderr)
				}
			} else if r.exit != 125 || began != 0 || recorded != 1 || !strings.Contains(r.stderr, "("+tt.want+", M-9)") || !strings.Contains(r.stderr, "hint: ") {
				t.Errorf("exit %d, %d begun, %d on record: %s; want %s", r.exit, began, recorded, r.stderr, tt.want)
			}
		})
	}
}

const untilKeyEnds = `
import json, os, time, urllib.error, urllib.request
def call(tool, args):
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/" + tool, json.dumps({"args": args}).encode(), {"Content-Type": "application/json"})
    try: return json.load(urllib.request.urlopen(q))
    except urllib.error.HTTPError as e: return json.load(e)
def code(reply): return reply.get("code") or reply.get("error", {}).get("code")
math = lambda: call("math", {"expression": "6*7"})
assert code(math()) is None
print("other", code(call("calendar", {"op": "now"})), flush=True)
print("allowed", flush=True)
c = None
while c in (None, "rate_limited"):
    time.sleep(0.2)
    c = code(math())
print("end", c, flush=True)`

// M-9, M-21: a run may call what its key carries. When the key expires or is revoked in the middle of it, the run is in ring
// 3, each call is refused for the key, and the audit tells which run it was, by the key's id.
func TestM9KeyOfALiveRun(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"expired", "revoked"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			k := newKeyed(t)
			k.must("agent", "score", "a", "0.7")
			ttl := "1h"
			if end == "expired" {
				ttl = "4s"
			}
			ws := workspace(t)
			write(t, filepath.Join(ws, "loop.py"), untilKeyEnds, 0o644)
			id, file := k.issue("a", ttl, bothKinds)
			c := prepare(t, k.opts("--ring", "2", "--agent", "a", "--key-file", file, "--workspace", ws, "--memory", "512M"), "/usr/bin/python3", "loop.py")
			c.startUntil(t, "allowed")
			if end == "revoked" {
				k.must("key", "revoke", id)
			}
			r := c.finish(t)
			if r.exit != 0 || !strings.Contains(r.stdout, "other tool_capability_missing\n") || !strings.Contains(r.stdout, "end key_invalid\n") {
				t.Errorf("exit %d, %q, want the calls refused for the key\n%s", r.exit, r.stdout, r.stderr)
			}
			var events []string
			for _, e := range k.audit("node") {
				if e.Kind == "agent_key" && e.Data["key_id"] == id {
					events = append(events, toText(e.Data["event"]))
				}
			}
			want := "issued used"
			if end == "revoked" {
				want += " revoked"
			}
			if got := strings.Join(events, " "); got != want {
				t.Errorf("on record: %s, want %s", got, want)
			}
		})
	}
}

// M-9: nothing of a key is in the sandbox, on a command line, in logs or on record, whichever way it is presented, and no
// flag brings it in.
func TestM9KeyStaysOutside(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	_, file := k.issue("a", "1h", bothKinds)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(b))
	if fi, err := os.Stat(filepath.Join(k.node.dir, "keys", "agent.key")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("what signs: mode %v, %v", fi.Mode(), err)
	}
	ws := workspace(t)
	inside := write(t, filepath.Join(ws, "a.key"), token, 0o600)
	loose := write(t, filepath.Join(k.dir, "loose"), token, 0o644)
	for name, tt := range map[string]struct {
		flags []string
		env   []string
		want  string // in what is said; empty: it runs
	}{
		"file":              {[]string{"--key-file", file}, nil, ""},
		"variable":          {[]string{"--env-pass", "AGENTRUN_KEY"}, []string{"AGENTRUN_KEY=" + token}, ""},
		"file in sight":     {[]string{"--key-file", inside, "--workspace", ws}, nil, "other_session"},
		"file for all":      {[]string{"--key-file", loose}, nil, "mode 0644"},
		"no file":           {[]string{"--key-file", "/nonexistent/key"}, nil, "--key-file: "},
		"set as a variable": {[]string{"--key-file", file, "--env", "X=" + token}, nil, "--env: holds the agent's key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := k.opts(append(tt.flags, "--agent", "a", "--ring", "3")...)
			o.env = tt.env
			c := prepare(t, o, "/usr/bin/python3", "-c", "import os\nprint('env', dict(os.environ))\nfor f in ('self', '1'):\n"+
				"    try: print(open('/proc/%s/environ' % f).read())\n    except OSError as e: print(e)\n")
			c.Args = slices.Insert(c.Args, 1, "--log-level", "debug")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			r := c.finish(t)
			if (r.exit == 0) != (tt.want == "") || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("exit %d, %s, want %q", r.exit, r.stderr, tt.want)
			}
			if strings.Contains(r.stdout+r.stderr, token[:40]) {
				t.Errorf("it is in what was said:\n%s%s", r.stdout, r.stderr)
			}
		})
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(k.node.dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if b, _ := os.ReadFile(path); strings.Contains(string(b), token[len(token)-40:]) {
					t.Errorf("%s holds it", path)
				}
			}
			return nil
		})
	})
}
