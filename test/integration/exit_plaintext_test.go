// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

// spoken are the ways by which an agent's words come into a gateway. In each, CANARY stands for a word of its own; want
// shows that the way was gone.
var spoken = []struct{ name, path, body, want string }{
	{"prompt", "/v1/chat/completions", `{"model":"plain","messages":[{"role":"user","content":"CANARY"}]}`, "42"},
	{"system", "/v1/chat/completions", `{"model":"plain","messages":[{"role":"system","content":"CANARY"},{"role":"user","content":"x"}]}`, "42"},
	{"answer of a tool", "/v1/chat/completions", `{"model":"plain","messages":[{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"CANARY"}]}]}`, "42"},
	{"earlier call", "/v1/chat/completions", `{"model":"plain","messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"CANARY\"}"}}]}]}`, "42"},
	{"function", "/v1/chat/completions", `{"model":"plain","user":"CANARY","metadata":{"CANARY":1},"tools":[{"type":"function","function":{"name":"f","description":"CANARY","parameters":{"type":"object","title":"CANARY"}}}],"messages":[{"role":"user","content":"x"}]}`, "42"},
	{"model that fails", "/v1/chat/completions", `{"model":"nonsense","messages":[{"role":"user","content":"CANARY"}]}`, "tool_failed"},
	{"number of a prompt", "/v1/chat/completions", `{"model":"plain","max_tokens":"CANARY","messages":[]}`, "bad_request"},
	{"member of a prompt", "/v1/chat/completions", `{"model":"plain","CANARY":1}`, "bad_request"},
	{"embeddings", "/v1/embeddings", `{"model":"embed","input":["CANARY"]}`, "embedding"},
	{"built-in tool", "/internal/tools/text", `{"args":{"op":"count","text":"CANARY"}}`, `"ok":true`},
	{"expression", "/internal/tools/math", `{"args":{"expression":"CANARY+"}}`, "bad_arguments"},
	{"schema", "/internal/tools/math", `{"args":{"expression":["CANARY"]}}`, "bad_arguments"},
	{"argument's name", "/internal/tools/math", `{"args":{"CANARY":1}}`, "bad_arguments"},
	{"bad JSON", "/internal/tools/math", `{"args":{"expression":"CANARY"`, "bad_request"},
	{"member of a request", "/internal/tools/math", `{"CANARY":{}}`, "bad_request"},
	{"HTTP tool", "/internal/tools/there", `{"args":{"text":"CANARY"}}`, `"ok":true`},
	{"path of an HTTP tool", "/internal/tools/gone", `{"args":{"text":"CANARY"}}`, "unavailable"},
	{"tool with approval", "/internal/tools/asks", `{"args":{"text":"CANARY"}}`, "approval_required"},
	{"MCP tool", "/internal/tools/far.shout", `{"args":{"text":"CANARY"}}`, "!"},
	{"code", "/internal/tools/code-executor", `{"args":{"language":"sh","code":"echo CANARY; exit 3"}}`, `"exit_code":3`},
	{"refused call", "/internal/tools/writes", `{"args":{"text":"CANARY"}}`, "ring"},
	{"unknown tool", "/internal/tools/none-such", `{"args":{"text":"CANARY"}}`, "tool_unknown"},
	{"intent", "/internal/router/dispatch", `{"intent":"CANARY","args":{"text":"CANARY"}}`, "tool_unknown"},
	{"elevation", "/internal/elevation", `{"target_ring":"CANARY"}`, "bad_request"},
	{"MCP client", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"math","arguments":{"expression":"CANARY"}}}`, "bad_arguments"},
}

// M-18: what an agent says is in no log, error, audit, metric or trace, whichever way it came and whatever became of it, at
// level debug. One-time codes: TestS10CodesLeaveNoTrace, TestS10SandboxLeavesNoTrace.
func TestM18NothingSpokenIsKept(t *testing.T) {
	x := newExit(t)
	collector := &exittest.Collector{}
	x.settings.collector("http://" + x.host("otlp.test", collector).Addr.String())
	x.settings["telemetry"].(object)["logs"] = object{"level": "debug"}
	x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain", "nonsense")
	x.host("there.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{}`)) }))
	x.settings.tool("there", x.httpTool("https://there.test/", "A"))
	gone, asks, writes := x.httpTool("https://gone.test/{text}", "A"), x.httpTool("https://there.test/", "D"), x.httpTool("https://there.test/", "A")
	gone["http"].(object)["method"] = "GET"
	asks["approval_wait"] = "1s"
	writes["reversibility"], writes["read_only"] = "none", false
	x.settings.tool("gone", gone)
	x.settings.tool("asks", asks)
	x.settings.tool("writes", writes)
	x.host("mcp.test", exittest.MCP())
	x.mcpSource("far", "https://mcp.test/mcp")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	word := func(name string) string {
		return "quetzalcoatlus" + strings.NewReplacer(" ", "", "'", "", "-", "").Replace(name)
	}
	var asked []exchange
	for _, s := range spoken {
		body := strings.ReplaceAll(s.body, "CANARY", word(s.name))
		asked = append(asked, exchange{Name: s.name, To: toolsAt, Send: post(s.path, body, "Accept: application/json, text/event-stream")})
	}
	x.json("exchanges.json", asked)
	x.file("raw.py", rawClient+"\nimport os, time\nprint(json.dumps({'name': 'all', 'reply': ''}), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n")
	c := x.prepare(x.opts("ring2", "--metrics-addr", l.Addr().String()), "python3", "raw.py")
	c.Args = slices.Insert(c.Args, slices.Index(c.Args, "exec"), "--log-level", "debug")
	c.startUntil(t, `"all"`)
	r, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	x.file("go", "")
	res := c.finish(t)
	res.want(t, 0, "exited")
	answers := outcomes(t, res, func(r reply) string { return r.Name })
	for _, s := range spoken {
		if !strings.Contains(answers[s.name].Reply, s.want) {
			t.Errorf("%s: got %.400q, want %s", s.name, answers[s.name].Reply, s.want)
		}
	}
	eventually(t, 10*time.Second, "a trace at the collector", func() bool { return collector.Count() > 0 })
	found := places{"metrics": string(metrics), "stderr": res.stderr, "status": fmt.Sprintf("%+v", res.status), "audit": x.n.must("audit", "show", "--json").stdout}
	found.files(t, x.n.dir)
	found.read(t, "agentrun_tool_calls_total", "metrics")
	found.read(t, `"tool_call"`, "audit")
	found.read(t, `"msg":"call","kind":"tool","tool":"text","code":"ok"`, filepath.Join(x.n.dir, "runs", res.status.ID+".jsonl"))
	var words []string
	for _, s := range spoken {
		words = append(words, word(s.name))
		if collector.Holds(word(s.name)) {
			t.Errorf("%s is in a trace", s.name)
		}
	}
	// What an operator is asked about waits in the state, masked, until it is answered.
	store := filepath.Join(x.n.dir, "state.db")
	found[store] = strings.ReplaceAll(found[store], word("tool with approval"), "")
	found.none(t, words)
}
