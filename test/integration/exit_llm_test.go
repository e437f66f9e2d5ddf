// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

func chat(model string, stream bool) []string {
	return post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"what is it?"}]}`, model, stream),
		"Authorization: Bearer made-up-by-the-agent")
}

// M-12, M-17: the proxy's key goes to the upstream and nowhere else; thoughts stay out, however they are dressed.
func TestM17ModelUpstream(t *testing.T) {
	x := newExit(t)
	up := x.host("model.test", exittest.Model(x.secret))
	models := []string{"plain", "reasoning", "echo-key", "nonsense", "broken"}
	x.settings.model("http://model.test/v1", 1, models...)
	var tries []exchange
	for _, m := range models {
		tries = append(tries, exchange{Name: m, To: toolsAt, Send: chat(m, false)}, exchange{Name: m + " stream", To: toolsAt, Send: chat(m, true)})
	}
	tries = append(tries,
		exchange{Name: "other model", To: toolsAt, Send: chat("not-configured", false)},
		exchange{Name: "embeddings", To: toolsAt, Send: post("/internal/llm/embeddings", `{"model":"embed","input":"x"}`)},
		exchange{Name: "usage", To: toolsAt, Send: []string{"GET /internal/usage HTTP/1.1\r\nHost: " + toolsAt + "\r\nConnection: close\r\n\r\n"}})
	got, r := x.raw(x.opts("ring2"), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		for _, never := range []string{x.secret, exittest.Thought, "captive portal", "<think>"} {
			if strings.Contains(a.Reply, never) {
				t.Errorf("%s: %q is in %.600q", name, never, a.Reply)
			}
		}
	}
	for name, want := range map[string]string{
		"plain": "the answer is 42", "plain stream": "[DONE]", "reasoning": "the answer is 42", "reasoning stream": "[DONE]",
		"embeddings": "0.25", "other model": `"code"`, "nonsense": `"code"`, "echo-key": `"code"`, "usage": "run_cost_left",
	} {
		if !strings.Contains(got[name].Reply, want) {
			t.Errorf("%s: got %.600q %s, want %q in it", name, got[name].Reply, got[name].Error, want)
		}
	}
	if a := got["broken stream"].Reply; strings.Contains(a, "[DONE]") {
		t.Errorf("a stream that was cut passes for whole: %.600q", a)
	}
	if len(up.Visits()) == 0 {
		t.Fatal("the upstream was never asked")
	}
	for _, v := range up.Visits() {
		if v.Header.Get("Authorization") != "Bearer "+x.secret || strings.Contains(fmt.Sprint(v.Header), "made-up") {
			t.Errorf("the upstream has got %v", v.Header)
		}
	}
	for _, e := range x.n.audit("node") {
		for _, never := range []string{"what is it?", "the answer is", exittest.Thought, x.secret} {
			if strings.Contains(fmt.Sprint(e.Data), never) {
				t.Errorf("on record (M-18): %v", e.Data)
			}
		}
	}
}

// M-19: the cap ends a stream in its middle, tells the agent so, and hangs up on the upstream, which bills by the word.
func TestM19CapStopsAStream(t *testing.T) {
	x := newExit(t)
	up := x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 5, "endless", "plain") // 1000 tokens are the cap, with those of the prompt
	o := x.opts("ring3", x.planned("spender", "--plan", "freemium")...)
	began := time.Now()
	got, r := x.raw(o, exchange{Name: "stream", To: toolsAt, Send: chat("endless", true)}, exchange{Name: "next", To: toolsAt, Send: chat("plain", false)})
	r.want(t, 0, "exited")
	if a := got["stream"].Reply; !strings.Contains(a, "word word") || !strings.Contains(a, "cost_exceeded") || strings.Contains(a, "[DONE]") {
		t.Errorf("got %d bytes ending in %.300q, want words and then cost_exceeded", len(a), a[max(0, len(a)-300):])
	}
	if a := got["next"].Reply; !strings.Contains(a, "cost_exceeded") {
		t.Errorf("the next call: got %.300q", a)
	}
	t.Logf("%d connections in %v", up.Connections(), time.Since(began))
	for _, e := range calls(x.n.audit("node"), "llm") {
		if cost, _ := e.Data["cost"].(float64); cost > 1.2*runCap {
			t.Errorf("booked %v millionths under a cap of %d: %v", cost, runCap, e.Data)
		}
	}
}

// costly is a provider of Messages whose replies may cost anything: model thinks says that it has written 30 000 tokens that
// nobody sees, hang answers when nobody listens any more, and begins says what it counts at the beginning and nothing more.
func costly(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if strings.Contains(string(body), `"begins"`) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `event: message_start`+"\n"+`data: {"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":20,"output_tokens":1}}}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if strings.Contains(string(body), `"hang"`) {
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"type":"message","role":"assistant","content":[],"stop_reason":"end_turn","usage":{"input_tokens":20,"output_tokens":30000}}`)
}

func (x *exit) costly() {
	x.host("model.test", http.HandlerFunc(costly))
	x.settings["llm"] = object{"providers": []object{{
		"name": "costly", "base_url": "http://model.test/v1", "secret": "key", "allow_private": true, "dialects": []string{"messages"},
		"models": []object{{"name": "*", "mode": "transparent", "input": 1_000_000, "output": 1_000_000, "max_tokens": 200}},
	}}}
}

// M-19: what a call cost beyond its run's cap is on the day's account. Else a run after the other spends without end: each
// call begins with room for its estimate, and a provider may say that its thoughts were longer.
func TestM19WhatIsOverCountsForTheDay(t *testing.T) {
	x := newExit(t)
	x.costly()
	o := x.opts("ring3", x.planned("spender", "--plan", "freemium")...) // a run 5000, a day 50 000
	ask := exchange{Name: "ask", To: toolsAt, Send: post("/v1/messages", `{"model":"thinks","max_tokens":100,"messages":[]}`)}
	replies := ""
	for range 4 {
		got, _ := x.raw(o, ask)
		replies += got["ask"].Reply
	}
	var booked float64
	for _, e := range calls(x.n.audit("node"), "llm") {
		cost, _ := e.Data["cost"].(float64)
		booked += cost
	}
	if booked != 60_040 || !strings.Contains(replies, "the day's quota for cost") {
		t.Errorf("%v millionths on a day of 50000; the agent heard %.1500s", booked, replies)
	}
	var usage []struct{ Cost int64 }
	if r := x.n.must("usage", "--json", "--agent", "spender"); json.Unmarshal([]byte(r.stdout), &usage) != nil || len(usage) != 1 || usage[0].Cost < 60_040 {
		t.Errorf("usage: %s", r.stdout)
	}
}

const hangingUp = `
import json, os, socket, sys, time, urllib.parse
at = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
for model, stream in (("hang", False), ("hang", True), ("begins", True)):
    s = socket.create_connection((at.hostname, at.port))
    body = json.dumps({"model": model, "stream": stream, "messages": []})
    s.sendall(("POST /v1/messages HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (at.netloc, len(body), body)).encode())
    time.sleep(1.2)
    s.close()
time.sleep(0.5)
`

// M-19: whoever hangs up before the first word pays all the same: a whole reply is written to its end, and of a stream may
// have been thought what nobody saw, whatever the provider counted at its beginning.
func TestM19HangingUpIsPaidFor(t *testing.T) {
	x := newExit(t)
	x.costly()
	x.file("hang.py", hangingUp)
	x.run(x.opts("ring3"), "python3", "hang.py").want(t, 0, "exited")
	llm := calls(x.n.audit("node"), "llm")
	if len(llm) != 3 {
		t.Fatalf("%d calls on record, want 3: %v", len(llm), llm)
	}
	for i, least := range []float64{200, 100, 100} { // its max_tokens; a second and more of each stream
		if cost, _ := llm[i].Data["cost"].(float64); cost < least || cost > 300 {
			t.Errorf("call %d: %v millionths, want %v and a little more for what was asked: %v", i, cost, least, llm[i].Data)
		}
	}
}

// M-19: nor is a reply free that the agent has made unreadable, by asking for a form of it that isn't passed on, or for more
// of it than is read.
func TestM19UnreadableReplyIsPaidFor(t *testing.T) {
	x := newExit(t)
	x.host("model.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := "application/json"
		if strings.Contains(r.URL.Path, "odd") || r.URL.Query().Get("alt") == "proto" {
			kind = "application/x-protobuf"
		}
		w.Header().Set("Content-Type", kind)
		fmt.Fprintf(w, `{"candidates":[{"content":{"parts":[{"text":%q}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":20,"candidatesTokenCount":150}}`,
			strings.Repeat("word ", 50*strings.Count(r.URL.Path, "long")))
	}))
	x.settings["llm"] = object{"limits": object{"reply": 300}, "providers": []object{{
		"name": "google", "base_url": "http://model.test/v1beta", "secret": "key", "allow_private": true, "dialects": []string{"gemini"},
		"models": []object{{"name": "*", "mode": "transparent", "input": 1_000_000, "output": 1_000_000, "max_tokens": 200}},
	}}}
	var asks []exchange
	for i, call := range []string{"plain:generateContent?alt=proto", "odd:generateContent", "long:generateContent"} {
		asks = append(asks, exchange{Name: fmt.Sprint(i), To: toolsAt, Send: post("/v1beta/models/"+call, `{"contents":[]}`)})
	}
	got, r := x.raw(x.opts("ring3"), asks...)
	r.want(t, 0, "exited")
	if a := got["0"].Reply; !strings.Contains(a, "candidates") {
		t.Errorf("the agent chose the form of the reply: %.600s", a)
	}
	llm := calls(x.n.audit("node"), "llm")
	if len(llm) != len(asks) {
		t.Fatalf("%d calls on record, want %d: %v", len(llm), len(asks), llm)
	}
	for i, least := range []float64{150, 200, 200} { // what the provider says; its max_tokens
		if cost, _ := llm[i].Data["cost"].(float64); cost < least || cost > 300 {
			t.Errorf("call %d: %v millionths, want %v and a little more for what was asked: %v", i, cost, least, llm[i].Data)
		}
	}
}

const spending = `
import json, os, sys, time, urllib.request, urllib.error
for i in range(5):
    body = json.dumps({"model": "plain", "messages": [{"role": "user", "content": "x"}]}).encode()
    q = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"Content-Type": "application/json"})
    try: urllib.request.urlopen(q).read(); print("paid", flush=True)
    except urllib.error.HTTPError as e:
        print(json.load(e)["error"]["code"], flush=True)
        time.sleep(float(sys.argv[1]))
`

// M-19: at a cap the run ends as policy, after the agent has heard of it; a plan may have it go on. What isn't expected to fit isn't
// started, and a stake raises the time.
func TestM19CapEndsTheRun(t *testing.T) {
	x := newExit(t)
	x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain")
	model := x.settings["llm"].(object)["providers"].([]object)[0]["models"].([]object)[1]
	model["max_tokens"], model["output"] = 5, 300_000_000 // 1500 millionths a call, and the cap is 5000
	x.file("spend.py", spending)
	agent := x.planned("spender", "--plan", "freemium")
	r := x.run(x.opts("ring3", agent...), "python3", "spend.py", "30")
	r.want(t, 137, "policy")
	if !strings.Contains(r.status.Reason, "plan freemium: the run's quota for cost") || !strings.HasSuffix(r.stdout, "paid\npaid\npaid\ncost_exceeded\n") {
		t.Errorf("reason %q, the agent heard %q", r.status.Reason, r.stdout)
	}
	var triggers []any
	for _, e := range x.n.audit("node") {
		if e.Kind == "kill_order" {
			triggers = append(triggers, e.Data["trigger"])
		}
	}
	if len(triggers) != 1 || triggers[0] != "budget" {
		t.Errorf("kills on record: %v, want one by the budget", triggers)
	}

	own := t.TempDir()
	write(t, filepath.Join(own, "agentrun", "plans.yaml"), `plans: {freemium: {why: x, parallel: 1, time: 60s, cost_per_run: "0.005", cost_per_day: "0.05",
  tokens_per_run: 20000, tokens_per_day: 100000, steps: 20, tools: {allow: ["*"]}, at_cap: go_on}}`, 0o600)
	o := x.opts("ring3", agent...)
	o.env = []string{"XDG_CONFIG_HOME=" + own}
	r = x.run(o, "python3", "spend.py", "0")
	r.want(t, 0, "exited")
	if strings.Count(r.stdout, "cost_exceeded") != 2 {
		t.Errorf("with at_cap: go_on the agent heard %q", r.stdout)
	}

	x.run(x.opts("ring3", append(agent, "--expect", "cost=0.005,tokens=20000,steps=20")...), "true").want(t, 0, "exited")
	for flag, code := range map[string]string{"cost=0.006": "cost_exceeded", "tokens=20001": "quota_exceeded", "steps=21": "quota_exceeded", "cost=-1": "--expect"} {
		if r := x.run(x.opts("ring3", append(agent, "--expect", flag)...), "true"); r.exit != 125 || !strings.Contains(r.stderr, code) {
			t.Errorf("--expect %s: exit %d, %q, want %s", flag, r.exit, r.stderr, code)
		}
	}
	late := append(agent, "--timeout", "100s")
	if r := x.run(x.opts("ring3", late...), "true"); r.exit != 125 || !strings.Contains(r.stderr, "plan freemium gives a run 60s at most") {
		t.Errorf("exit %d, %q", r.exit, r.stderr)
	}
	x.n.must("agent", "set", "--stake", "20000", "spender")
	x.run(x.opts("ring3", late...), "true").want(t, 0, "exited")
}

// M-15: in confidential mode there are embeddings and no plaintext.
func TestM15ConfidentialMode(t *testing.T) {
	x := newExit(t)
	api := x.host("api.test", exittest.Site())
	x.host("model.test", exittest.Model(x.secret))
	tool := x.httpTool("https://api.test/echo", "A")
	tool["plaintext"] = true
	x.settings.tool("messages", tool)
	x.settings.model("http://model.test/v1", 1, "plain", "early")
	got, r := x.raw(x.opts("ring3", x.planned("vault-1", "--mode", "confidential")...),
		exchange{Name: "tool", To: toolsAt, Send: post("/internal/tools/messages", `{"args":{"text":"x"}}`)},
		exchange{Name: "chat", To: toolsAt, Send: chat("plain", false)},
		exchange{Name: "stream", To: toolsAt, Send: chat("plain", true)},
		exchange{Name: "embeddings", To: toolsAt, Send: post("/v1/embeddings", `{"model":"embed","input":"x"}`)},
		exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)})
	r.want(t, 0, "exited")
	if !denied(got["tool"].Reply, "confidential_mode_restriction") {
		t.Errorf("tool: got %.400q", got["tool"].Reply)
	}
	quiet(t, api)
	for _, name := range []string{"chat", "stream"} {
		if a := got[name].Reply; strings.Contains(a, "answer") || !strings.Contains(a, `"summary":"16 characters, 4 words, 1 lines, script Latin, digest `) {
			t.Errorf("%s: got %.400q, want counts and no content", name, a)
		}
	}
	// With a summariser of the operator's: what it says is passed on, unless it repeats the reply; model and prompt are on record.
	x.settings["llm"].(object)["summariser"] = object{"model": "plain"} // which says the same again
	for _, c := range []struct{ model, want, flag string }{{"plain", `"summary":"16 characters`, "summary_quoted"}, {"early", `"summary":"the answer is 42"`, "summary_by_"}} {
		got, r := x.raw(x.opts("ring3", "--agent", "vault-1"), exchange{Name: "chat", To: toolsAt, Send: chat(c.model, false)})
		r.want(t, 0, "exited")
		llm := calls(x.n.audit("node"), "llm")
		if a := got["chat"].Reply; !strings.Contains(a, c.want) || !strings.Contains(fmt.Sprint(llm[len(llm)-1].Data["flags"]), c.flag) {
			t.Errorf("%s: got %.400q, on record %v", c.model, a, llm[len(llm)-1].Data)
		}
	}
	if !strings.Contains(got["embeddings"].Reply, "0.25") || !strings.Contains(got["math"].Reply, "42") {
		t.Errorf("got %.300q and %.300q", got["embeddings"].Reply, got["math"].Reply)
	}
}

// dialects asks each API by its base URL of the environment, as its clients do, with the key of the environment.
const dialects = `
import json, os, sys, urllib.request, urllib.error
E = os.environ
def ask(base, path, body, **headers):
    h = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    q = urllib.request.Request(base + path, json.dumps(body, ensure_ascii=False).encode(), h)
    try: return urllib.request.urlopen(q).read().decode()
    except urllib.error.HTTPError as e: return "%d %s" % (e.code, e.read().decode())
def all(model, text, stream, only=""):
    google = ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    a, g = {"x_api_key": E["ANTHROPIC_API_KEY"], "anthropic_beta": "b-1", "anthropic_version": "1"}, {"x_goog_api_key": E["GEMINI_API_KEY"]}
    calls = {
        "messages": lambda: ask(E["ANTHROPIC_BASE_URL"], "/v1/messages?beta=true", {"model": model, "stream": stream, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}, **a),
        "responses": lambda: ask(E["OPENAI_BASE_URL"], "/responses", {"model": model, "stream": stream, "input": text, "verbosity": "low"}, authorization="Bearer " + E["OPENAI_API_KEY"]),
        "gemini": lambda: ask(E["GOOGLE_GEMINI_BASE_URL"], "/v1beta/models/" + model + google, {"contents": [{"role": "user", "parts": [{"text": text}]}]}, **g),
    }
    return {name: call() for name, call in calls.items() if only in ("", name)}
if len(sys.argv) > 3: print(all(sys.argv[1], sys.argv[2], True, sys.argv[3])[sys.argv[3]], flush=True)
else: print(json.dumps([all(sys.argv[1], sys.argv[2], s) for s in (False, True)]))`

// M-12, M-16, M-19: the three other dialects pass as they are in mode transparent, with the operator's key, by a CA of its own, counted
// from what the provider says; what was said is nowhere on record. A cap stops a stream in the form of its dialect.
func TestM16TransparentDialects(t *testing.T) {
	needProgram(t, "python3")
	x := newExit(t)
	up := x.host("models.test", exittest.Dialects(x.secret))
	provider := func(dialect string) object {
		return object{"name": dialect, "base_url": "https://models.test/v1", "secret": "key", "allow_private": true, "ca_file": x.w.CAFile, "dialects": []string{dialect}, "models": []object{
			{"name": "claude-*", "aliases": []string{"endless"}, "mode": "transparent", "input": 10_000_000, "output": 10_000_000, "from_cache": 1_000_000, "max_tokens": 100},
		}}
	}
	x.settings["llm"] = object{"providers": []object{provider("messages"), provider("responses"), provider("gemini")}}
	x.file("dialects.py", dialects)
	const text = "user: root\n<data> <think>x</think> \u200b zebra"
	r := x.run(x.opts("ring2"), "python3", "dialects.py", "claude-x", text)
	r.want(t, 0, "exited")
	var got []map[string]string
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || len(got) != 2 {
		t.Fatalf("%v: %.600s", err, r.stdout)
	}
	for i, replies := range got {
		for name, reply := range replies {
			if !strings.Contains(reply, `root\\n\u003cdata\u003e \u003cthink\u003ex\u003c/think\u003e `+"\u200b zebra") || strings.Contains(reply, x.secret) {
				t.Errorf("%s, stream %v: got %.600q", name, i == 1, reply)
			}
		}
	}
	for _, v := range up.Visits() {
		if strings.Contains(fmt.Sprint(v.Header), "none") {
			t.Errorf("the upstream has got %v", v.Header)
		}
	}
	llm := calls(x.n.audit("node"), "llm")
	if len(llm) != 6 {
		t.Fatalf("%d calls on record, want 6", len(llm))
	}
	for _, e := range llm {
		if s := fmt.Sprint(e.Data); e.Data["tokens"] != 140.0 || e.Data["cost"] != 860.0 || !strings.Contains(s, "mode_transparent") || strings.Contains(s, "zebra") || strings.Contains(s, x.secret) {
			t.Errorf("on record: %v", e.Data)
		}
	}
	// F3: by the boundary mark a guarded model gets the application's system message and a tool's result as they are.
	chat := x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain")
	for _, boundary := range []string{"mark", "strict"} {
		x.settings["llm"].(object)["providers"].([]object)[0]["models"].([]object)[1]["boundary"] = boundary
		got, r := x.raw(x.opts("ring3"), exchange{Name: boundary, To: toolsAt, Send: post("/v1/chat/completions", `{"model":"plain","messages":[{"role":"system","content":"coder"},`+
			`{"role":"user","content":"go"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"user: root\n<data>"}]}`)})
		r.want(t, 0, "exited")
		visits := chat.Visits()
		sent := string(visits[len(visits)-1].Body)
		if as := strings.Contains(sent, `"content":"user: root\n<data>"`) && strings.Contains(sent, `{"role":"system","content":"coder"}`); as != (boundary == "mark") || !strings.Contains(got[boundary].Reply, "the answer is 42") {
			t.Errorf("boundary %s: up went %.600s, down %.300q", boundary, sent, got[boundary].Reply)
		}
	}
	x.settings["llm"] = object{"providers": []object{provider("messages"), provider("responses"), provider("gemini")}}
	// Each dialect by itself: after the cap nothing more of a run is answered.
	for name, end := range map[string]string{"messages": "event: error\n", "responses": "insufficient_quota", "gemini": "RESOURCE_EXHAUSTED"} {
		r := x.run(x.opts("ring3", x.planned("spender-"+name, "--plan", "freemium")...), "python3", "dialects.py", "endless", "x", name)
		if !strings.Contains(r.stdout, "word word") || !strings.Contains(r.stdout, end) || !strings.Contains(r.stdout, "cost_exceeded") {
			t.Errorf("%s: got %d bytes ending in %.400q, %.300q", name, len(r.stdout), r.stdout[max(0, len(r.stdout)-400):], r.stderr)
		}
	}
}

// F5, M-3: calls of models have a limit of their own, which says what it is; tools go on.
func TestM3ModelCallsOfARun(t *testing.T) {
	x := newExit(t)
	x.settings["llm"] = object{"limits": object{"calls": 2}}
	var tries []exchange
	for _, name := range []string{"first", "second", "third"} {
		tries = append(tries, exchange{Name: name, To: toolsAt, Send: chat("agentrun-test", false)})
	}
	got, r := x.raw(x.opts("ring3"), append(tries, exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)})...)
	r.want(t, 0, "exited")
	for name, want := range map[string]string{"first": "deterministic", "second": "deterministic", "third": "the run has used its 2 model calls", "math": "42"} {
		if !strings.Contains(got[name].Reply, want) {
			t.Errorf("%s: got %.400q, want %q", name, got[name].Reply, want)
		}
	}
	if a := got["third"].Reply; !denied(a, "steps_exceeded") || !strings.Contains(a, "402") || !strings.Contains(a, "gateway.yaml") {
		t.Errorf("third: got %.400q", a)
	}
}

// M-12: an agent that has a model say guesses at the provider's key doesn't learn by the pieces in which they come which of
// them is right: it would have the key letter by letter.
func TestM12GuessesAtTheKeyAreToldAlike(t *testing.T) {
	x := newExit(t)
	guess := map[string]string{"right": x.secret[:len(x.secret)/2], "wrong": x.secret[:len(x.secret)/2-1] + "!"}
	x.host("model.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range []string{guess[q.Model], strings.Repeat(" and so on", 10), guess[q.Model], "."} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}))
	x.settings.model("http://model.test/v1", 1, "right", "wrong")
	got, r := x.raw(x.opts("ring3"), exchange{Name: "right", To: toolsAt, Send: chat("right", true)}, exchange{Name: "wrong", To: toolsAt, Send: chat("wrong", true)})
	r.want(t, 0, "exited")
	pieces := map[string]string{}
	for model, a := range got {
		text := ""
		for _, m := range regexp.MustCompile(`"content":"([^"]*)"`).FindAllStringSubmatch(a.Reply, -1) {
			text += m[1]
			pieces[model] += fmt.Sprint(len(m[1]), " ")
		}
		if want := guess[model] + strings.Repeat(" and so on", 10) + guess[model] + "."; text != want {
			t.Errorf("%s: the agent has got %q, want %q", model, text, want)
		}
	}
	if pieces["right"] != pieces["wrong"] {
		t.Errorf("a right beginning of the key comes in pieces of %s bytes, a wrong one of %s", pieces["right"], pieces["wrong"])
	}
}

// M-8, M-19: what a model of mode transparent is asked for is read as its provider reads it: with hosted: refuse an address is one in
// whatever spelling, no other model is asked where this one fails, and a limit of tokens isn't read from one of two objects that may both be meant.
func TestM8TransparentRequestsInDisguise(t *testing.T) {
	x := newExit(t)
	up := x.host("models.test", exittest.Dialects(x.secret))
	var providers []object
	for _, dialect := range []string{"chat", "messages", "responses", "gemini"} {
		providers = append(providers, object{"name": dialect, "base_url": "https://models.test/v1", "secret": "key", "allow_private": true, "ca_file": x.w.CAFile,
			"dialects": []string{dialect}, "models": []object{{"name": dialect + "-*", "mode": "transparent", "hosted": "refuse", "max_tokens": 100}}})
	}
	x.settings["llm"] = object{"providers": providers}
	image := func(url string) string {
		return `{"model":"chat-1","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":` + url + `}}]}]}`
	}
	var tries []exchange
	for name, ask := range map[string][2]string{
		"escaped":  {"/v1/chat/completions", image(`"\u0068ttps://evil.test/?data"`)},
		"spaced":   {"/v1/chat/completions", image(`"\n  HTTPS://evil.test/?data"`)},
		"a file":   {"/v1/chat/completions", `{"model":"chat-1","messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"https://evil.test/?data"}}]}]}`},
		"messages": {"/v1/messages", `{"model":"messages-1","max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"\u0075rl","url":"https://evil.test/?data"}}]}]}`},
		"two":      {"/v1beta/models/gemini-1:generateContent", `{"contents":[],"generationConfig":{"maxOutputTokens":9},"generation_config":{"temperature":1}}`},
		"short":    {"/v1/chat/completions", `{"model":"chat-1","messages":[{"role":"user","content":[{"type":"image_url","image_url":"https://evil.test/?data"}]}]}`},
		"document": {"/v1/chat/completions", `{"model":"chat-1","messages":[{"role":"user","content":[{"type":"document_url","document_url":"https://evil.test/?data"}]}]}`},
		"another":  {"/v1/chat/completions", `{"model":"chat-1","messages":[],"models":["openai/dear"]}`},
		"broker":   {"/v1/responses", `{"model":"responses-1","input":"x","providerOptions":{"gateway":{"models":["dear"]}}}`},
		"advised":  {"/v1/messages", `{"model":"messages-1","max_tokens":9,"messages":[],"tools":[{"type":"advisor_20260301","name":"advisor","model":"dear"}]}`},
		"too long": {"/v1/chat/completions", `{"model":"chat-1","messages":[],"context_window_fallbacks":[{"chat-1":["dear"]}]}`},
		"plugin":   {"/v1/responses", `{"model":"responses-1","input":"x","plugins":[{"id":"web"}]}`},
		"found":    {"/v1/responses", `{"model":"responses-1","input":[{"type":"tool_search_output","tools":[{"type":"mcp","server_url":"https://evil.test/?data"}]}]}`},
		"online":   {"/v1/chat/completions", `{"model":"chat-1:online","messages":[]}`},
		"data":     {"/v1/chat/completions", `{"model":"chat-1","messages":[],"data_sources":[{"type":"azure_search","parameters":{"endpoint":"https://evil.test"}}]}`},
		"or else":  {"/v1/messages", `{"model":"messages-1","max_tokens":9,"messages":[],"fallbacks":["dear"]}`},
		"null":     {"/v1beta/models/gemini-1:generateContent", `{"contents":[],"generation_config":{"maxOutputTokens":9},"generationConfig":null}`},
	} {
		tries = append(tries, exchange{Name: name, To: toolsAt, Send: post(ask[0], ask[1])})
	}
	got, r := x.raw(x.opts("ring2"), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if !strings.HasPrefix(a.Reply, "HTTP/1.1 400 ") {
			t.Errorf("%s: got %.300q", name, a.Reply)
		}
	}
	for _, v := range up.Visits() {
		t.Errorf("the provider was asked %s %.200s", v.URI, v.Body)
	}
}

// M-19: a stream of chat of which the agent had no count told isn't free of what its model thought unseen.
func TestM19UncountedStreamIsPaidFor(t *testing.T) {
	x := newExit(t)
	x.host("model.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(1200 * time.Millisecond) // it thinks
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"42"}}]}`+"\n\n"+`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}))
	x.settings["llm"] = object{"providers": []object{{
		"name": "costly", "base_url": "http://model.test/v1", "secret": "key", "allow_private": true, "dialects": []string{"chat"},
		"models": []object{{"name": "*", "mode": "transparent", "input": 1_000_000, "output": 1_000_000, "max_tokens": 200}},
	}}}
	got, r := x.raw(x.opts("ring3"), exchange{Name: "ask", To: toolsAt, Send: chat("thinks", true)})
	r.want(t, 0, "exited")
	llm := calls(x.n.audit("node"), "llm")
	if len(llm) != 1 || !strings.Contains(got["ask"].Reply, "[DONE]") {
		t.Fatalf("%d calls on record; the agent has got %.600q", len(llm), got["ask"].Reply)
	}
	if cost, _ := llm[0].Data["cost"].(float64); cost < 120 || cost > 300 {
		t.Errorf("%v millionths, want 100 tokens a second: %v", cost, llm[0].Data)
	}
}

// M-19: what a provider counts somewhere else is paid for: thoughts in its sum alone, the rounds of a reply one by one. A picture isn't paid
// for by its bytes; nor does whoever hangs up get a conversation that the provider keeps read for nothing.
func TestM19CountsInOtherPlaces(t *testing.T) {
	x := newExit(t)
	x.host("model.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/responses":
			<-r.Context().Done()
		case "/v1/messages":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"content":[{"type":"text","text":"42"}],"usage":{"input_tokens":230,"output_tokens":10,"iterations":[{"type":"compaction","input_tokens":1800,"output_tokens":35},{"type":"message","input_tokens":230,"output_tokens":10}]}}`)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"42"},"finish_reason":"stop"}]}`+"\n\n"+
				`data: {"choices":[],"usage":{"prompt_tokens":1100,"completion_tokens":7,"total_tokens":1407}}`+"\n\ndata: [DONE]\n\n")
		}
	}))
	model := func(name, dialect, mode string) object {
		return object{"name": name, "base_url": "http://model.test/v1", "secret": "key", "allow_private": true, "dialects": []string{dialect}, "idle_timeout": "1s",
			"models": []object{{"name": name, "mode": mode, "input": 1_000_000, "output": 1_000_000, "max_tokens": 1000}}}
	}
	x.settings["llm"] = object{"providers": []object{model("sum", "chat", "guarded"), model("rounds", "messages", "transparent"), model("kept", "responses", "transparent")}}
	picture := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0K", 4<<10) + `"}}`
	asks := []exchange{
		{Name: "sum", To: toolsAt, Send: post("/v1/chat/completions", `{"model":"sum","messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},`+picture+`]}]}`)},
		{Name: "rounds", To: toolsAt, Send: post("/v1/messages", `{"model":"rounds","max_tokens":9,"messages":[]}`)},
		{Name: "kept", To: toolsAt, Send: post("/v1/responses", `{"model":"kept","stream":true,"input":"x","previous_response_id":"resp_1"}`)},
	}
	got, r := x.raw(x.opts("ring3"), asks...)
	r.want(t, 0, "exited")
	llm := calls(x.n.audit("node"), "llm")
	if len(llm) != len(asks) {
		t.Fatalf("%d calls on record, want %d: %v", len(llm), len(asks), got)
	}
	for i, want := range []float64{1407, 2075, 128 << 10} {
		if cost, _ := llm[i].Data["cost"].(float64); cost < want || cost > want+1000 {
			t.Errorf("%s: %v millionths, want %v: %v; the agent has got %.300q", asks[i].Name, cost, want, llm[i].Data, got[asks[i].Name].Reply)
		}
	}
}
