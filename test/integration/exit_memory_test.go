// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	"agentrun/test/exit"
)

// oneByOne calls tools in order: each finds what those before it have done.
const oneByOne = `
import json, os, urllib.error, urllib.request
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
for c in json.load(open("calls.json")):
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/" + c["tool"], ('{"args":' + c["args"] + '}').encode(), {"Content-Type": "application/json"})
    try:
        reply = ask(q).read()
    except urllib.error.HTTPError as e:
        reply = e.read()
    print(json.dumps({"name": c["name"], "reply": reply.decode()}), flush=True)
`

type toolCall struct {
	Name string `json:"name"`
	Tool string `json:"tool"`
	Args string `json:"args"`
}

func memoryCall(name, args string) toolCall { return toolCall{name, "memory", args} }

// tools makes calls in one run, one after the other.
func (x *exit) tools(o opts, list ...toolCall) map[string]string {
	x.t.Helper()
	x.json("calls.json", list)
	x.file("one-by-one.py", oneByOne)
	r := x.run(o, "python3", "one-by-one.py")
	r.want(x.t, 0, "exited")
	got := map[string]string{}
	for name, a := range outcomes(x.t, r, func(r reply) string { return r.Name }) {
		got[name] = a.Reply
	}
	return got
}

// M-14: what a run has put is there for the next one of its agent, for no other, and raw messages aren't taken. An operator
// sees it, and what he deletes is gone.
func TestM14MemoryLivesOn(t *testing.T) {
	x := newExit(t)
	for _, agent := range []string{"planner", "other"} {
		x.n.must("agent", "score", agent, "0.7") // ring 3 reads the memory and writes none (H-6)
	}
	as := func(agent string, list ...toolCall) map[string]string {
		t.Helper()
		return x.tools(x.opts("ring2", "--agent", agent), list...)
	}
	list := memoryCall("list", `{"op":"list"}`)
	got := as("planner", list,
		memoryCall("put", `{"op":"put","id":"lesson","kind":"summary","summary":"the deploy needs two approvals","tags":["ops"]}`),
		memoryCall("vector", `{"op":"put","kind":"embedding","embedding":[0.5,-1]}`),
		memoryCall("raw", `{"op":"put","kind":"summary","summary":"User: hi\nAssistant: hello"}`),
		memoryCall("messages", `{"op":"put","kind":"summary","summary":"s","messages":["hi"]}`))
	for name, want := range map[string]string{"list": `"items":[]`, "put": `"id":"lesson"`, "vector": `"id":"m1"`, "raw": "bad_arguments", "messages": "bad_arguments"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("first run, %s: got %.600q, want %q in it", name, got[name], want)
		}
	}

	got = as("planner", list,
		memoryCall("get", `{"op":"get","id":"m1"}`),
		memoryCall("search", `{"op":"search","embedding":[0.5,-1]}`))
	for name, want := range map[string]string{"list": "the deploy needs two approvals", "get": `[0.5,-1]`, "search": `"similarity":1`} {
		if !strings.Contains(got[name], want) {
			t.Errorf("second run, %s: got %.600q, want %q in it", name, got[name], want)
		}
	}
	if a := got["list"]; strings.Contains(a, "hello") {
		t.Errorf("raw messages were kept: %.600q", a)
	}

	got = as("other", list, memoryCall("delete", `{"op":"delete","id":"lesson"}`))
	for name, want := range map[string]string{"list": `"items":[]`, "delete": "not_found"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("another agent, %s: got %.600q, want %q in it", name, got[name], want)
		}
	}

	if out := x.n.must("agent", "memory", "list", "planner").stdout; !strings.Contains(out, "two approvals") || !strings.Contains(out, "2 numbers") {
		t.Errorf("the operator sees %q", out)
	}
	x.n.must("agent", "memory", "delete", "planner", "lesson")
	if a := as("planner", list)["list"]; strings.Contains(a, "lesson") || !strings.Contains(a, `"m1"`) {
		t.Errorf("after the deletion: got %.600q, want m1 alone", a)
	}
	for _, e := range x.n.audit("node") {
		if s := fmt.Sprint(e.Data); strings.Contains(s, "two approvals") || strings.Contains(s, "lesson") {
			t.Errorf("on record (M-18): %s", s)
		}
	}
}

// M-14: a run without agent has a memory, which ends with it.
func TestM14OperatorsRunKeepsNothing(t *testing.T) {
	x := newExit(t)
	put := memoryCall("put", `{"op":"put","id":"a","kind":"summary","summary":"mine"}`)
	list := memoryCall("list", `{"op":"list"}`)
	got := x.tools(x.opts("ring2"), put, list)
	if a := got["list"]; !strings.Contains(a, "mine") {
		t.Errorf("in the run itself: got %.600q after %.600q", a, got["put"])
	}
	got = x.tools(x.opts("ring3"), list)
	if a := got["list"]; !strings.Contains(a, `"items":[]`) {
		t.Errorf("in the next: got %.600q", a)
	}
}

// M-11, M-19: the tool `embeddings` asks the provider's model, which gets the proxy's key; the call is one step, and costs what
// the model does.
func TestM11EmbeddingsOfAProvider(t *testing.T) {
	x := newExit(t)
	up := x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain")
	got := x.tools(x.opts("ring3"),
		toolCall{"embeddings", "embeddings", `{"input":["some words"]}`},
		toolCall{"no model", "embeddings", `{"input":["x"],"model":"nope"}`})
	if a := got["embeddings"]; !strings.Contains(a, "0.25") || !strings.Contains(a, `"model":"embed"`) || strings.Contains(a, x.secret) {
		t.Errorf("got %.600q", a)
	}
	if a := got["no model"]; !strings.Contains(a, "not_found") {
		t.Errorf("another model: got %.600q", a)
	}
	if v := up.Visits(); len(v) != 1 || v[0].Header.Get("Authorization") != "Bearer "+x.secret {
		t.Errorf("the provider was asked %+v, want once, with the key", v)
	}
	records := calls(x.n.audit("node"), "tool")
	if len(records) != 2 || len(calls(x.n.audit("node"), "llm")) != 0 {
		t.Fatalf("records: got %v, want two of tools and none of models", codes(records))
	}
	for _, e := range records {
		cost, _ := e.Data["cost"].(float64)
		if want := e.Data["code"] == "ok"; want != (cost > 0) {
			t.Errorf("on record: %v, want what the model costs, and nothing without it", e.Data)
		}
	}
}
