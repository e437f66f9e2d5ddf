// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

// Runs that the tools of a run are: they are its own, whatever one asks about (H-15).

// calling is an agent's way to the code-executor.
const calling = `
import json, os, sys, threading, time, urllib.error, urllib.request
def run(code):
    body = json.dumps({"args": {"language": "python", "code": code}}).encode()
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/code-executor", body, {"Content-Type": "application/json"})
    try: return urllib.request.urlopen(q).read().decode()
    except urllib.error.HTTPError as e: return e.read().decode()
def at_once(n, code):
    threads = [threading.Thread(target=lambda: print(run(code), flush=True)) for _ in range(n)]
    for t in threads: t.start()
    for t in threads: t.join()
`

// mounting is refused in three tools, once in each: a breach of severity high, by none of them alone.
const mounting = `for _ in range(3): run("import ctypes\nctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None)")
print("called", flush=True)
time.sleep(30)`

// family is a place where an agent's tools are runs, alone or by a daemon.
func family(t *testing.T, served bool) (x *exit, p place) {
	t.Helper()
	needProgram(t, "python3")
	x = newExit(t)
	p = place{t, newPlace(t).run, x.n.dir}
	if served {
		d := newDaemon(t)
		d.state = x.n.dir
		d.start(t)
		p.run = d.run
	}
	return x, p
}

func (p place) family(x *exit, flags []string, code string) *call {
	p.t.Helper()
	x.file("agent.py", calling+code)
	return p.at(prepare(p.t, x.opts("ring2", flags...), "python3", "agent.py"))
}

// relation is what ps says of who belongs to whom.
type relation struct {
	box
	Agent  string `json:"agent"`
	Parent string `json:"parent_run_id"`
}

// children waits until so many are there, beside their parent.
func (p place) children(n int) (parent relation, kids []relation) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, fmt.Sprintf("%d children", n), func() bool {
		parent, kids = relation{}, nil
		for _, b := range asked[[]relation](p, "ps") {
			if b.Parent != "" && b.PID != 0 {
				kids = append(kids, b)
			} else if b.Parent == "" {
				parent = b
			}
		}
		return len(kids) >= n
	})
	return parent, kids
}

// H-24: what a run of a tool is refused counts for the run whose tool it is, and for its agent. The records of both name it.
func TestH24AChildsBreachIsItsParents(t *testing.T) {
	for _, served := range []bool{false, true} {
		t.Run(fmt.Sprintf("agent, served %v", served), func(t *testing.T) {
			t.Parallel()
			x, p := family(t, served)
			p.must("agent", "score", "a", "0.8")
			c := p.family(x, []string{"--agent", "a"}, mounting)
			c.startUntil(t, "called")
			eventually(t, 20*time.Second, "the agent is quarantined for a breach by its tools", func() bool {
				return strings.Contains(p.must("agent", "show", "a", "--json").stdout, "ring_breach")
			})
			eventually(t, 20*time.Second, "its run is in ring 3", func() bool { return p.list()[0].Ring == 3 })
			parent := p.list()[0]
			p.must("kill", parent.ID)
			c.finish(t)
			told := map[string]int{}
			for _, e := range x.n.audit("node") {
				switch who, run, of := e.Data["agent_id"], e.Data["run_id"], e.Data["parent_run_id"]; {
				case e.Kind == "breach" && (who != "a" || run != parent.ID):
					t.Errorf("the breach is laid to %v in run %v, want a in %s", who, run, parent.ID)
				case of != nil && (who != "a" || of != parent.ID):
					t.Errorf("%s: agent %v, parent %v, want a, %s", e.Kind, who, of, parent.ID)
				case of != nil:
					told[e.Kind]++
				}
			}
			for _, kind := range []string{"ring_check", "sandbox_start", "refusal", "sandbox_end"} {
				if told[kind] == 0 {
					t.Errorf("no %s of the child names its parent: %v", kind, told)
				}
			}
		})
	}
	t.Run("no agent", func(t *testing.T) {
		t.Parallel()
		x, p := family(t, false)
		c := p.family(x, []string{"--on-breach", "quarantine"}, mounting)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		r := c.finish(t)
		r.want(t, 137, "policy")
		if !strings.Contains(r.status.Reason, "breach") {
			t.Errorf("reason %q", r.status.Reason)
		}
	})
}

// M-3: the limits of a run hold for it and the runs of its tools together, in each hierarchy: four of 200 MiB don't fit into 256.
func TestM3ChildrenLiveInTheirParent(t *testing.T) {
	for _, served := range []bool{false, true} {
		t.Run(fmt.Sprintf("served %v", served), func(t *testing.T) {
			t.Parallel()
			x, p := family(t, served)
			p.must("agent", "score", "a", "0.8")
			c := p.family(x, []string{"--agent", "a", "--memory", "256M"}, `at_once(4, "import time\nb = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\ntime.sleep(2)\nprint('held')")`)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			parent, kids := p.children(1)
			if kids[0].Agent != "a" || kids[0].Parent != parent.ID || kids[0].Ring != 3 {
				t.Errorf("the child is %+v, want agent a, ring 3, of %s", kids[0], parent.ID)
			}
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", kids[0].PID))
			if err != nil {
				t.Fatal(err)
			}
			for _, controller := range []string{"cpu", "memory", "pids"} {
				want := filepath.Join("agentrun", parent.ID, kids[0].ID)
				if dir := cgroupDir(t, string(text), controller); !strings.Contains(dir, want) {
					t.Errorf("%s: the child is in %s, want %s", controller, dir, want)
				}
			}
			r := c.finish(t)
			r.want(t, 0, "exited")
			if n := strings.Count(r.stdout, "held"); n > 1 || r.status.PeakMemory > 256<<20 {
				t.Errorf("%d tools of 200 MiB each at once in a run of 256, at its peak %d:\n%s", n, r.status.PeakMemory, r.stdout)
			}
			if left := p.list(); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
		})
	}
}

// H-21, M-23: a kill of the run returns when its tools are dead too, those that are just being started among them.
func TestH21KillReachesChildren(t *testing.T) {
	x, p := family(t, false)
	for i := range 6 {
		c := p.family(x, nil, `print("begun", flush=True)
at_once(4, "while True: pass")`)
		c.startUntil(t, "begun")
		time.Sleep(time.Duration(i) * 60 * time.Millisecond) // nothing, or some of the way of their launch
		id := p.list()[0].ID
		p.must("kill", id)
		for _, h := range []string{"memory", "pids", "freezer", "unified"} {
			dir := filepath.Join("/sys/fs/cgroup", h, "agentrun", id)
			if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && len(b) > 0 {
				t.Errorf("%s: %s", dir, b)
			}
		}
		c.finish(t).want(t, 137, "killed")
		if left := p.list(); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	}
	noAgents(t)
}

// M-23: a run that is frozen has its tools stand still, and no other begins to run.
func TestM23FreezeReachesChildren(t *testing.T) {
	x, p := family(t, false)
	c := p.family(x, []string{"--cpu-time", "60s"}, `print("begun", flush=True)
for _ in range(4): threading.Thread(target=run, args=("while True: pass",)).start()
time.sleep(30)`)
	c.startUntil(t, "begun")
	parent, _ := p.children(1)
	p.must("freeze", parent.ID)
	used := func() int64 {
		t.Helper()
		return asked[struct {
			Usage struct {
				CPU int64 `json:"cpu_time_ns"`
			} `json:"usage"`
		}](p, "inspect", parent.ID).Usage.CPU
	}
	before := used()
	time.Sleep(500 * time.Millisecond)
	if after := used(); after-before > int64(5*time.Millisecond) {
		t.Errorf("frozen, it and its tools used %v", time.Duration(after-before))
	}
	p.must("thaw", parent.ID)
	eventually(t, 10*time.Second, "they go on", func() bool { return used()-before > int64(50*time.Millisecond) })
	p.must("kill", parent.ID)
	c.finish(t)
	noAgents(t)
}

// H-15, H-31: a tool's run is one ring below its parent at best, and follows it down at once.
func TestH15ChildFollowsItsParentsRing(t *testing.T) {
	x, p := family(t, false)
	x.settings.section("tools")["idle"] = object{
		"description": "waits", "category": "C", "read_only": true, "args": object{"type": "object"},
		"command": object{"argv": []string{"/usr/bin/sleep", "20"}, "output": "text", "ring": 2},
	}
	p.must("agent", "score", "a", "0.97", "--consensus")
	for _, tt := range []struct{ profile, want string }{{"ring1", "2"}, {"ring2", "3"}} {
		x.file("agent.py", strings.ReplaceAll(calling, "/code-executor", "/idle")+`
run("")`)
		c := p.at(prepare(t, x.opts(tt.profile, "--agent", "a"), "python3", "agent.py"))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		parent, kids := p.children(1)
		if got := fmt.Sprint(kids[0].Ring); got != tt.want {
			t.Errorf("%s: its child is in ring %s, want %s", tt.profile, got, tt.want)
		}
		if tt.profile == "ring1" {
			p.must("agent", "score", "a", "0.7") // ring 2
			eventually(t, 2*time.Second, "parent in ring 2, child in ring 3", func() bool {
				parent, kids = p.children(1)
				return parent.Ring == 2 && kids[0].Ring == 3
			})
		}
		p.must("kill", parent.ID)
		c.finish(t)
	}
	noAgents(t)
}

// H-15, M-7: a tool's program that is let out reaches the names of its `allow`, and no tool of the run whose tool it is: it would be
// none that --tool leaves out, take no approved step, and could call itself.
func TestH15ToolLetOutCallsNoTools(t *testing.T) {
	x, _ := family(t, false)
	x.host("api.test", exittest.Site())
	program := write(t, filepath.Join(t.TempDir(), "outside.py"), `
import http.client
def ask(method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", 7600)
    c.request(method, path, body, {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
    print(path, c.getresponse().read().decode())
ask("GET", "/internal/tools")
ask("POST", "/internal/tools/math", '{"args":{"expression":"6*7"}}')
ask("POST", "/mcp", '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"math","arguments":{"expression":"6*7"}}}')
ask("POST", "/internal/llm/chat", '{"model":"test","messages":[{"role":"user","content":"hello"}]}')
`, 0o644)
	x.settings.tool("outside", object{
		"description": "tries", "category": "C", "timeout": "20s", "read_only": true, "args": object{"type": "object"},
		"command": object{"output": "text", "allow": []string{"api.test"}, "argv": []string{sandboxProgram("python3"), "/outside.py"},
			"ro_bind": []string{program + ":/outside.py"}},
	})
	x.file("agent.py", strings.ReplaceAll(calling, "/code-executor", "/outside")+`print(run(""))`)
	r := x.run(x.opts("ring2", "--tool", "outside"), "python3", "agent.py")
	r.want(t, 0, "exited")
	if strings.Count(r.stdout, "not_found") != 4 || strings.Contains(r.stdout, "42") {
		t.Errorf("a tool's program got\n%s", r.stdout)
	}
	for _, e := range x.n.audit("node") {
		if e.Kind == "tool_call" && e.Data["name"] != "outside" && e.Data["code"] == "ok" {
			t.Errorf("on record: %v", e.Data)
		}
	}
}
