// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
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

// M-15: in confidential mode there are embeddings and no plaintext.
func TestM15ConfidentialMode(t *testing.T) {
	x := newExit(t)
	api := x.host("api.test", exittest.Site())
	x.host("model.test", exittest.Model(x.secret))
	tool := x.httpTool("https://api.test/echo", "A")
	tool["plaintext"] = true
	x.settings.tool("messages", tool)
	x.settings.model("http://model.test/v1", 1, "plain")
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
		// The model was asked for a summary, and what it says is passed on as one, cut to size.
		if a := got[name].Reply; regexp.MustCompile(`"content":"[^"]`).MatchString(a) || !strings.Contains(a, `"summary":"`) {
			t.Errorf("%s: got %.400q, want a summary and no content", name, a)
		}
	}
	if !strings.Contains(got["embeddings"].Reply, "0.25") || !strings.Contains(got["math"].Reply, "42") {
		t.Errorf("got %.300q and %.300q", got["embeddings"].Reply, got["math"].Reply)
	}
}
