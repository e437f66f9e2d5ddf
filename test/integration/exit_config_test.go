// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"agentrun/test/exit"
)

// waitsThenCalls makes the gateway start when the file go is there.
const waitsThenCalls = `
import json, os, time, urllib.error, urllib.request
url = os.environ["AGENTRUN_TOOLS_URL"]
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(path, body=None):
    q = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    try: return direct.open(q).read().decode()
    except urllib.error.HTTPError as e: return e.read().decode()
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
print("list", ask(""), flush=True)
print("call", ask("/lookup", b'{"args":{"text":"x"}}'), flush=True)`

// THREATS "second looks": the file is replaced when the sandbox is built and the gateway, which starts at the first connection,
// isn't there yet. Sandbox, secrets and decisions are those of the file that was read, whatever the other one is like.
func TestThreatSecondLooksGatewayFileReplaced(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replace func(t *testing.T, x *exit, file string) error
	}{
		{"by another", func(t *testing.T, x *exit, file string) error {
			x.settings.secret("key", write(t, filepath.Join(t.TempDir(), "key"), "sk-the-other-0123456789abcdef", 0o600))
			x.settings.tool("lookup", x.httpTool("https://other.test/echo", "A"))
			x.settings.tool("more", x.httpTool("https://other.test/more", "A"))
			b, err := yaml.Marshal(x.settings)
			return errors.Join(err, os.Rename(write(t, file+".new", string(b), 0o600), file))
		}},
		{"in place, by what is wrong", func(_ *testing.T, _ *exit, file string) error {
			return os.WriteFile(file, []byte("egress: ["), 0o600)
		}},
		{"by one that everybody may write", func(_ *testing.T, _ *exit, file string) error { return os.Chmod(file, 0o666) }},
		{"by nothing", func(_ *testing.T, _ *exit, file string) error { return os.Remove(file) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needProgram(t, "python3")
			x := newExit(t)
			api, other := x.host("api.test", exittest.Site()), x.host("other.test", exittest.Site())
			x.settings.tool("lookup", x.httpTool("https://api.test/echo", "A"))
			x.file("agent.py", waitsThenCalls)
			o := x.opts("ring3")
			file := o.flags[1]
			c := x.prepare(o, "python3", "agent.py")
			c.startUntil(t, "ready")
			if err := tt.replace(t, x, file); err != nil {
				t.Fatal(err)
			}
			x.file("go", "")
			r := c.finish(t)
			r.want(t, 0, "exited")
			list, call, _ := strings.Cut(r.stdout, "call ")
			if !strings.Contains(list, `"lookup"`) || strings.Contains(list, `"more"`) || !strings.Contains(call, `"ok":true`) {
				t.Errorf("got %.600q, want the tools of the file that was read", r.stdout)
			}
			if v := api.Visits(); len(v) != 1 || v[0].Header.Get("Authorization") != "Bearer "+x.secret {
				t.Errorf("the upstream has seen %+v, want one call with the secret of the file that was read", v)
			}
			quiet(t, other)
		})
	}
}

// What the check said is kept, in a folder that is nobody else's, and asked anew when something is another that it built upon.
func TestGatewayCheckIsKept(t *testing.T) {
	x := newExit(t)
	o := x.opts("ring3")
	key := x.settings.section("secrets")["key"].(object)["file"].(string)
	dir := filepath.Join(t.TempDir(), "run")
	folder := filepath.Join(dir, "checked")
	kept := func() int {
		t.Helper()
		m, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		return len(m)
	}
	runs := func(want int) string {
		t.Helper()
		c := x.prepare(o, "/probe", "exit", "0")
		c.Args[slices.Index(c.Args, "--run-dir")+1] = dir
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		r := c.finish(t)
		if r.exit != want {
			t.Errorf("exit %d, want %d: %s", r.exit, want, r.stderr)
		}
		return r.stderr
	}
	runs(0)
	first := kept()
	runs(0)
	if got := kept(); got != first {
		t.Errorf("%d answers are kept after the same run, %d before", got, first)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v, want a folder of mode 0700", folder, info, err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if told := runs(125); !strings.Contains(told, "secrets.key") || !strings.Contains(told, "mode 0644") {
		t.Errorf("got %q, want that others may read the secret", told)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	runs(0)
	if got := kept(); got != first+1 {
		t.Errorf("%d answers are kept, want one more than %d: the file has another ctime", got, first)
	}
	if err := os.Chmod(o.flags[1], 0o660); err != nil {
		t.Fatal(err)
	}
	if told := runs(125); !strings.Contains(told, "mode 0660") {
		t.Errorf("got %q, want that the group may write the file", told)
	}
}
