// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

// cautious is what obeyer needs to speak to the safety loop. In its words + is a space. The last answer is kept, for its tokens and ids.
const cautious = `
import http.client
said = {}
def ask(endpoint, operation, params):
    global said
    c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=120)
    c.request("POST", "/internal/safety/" + endpoint, json.dumps({"operation": operation, "params": json.loads(params.replace("+", " "))}), {"Content-Type": "application/json"})
    said = json.loads(c.getresponse().read())
    if not said["success"]: return "value=" + said["error"]["code"]
    d = said["data"]
    return "value=" + ("stop" if d.get("stopped") else "ok" if "continue" not in d else "continue" if d["continue"] else "pause")
def step(hint, *more):
    p = {"element_name": "planner", "nextActionHint": hint.replace("+", " ")}
    p.update(json.loads(" ".join(more) or "{}"))
    return ask("create", "record_execution_step", json.dumps(p))
def told(key):
    found = [str(n["metadata"][key]) for n in said.get("data", {}).get("notifications", []) if key in n["metadata"]]
    return "value=" + ",".join(found)
def whole(): return "value=" + json.dumps(said)
def use(name, args): return "value=" + answer(post("/internal/tools/" + name, '{"args":' + args + '}'))
`

// cautiously begins an agent that reports its steps.
func (x *exit) cautiously(name, profile string, env []string, flags ...string) *told {
	x.t.Helper()
	needProgram(x.t, "python3")
	script, loop, ok := strings.Cut(obeyer, `print("ready"`)
	if !ok {
		x.t.Fatal("the obeying agent is another")
	}
	x.file("cautious.py", script+cautious+`print("ready"`+loop)
	x.settings.section("safety")["policy"] = write(x.t, filepath.Join(x.t.TempDir(), "policy.yaml"),
		"deny: [drop_*]\nrequiresApproval: [\"git push*\"]\nautoApprove: [\"calling *\", \"execute_agent reader\"]\n", 0o644)
	o := x.opts(profile, append([]string{"--timeout", "300s"}, flags...)...)
	o.env = env
	return place{x.t, runDir, x.n.dir}.begin(name, x.prepare(o, "python3", "cautious.py"))
}

// standing is how ps has a run.
type standing struct {
	State   string `json:"state"`
	Stopped bool   `json:"stopped"`
}

func (a *told) stands() standing { a.t.Helper(); return asked[standing](a.place, "inspect", a.name) }

func (a *told) until(want standing) {
	a.t.Helper()
	eventually(a.t, 10*time.Second, fmt.Sprintf("%s is %+v", a.name, want), func() bool { return a.stands() == want })
}

// stopAndCode waits until the agent that was told to do something forbidden stands still, and gives the challenge and its code.
func (a *told) stopAndCode() (id, code string) {
	a.t.Helper()
	a.until(standing{"frozen", true})
	list := asked[struct {
		Challenges []struct {
			ID    string `json:"id"`
			Agent string `json:"agent"`
		} `json:"challenges"`
	}](a.place, "challenges", "list")
	if len(list.Challenges) != 1 {
		a.t.Fatalf("got %+v, want one challenge", list)
	}
	return list.Challenges[0].ID, a.code(list.Challenges[0].ID)
}

// blockEvents are what the chain has of stops.
func blockEvents(log []entry) string {
	var events []string
	for _, e := range log {
		if e.Kind == "safety_block" {
			events = append(events, fmt.Sprint(e.Data["agent_id"], " ", e.Data["event"]))
		}
	}
	return strings.Join(events, ", ")
}

// S-15 from inside a live sandbox: steps, approved and used; a pause that its own agent can't confirm; identities that can't be
// claimed; a stop that freezes the agent, cuts its tunnel, and stops it in its other runs; an operator's code lets it go on.
func TestS15StopAndVerification(t *testing.T) {
	x := newExit(t)
	gone := make(chan struct{}, 8)
	site := http.NewServeMux()
	site.Handle("/", exittest.Site())
	site.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		defer func() { gone <- struct{}{} }()
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte("drip\n"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	site.HandleFunc("/tool", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	})
	x.host("api.test", site)
	x.settings.tool("look_up", x.httpTool("https://api.test/tool", "A"))
	for _, agent := range []string{"planner-1", "planner-2"} {
		x.n.must("agent", "score", agent, "0.7")
	}
	a := x.cautiously("careful", "ring2", nil, "--agent", "planner-1", "--allow", "api.test", "--safety", "enforcing", "--require-intent")
	b := x.cautiously("another", "ring3", nil, "--agent", "planner-1", "--safety", "enforcing")
	c := x.cautiously("watched", "ring3", nil, "--agent", "planner-2", "--safety", "monitoring")

	a.expect("value=INTENT_REQUIRED", "tool look_up")
	a.expect("value=continue", "step calling+look_up+for+the+weather")
	a.expect("value=ok", "tool look_up")
	a.expect("value=INTENT_REQUIRED", "tool look_up")
	b.expect("value=ok", "tool look_up")

	a.expect("value=pause", "step git+push+origin+main")
	token := strings.TrimPrefix(a.try("told confirmation_token"), "value=")
	a.expect("value=PERMISSION_DENIED", `ask execute confirm_operation {"confirmation_token":"`+token+`"}`)
	b.expect("value=TOKEN_INVALID", `ask execute confirm_operation {"confirmation_token":"`+token+`"}`) // of another supervisor's loop
	a.must("challenges", "confirm", token)
	a.expect("value=continue", `step git+push+origin+main {"confirmation_token":"`+token+`"}`)

	a.expect("value=VALIDATION_UNKNOWN_PARAM", `step drop_table+users {"agent":"planner-2"}`, `step drop_table+users {"principal":"planner-2"}`)
	c.expect("value=continue", "step drop_table+users")
	if got := c.try("whole"); !strings.Contains(got, "monitoring: would be stop") {
		t.Errorf("monitoring: got %s", got)
	}

	a.expect("value=200", "tunnel api.test")
	b.must("freeze", "another")
	stop := `step drop_table+users {"element_name":"planner-2"}`
	a.tell(stop)
	id, code := a.stopAndCode()
	select {
	case <-gone:
	case <-time.After(hang()):
		t.Error("the tunnel of a stopped agent stays open")
	}
	b.until(standing{"frozen", true})
	a.refused("conflict", "thaw", "careful")
	b.refused("conflict", "thaw", "another")
	b.must("freeze", "another")
	for _, of := range []*told{a, b} { // a pause beside is the weakest: its end lets neither go on
		of.must("pause", of.name)
		of.until(standing{"frozen", true})
		of.refused("conflict", "exec", "--in", of.name, "--", "/bin/true")
		of.must("signal", of.name, "--signal", "WINCH")
		of.until(standing{"frozen", true})
		of.refused("conflict", "resume", of.name)
		of.refused("conflict", "resume", of.name)
	}
	for _, flags := range [][]string{{"--safety", "enforcing"}, nil} {
		o := x.opts("ring3", append([]string{"--agent", "planner-1"}, flags...)...)
		if r := x.run(o, "true"); r.exit != 125 || !strings.Contains(r.stderr, "agent_stopped") || !strings.Contains(r.stderr, "agentrun challenges") {
			t.Errorf("exec %v of a stopped agent: exit %d\n%s", flags, r.exit, r.stderr)
		}
	}
	c.expect("value=continue", "step calling+on") // the label was no name
	if r := a.place.do("challenges", "verify", id, "WRONG"); r.exit == 0 {
		t.Error("a wrong code is as good as the right one")
	}
	a.must("challenges", "verify", id, code)
	if got := a.answer(stop); got != "value=stop" {
		t.Errorf("the step that stopped it: got %s", got)
	}
	if got := a.try("whole"); !strings.Contains(got, id) || strings.Contains(got, code) {
		t.Errorf("its answer has no id, or the code: %s", got)
	}
	a.until(standing{"running", false})
	b.until(standing{"frozen", false}) // by its operator
	b.must("thaw", "another")
	b.expect("value=ok", "tool look_up")
	a.expect("value=INTENT_REQUIRED", "tool look_up")
	a.expect("value=continue", "step calling+look_up+again")
	a.expect("value=ok", "tool look_up")
	a.expect("value=200", "get api.test")
	a.quit().want(t, 0, "exited")
	b.quit().want(t, 0, "exited")
	c.quit().want(t, 0, "exited")
	if got, want := blockEvents(x.n.audit("node")), "planner-1 blocked, planner-1 released"; got != want {
		t.Errorf("on record: %s, want %s", got, want)
	}
}

// S-15: an approved step holds a call to its target. Neither an argument that the tool doesn't know makes another target of it, nor
// another spelling of the one that it knows none at all.
func TestS15TargetIsNotMadeUp(t *testing.T) {
	x := newExit(t)
	bodies := make(chan string, 8)
	x.host("api.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	lookUp := x.httpTool("https://api.test/tool", "A")
	lookUp["args"] = object{"type": "object", "properties": object{"task": object{"type": "string"}, "path": object{"type": "string"}}}
	x.settings.tool("look_up", lookUp)
	a := x.cautiously("careful", "ring3", nil, "--safety", "enforcing", "--require-intent")
	a.expect("value=continue", "step calling+look_up+on+notes.txt")
	a.expect("value=INTENT_REQUIRED", `use look_up {"path":"/etc/shadow","target":"notes.txt"}`)
	a.expect("value=ok", `use look_up {"note":"more","path":"notes.txt"}`)
	for _, args := range []string{`{"Path":"/etc/shadow"}`, `{"PATH":"/etc/shadow","ta\u017fk":"x"}`} {
		a.expect("value=continue", "step calling+look_up")
		a.expect("value=bad_arguments", "use look_up "+args)
	}
	a.quit().want(t, 0, "exited")
	close(bodies)
	for got := range bodies {
		if got != `{"note":"more","path":"notes.txt"}` {
			t.Errorf("the tool was called with %s", got)
		}
	}
}

// S-8, S-15: a profile kills what is stopped. The block outlives the supervisor, and an operator finds it and lifts it where nobody
// serves a loop any more; a run without an agent leaves none behind.
func TestS15KilledAndStillStopped(t *testing.T) {
	x := newExit(t)
	config := t.TempDir()
	write(t, filepath.Join(config, "agentrun", "profiles", "guarded.yaml"),
		"name: guarded\nextends: ring3\ndescription: A test.\nsafety: {mode: enforcing, on_stop: kill, why: a test}\n", 0o644)
	env := []string{"XDG_CONFIG_HOME=" + config}
	for _, agent := range []string{"planner-1", ""} {
		var flags []string
		if agent != "" {
			flags = []string{"--agent", agent}
		}
		a := x.cautiously("doomed"+agent, "guarded", env, flags...)
		a.tell("step drop_table+users")
		r := a.finish(t)
		r.want(t, 137, "killed")
		if !strings.Contains(r.status.Reason, "policy_violation") || !strings.Contains(r.status.Reason, "safety loop") {
			t.Errorf("got %q", r.status.Reason)
		}
	}
	p := place{t, runDir, x.n.dir}
	var blocks []struct {
		Agent string `json:"agent"`
		Loop  string `json:"loop"`
	}
	if err := json.Unmarshal([]byte(p.must("challenges", "blocks", "--json").stdout), &blocks); err != nil || len(blocks) != 1 || blocks[0].Agent != "planner-1" {
		t.Fatalf("got %+v, %v, want planner-1's", blocks, err)
	}
	o := x.opts("ring3", "--agent", "planner-1")
	if r := x.run(o, "true"); r.exit != 125 || !strings.Contains(r.stderr, "agent_stopped") {
		t.Errorf("exec of a stopped agent: exit %d\n%s", r.exit, r.stderr)
	}
	p.must("challenges", "unblock", "planner-1", "--reason", "false alarm")
	x.run(o, "true").want(t, 0, "exited")
	if r := p.do("challenges", "unblock", "planner-1", "--reason", "false alarm"); r.exit == 0 {
		t.Error("it was unblocked twice")
	}
	if got := blockEvents(x.n.audit("node")); !strings.HasPrefix(got, "planner-1 blocked, ") || strings.Count(got, "released") != 2 {
		t.Errorf("on record: %s", got)
	}
}

// S-15: the daemon has one desk for all of its runs.
func TestS15StopInTheDaemon(t *testing.T) {
	d := startDaemon(t)
	x := newExit(t)
	needProgram(t, "python3")
	script, loop, _ := strings.Cut(obeyer, `print("ready"`)
	x.file("cautious.py", script+cautious+`print("ready"`+loop)
	p := place{t, d.run, d.state}
	a := p.begin("served", p.at(prepare(t, opts{profile: "ring3", flags: []string{"--workspace", x.ws, "--safety", "enforcing", "--timeout", "300s"}}, "python3", "cautious.py")))
	if b := a.seen(); b.Supervisor != d.Process.Pid {
		t.Fatalf("supervised by %d, want the daemon %d", b.Supervisor, d.Process.Pid)
	}
	a.tell("step rm+-rf+/+--no-preserve-root")
	id, code := a.stopAndCode()
	a.must("challenges", "verify", id, code)
	if got := a.answer("step rm+-rf+/+--no-preserve-root"); got != "value=stop" {
		t.Errorf("got %s, want stop", got)
	}
	a.quit().want(t, 0, "exited")
}

// S-6: what an agent did by itself is forgotten where a human starts it again, and not where its kept sandbox does: a pause after a failure
// would be over with its run, and so would the step limit.
func TestS6SandboxesStartIsNoHuman(t *testing.T) {
	needProgram(t, "python3")
	d := startDaemon(t, "--pool-max", "0")
	p := place{t, d.run, d.state}
	p.must("agent", "score", "planner-1", "0.7")
	p.must("create", "--name", "fails", "--agent", "planner-1", "--ring", "2", "--safety", "enforcing", "--restart", "on-failure", "--timeout", "60s", "--", "python3", "-c", `
import http.client, json, os, sys
log = os.path.expanduser("~/log")
run = len(open(log).readlines()) if os.path.exists(log) else 0
c = http.client.HTTPConnection("127.0.0.1", 7600)
params = {"element_name": "x", "nextActionHint": "using the math tool to compute 6*7"}
if run == 0: params["outcome"] = "failure"
c.request("POST", "/internal/safety/create", json.dumps({"operation": "record_execution_step", "params": params}), {"Content-Type": "application/json"})
with open(log, "a") as f: f.write(json.dumps(json.loads(c.getresponse().read())["data"]["continue"]) + "\n")
sys.exit(1 if run == 0 else 0)
`)
	t.Cleanup(func() { p.do("rm", "-f", "fails") })
	said := func(want string) {
		t.Helper()
		var got string
		eventually(t, hang(), "its runs end", func() bool {
			b, _ := os.ReadFile(filepath.Join(p.layer("fails"), "homes/home/files/log"))
			got = strings.Join(strings.Fields(string(b)), " ")
			return strings.Count(got, " ") == strings.Count(want, " ") && len(p.lives("fails")) == 0
		})
		if got != want {
			t.Errorf("its steps may go on: %s, want %s", got, want)
		}
	}
	p.must("start", "fails")
	said("false false")
	eventually(t, hang(), "somebody starts it", func() bool { return p.do("start", "fails").exit == 0 })
	said("false false true")
}
