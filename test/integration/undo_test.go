// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"agentrun/internal/hostcaps"
)

// bookings is an upstream whose calls can be undone. Its ids are numbers that no float64 holds.
type bookings struct {
	*httptest.Server
	mu     sync.Mutex
	made   int
	undone []string // what was asked for, in its order
	then   func()   // comes before an undo is answered; nil: nothing
}

func newBookings(t *testing.T) *bookings {
	b := &bookings{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.Method == http.MethodPost {
			b.made++
			fmt.Fprintf(w, `{"booking":{"id":%d}}`, 9007199254740993+2*b.made)
			return
		}
		b.undone = append(b.undone, r.URL.Path+" "+string(body))
		if b.then != nil {
			b.then()
		}
		if strings.Contains(string(body), "stuck") {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bookings) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.undone)
}

// tool is one of the bookings', whose calls can be undone for so long.
func (b *bookings) tool(window string) object {
	return object{
		"description": "books a place", "category": "B", "reversibility": "full", "timeout": "20s",
		"args": object{"type": "object", "properties": object{"place": object{"type": "string"}}, "required": []string{"place"}, "additionalProperties": false},
		"http": object{"url": b.URL + "/bookings", "allow_private": true},
		"undo": object{
			"window": window, "with": object{"id": "/result/booking/id", "place": "/args/place"},
			"http": object{"url": b.URL + "/bookings/{id}", "method": "DELETE", "send": "json", "allow_private": true},
		},
	}
}

const using = `
import json, os, sys, time, urllib.request
def use(tool, **args):
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/" + tool, json.dumps({"args": args}).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(q).read().decode()
`

// undoables are the calls of a place that can be undone, by their tools in the order in which they were made.
func (p place) undoables() (ids map[string][]string) {
	ids = map[string][]string{}
	for _, e := range p.audit() {
		if id, ok := e.Data["call_id"]; e.Kind == "tool_call" && ok && e.Data["undo_until"] != nil {
			name := toText(e.Data["name"])
			ids[name] = append(ids[name], toText(id))
		}
	}
	return ids
}

// notUndone is an undo that must be refused with this code and a way out.
func (p place) notUndone(code string, args ...string) {
	p.t.Helper()
	if r := p.do(append([]string{"undo"}, args...)...); r.exit != 125 || !strings.Contains(r.stderr, "("+code+", ") || !strings.Contains(r.stderr, "hint: ") {
		p.t.Errorf("undo %v: exit %d, want %s\n%s", args, r.exit, code, r.stderr)
	}
}

// H-7: a call is undone by an operator when its run is over: once, within its window, with arguments of the call and of its result, which
// are kept nowhere else and no longer.
func TestH7UndoOfACall(t *testing.T) {
	t.Parallel()
	x, p := family(t, false)
	b := newBookings(t)
	beside := workspace(t)
	x.settings.tool("book", b.tool("1h"))
	x.settings.tool("brief", b.tool("1s"))
	x.settings.tool("plain", changed(b.tool("1h"), "undo", nil))
	x.settings.tool("note", object{
		"description": "notes", "category": "C", "reversibility": "partial", "timeout": "60s",
		"args":    object{"type": "object", "properties": object{"text": object{"type": "string"}}},
		"command": object{"argv": []string{"/bin/sh", "-c", `read -r x; echo '{"n":[7,{"at":"x; touch /tmp/owned"}]}'`}},
		"undo": object{
			"window": "24h", "with": object{"at": "/result/n/1/at", "text": "/args/text"},
			"command": object{"argv": []string{"/bin/sh", "-c", "cat > undone"}, "ring": 2, "workspace": beside},
		},
	})
	const word = "plaintext-of-the-agent"
	r := p.family(x, nil, using+`
print(use("book", place="`+word+`"), use("book", place="second"), use("brief", place="x"), use("plain", place="x"), use("note", text="$(id) `+word+`"))
`).toItsEnd(t)
	r.want(t, 0, "exited")
	ids := p.undoables()
	if len(ids["book"]) != 2 || len(ids["brief"]) != 1 || len(ids["note"]) != 1 || len(ids["plain"]) != 0 {
		t.Fatalf("on record as undoable: %v\n%s%s", ids, r.stdout, r.stderr)
	}
	if n := len(asked[[]any](p, "undo", "--list")); n != 4 {
		t.Errorf("%d calls in the list, want 4", n)
	}
	first, note := ids["book"][0], ids["note"][0]
	p.notUndone("other_session", first, "--session", "s1")
	p.notUndone("undo_unknown", first+"1")
	p.notUndone("undo_unknown", "../"+first)
	p.must("undo", first)
	if got, want := b.asked(), []string{`/bookings/9007199254740995 {"place":"` + word + `"}`}; !slices.Equal(got, want) {
		t.Errorf("the upstream was asked %q, want %q", got, want)
	}
	p.notUndone("undo_done", first)
	p.must("undo", note)
	if text, err := os.ReadFile(filepath.Join(beside, "undone")); string(text) != `{"at":"x; touch /tmp/owned","text":"$(id) `+word+`"}` {
		t.Errorf("the program that undoes read %q, %v", text, err)
	}
	eventually(t, 20*time.Second, "the short window is over", func() bool {
		return strings.Contains(p.must("undo", "--list").stdout, "expired")
	})
	p.notUndone("undo_expired", ids["brief"][0])
	if n := len(b.asked()); n != 1 {
		t.Errorf("the upstream was asked %d times, want once: %v", n, b.asked())
	}
	states := map[string]int{}
	for _, e := range p.audit() {
		if text := fmt.Sprint(e.Data); strings.Contains(text, word) {
			t.Errorf("plaintext on record: %s", text)
		}
		if e.Kind == "undo" {
			states[fmt.Sprint(e.Data["tool"], " ", e.Data["state"], " ", e.Data["trigger"])]++
		}
	}
	if want := map[string]int{"book undoing operator": 1, "book undone operator": 1, "note undoing operator": 1, "note undone operator": 1}; fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("on record: %v, want %v", states, want)
	}
	// Only what can still be undone is kept, and by us alone.
	left, _ := filepath.Glob(filepath.Join(p.state, "undo", "*.args"))
	if len(left) != 1 || !strings.Contains(left[0], ids["book"][1]) {
		t.Errorf("arguments are kept of %v, want of %s alone", left, ids["book"][1])
	}
	for _, f := range left {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

// changed is o with another value for a key; nil: without the key.
func changed(o object, key string, value any) object {
	if o[key] = value; value == nil {
		delete(o, key)
	}
	return o
}

// H-7, H-21: the kill of a run undoes its calls that still can be, the latest first; one that can't be keeps no other. By the API an
// operator undoes one while the run lives.
func TestH7KillUndoesTheCalls(t *testing.T) {
	for _, served := range []bool{false, true} {
		t.Run(fmt.Sprintf("served %v", served), func(t *testing.T) {
			t.Parallel()
			x, p := family(t, served)
			b := newBookings(t)
			x.settings.tool("book", b.tool("10m"))
			c := p.family(x, nil, using+`
for place in ("a", "b", "stuck", "d"): use("book", place=place)
print("booked", flush=True)
time.sleep(60)`)
			c.startUntil(t, "booked")
			ids := p.undoables()["book"]
			if len(ids) != 4 {
				t.Fatalf("on record as undoable: %v", ids)
			}
			p.must("undo", ids[1])
			run := p.list()[0].ID
			killed := asked[[]struct {
				Result struct {
					Compensations int `json:"compensations_executed"`
					Dead          bool
					Errors        []struct{ Name string }
				}
			}](p, "kill", run)
			c.finish(t)
			if got := strings.Join(b.asked(), "; "); got != `/bookings/9007199254740997 {"place":"b"}; /bookings/9007199254741001 {"place":"d"}; `+
				`/bookings/9007199254740999 {"place":"stuck"}; /bookings/9007199254740995 {"place":"a"}` {
				t.Errorf("the upstream was asked %s", got)
			}
			if k := killed[0].Result; k.Compensations != 3 || len(k.Errors) != 1 || k.Errors[0].Name != "undo "+ids[2] {
				t.Errorf("the kill says %+v", k)
			}
			var told []string
			for _, e := range p.audit() {
				if e.Kind == "undo" && e.Data["state"] != "undoing" {
					told = append(told, strings.TrimPrefix(fmt.Sprint(e.Data["call_id"], e.Data["state"], e.Data["trigger"], e.Data["code"]), run))
				}
			}
			n := func(id string) string { return strings.TrimPrefix(id, run) }
			want := []string{n(ids[1]) + "undoneoperator<nil>", n(ids[3]) + "undonekill<nil>", n(ids[2]) + "failedkilltool_failed", n(ids[0]) + "undonekill<nil>"}
			if !slices.Equal(told, want) {
				t.Errorf("on record: %q, want %q", told, want)
			}
			for _, id := range ids {
				p.notUndone("undo_done", id)
			}
		})
	}
}

// H-6, H-7: an agent that leaves a call in its middle, or ends its run then, doesn't keep it from being undone. Ring 2 may make it because it
// can be.
func TestH7LeavingKeepsNoUndoAway(t *testing.T) {
	for how, after := range map[string]string{"hangs up": `s.close(); print("left", flush=True); time.sleep(60)`, "ends": `print("left", flush=True)`} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			x, p := family(t, false)
			b := newBookings(t)
			var called atomic.Bool
			answer := make(chan struct{})
			late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/called" {
					fmt.Fprint(w, called.Load())
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				called.Store(true)
				select {
				case <-answer:
					fmt.Fprint(w, `{"booking":{"id":1}}`)
				case <-r.Context().Done():
				}
			}))
			t.Cleanup(late.Close)
			x.settings.tool("book", changed(b.tool("1h"), "http", object{"url": late.URL + "/bookings", "allow_private": true}))
			x.settings.tool("called", changed(x.httpTool(late.URL+"/called", "A"), "http", object{"url": late.URL + "/called", "allow_private": true}))
			c := p.family(x, nil, using+`
import socket
s = socket.create_connection(("127.0.0.1", 7600))
body = b'{"args": {"place": "a"}}'
s.sendall(b"POST /internal/tools/book HTTP/1.1\r\nHost: 127.0.0.1:7600\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
while json.loads(use("called"))["output"] is not True: time.sleep(0.2)
`+after)
			c.startUntil(t, "left")
			if how == "hangs up" {
				time.Sleep(200 * time.Millisecond) // to be met while it still waits; not needed to be right
			}
			close(answer)
			eventually(t, 20*time.Second, "the call is on record as one that can be undone", func() bool { return len(p.undoables()["book"]) == 1 })
			if t.Failed() {
				return
			}
			p.must("undo", p.undoables()["book"][0])
			if n := len(b.asked()); n != 1 {
				t.Errorf("the upstream was asked %d times to undo it", n)
			}
		})
	}
}

// H-7, M-23: by the API, for the supervisor's own user; with the same refusals.
func TestH7UndoByAPI(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	x := newExit(t)
	d := newDaemon(t)
	d.state = x.n.dir
	d.start(t)
	p := place{t, d.run, d.state}
	b := newBookings(t)
	x.settings.tool("book", b.tool("10m"))
	p.family(x, nil, using+`print(use("book", place="a"))`).toItsEnd(t).want(t, 0, "exited")
	id := p.undoables()["book"][0]
	if list, _ := json.Marshal(d.api(t, "GET", "/v1/calls", "", 200)); !strings.Contains(string(list), id) || strings.Contains(string(list), `"place"`) {
		t.Errorf("got %s", list)
	}
	d.api(t, "POST", "/v1/calls/"+id+"/undo", `{"session":"other"}`, 403)
	d.api(t, "POST", "/v1/calls/nobody/undo", `{}`, 404)
	if got := d.api(t, "POST", "/v1/calls/"+id+"/undo", `{}`, 200); got["state"] != "undone" || got["by"] != "uid:0" {
		t.Errorf("got %v", got)
	}
	d.api(t, "POST", "/v1/calls/"+id+"/undo", `{}`, 409)
	if got := b.asked(); len(got) != 1 {
		t.Errorf("the upstream was asked %q", got)
	}
}

// H-7, H-28: a supervisor that is killed leaves calls that can be undone; an undo that is killed in the middle leaves one that nobody makes
// again, since nobody knows whether it happened, and one that is killed before it has begun anything leaves one that can be undone.
func TestH7UndoAfterKills(t *testing.T) {
	t.Parallel()
	x, p := family(t, false)
	b := newBookings(t)
	x.settings.tool("book", b.tool("10m"))
	c := p.family(x, nil, using+`
for place in ("a", "b", "c"): use("book", place=place)
print("booked", flush=True)
time.sleep(60)`)
	c.startUntil(t, "booked")
	c.Process.Kill()
	c.Wait()
	p.must("gc")
	ids := p.undoables()["book"]
	if len(ids) != 3 {
		t.Fatalf("on record as undoable: %v", ids)
	}
	p.must("undo", ids[0])
	killed := func(id, at string) {
		cmd := exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "undo", id)
		cmd.Env = append(os.Environ(), "AGENTRUN_TESTONLY_FAULT=record/undo=kill@"+at)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("it was to be killed: %s", out)
		}
	}
	killed(ids[1], "2") // the record of its outcome
	p.notUndone("undo_done", ids[1])
	killed(ids[2], "1") // that of its begin: nothing was done
	p.must("undo", ids[2])
	if n := len(b.asked()); n != 3 {
		t.Errorf("the upstream was asked %d times, want three times", n)
	}
	if list := p.must("undo", "--list").stdout; !strings.Contains(list, "undoing") {
		t.Errorf("got %s", list)
	}
}

// H-7: an ordinary user's calls are undone by that user, and by nobody whose state they aren't in.
func TestH7RootlessUndo(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	u := someone(t)
	b := newBookings(t)
	text, err := yaml.Marshal(object{"tools": object{"book": b.tool("10m")}})
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, filepath.Join(u.home, "gateway.yaml"), string(text), 0o600)
	if err := os.Chown(file, ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := u.run(t, "exec", "--best-effort", "--ring", "2", "--gateway", file, "--", "python3", "-c", using+`print(use("book", place="a"))`)
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errOut)
	}
	var list []struct {
		Call string `json:"call_id"`
	}
	if _, out, errOut = u.run(t, "undo", "--list", "--json"); json.Unmarshal([]byte(out), &list) != nil || len(list) != 1 {
		t.Fatalf("%s%s", out, errOut)
	}
	newPlace(t).notUndone("undo_unknown", list[0].Call)
	code, out, errOut = u.run(t, "undo", list[0].Call)
	if hostcaps.Landlock(1).Check() != nil {
		return // refused, as the docs say
	}
	if code != 0 || len(b.asked()) != 1 {
		t.Errorf("exit %d, the upstream was asked %q\n%s%s", code, b.asked(), out, errOut)
	}
}

func (c *call) toItsEnd(t *testing.T) result {
	t.Helper()
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c.finish(t)
}

// H-7: an agent's calls don't take all the room that a node has for calls which can be undone, however many runs it has: other agents
// would be kept from such tools for as long as the window lasts.
func TestH7OneAgentLeavesRoom(t *testing.T) {
	t.Parallel()
	x, p := family(t, false)
	b := newBookings(t)
	x.settings.tool("book", b.tool("1h"))
	dir := filepath.Join(p.state, "undo")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour).UTC()
	for i := range 9 * 256 { // of 4096; those of nine runs
		run := fmt.Sprint("earlier-", i/256)
		call := fmt.Sprint(run, ".", i)
		known, err := json.Marshal(object{"call_id": call, "run_id": run, "agent_id": "greedy", "tool": "book", "made_at": until.Add(-time.Hour), "until": until, "state": "open"})
		if err != nil {
			t.Fatal(err)
		}
		for suffix, text := range map[string]string{".json": string(known), ".args": `{"id":1}`} {
			f := write(t, filepath.Join(dir, call+suffix), text, 0o600)
			if err := os.Chtimes(f, until, until); err != nil {
				t.Fatal(err)
			}
		}
	}
	for agent, want := range map[string]string{"greedy": "unavailable", "modest": "made"} {
		x.n.must("agent", "score", agent, "0.7")
		r := p.family(x, []string{"--agent", agent}, using+`
try: print("made", use("book", place="x"))
except urllib.error.HTTPError as e: print(json.load(e)["error"]["code"])
`).toItsEnd(t)
		r.want(t, 0, "exited")
		if !strings.HasPrefix(r.stdout, want) {
			t.Errorf("%s: got %s, want %s", agent, r.stdout, want)
		}
	}
}
