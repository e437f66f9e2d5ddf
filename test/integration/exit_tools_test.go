// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"agentrun/test/exit"
)

const pythonTool = `
import json, os, urllib.request
def call(name, args):
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/" + name, json.dumps({"args": args}).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(q))
a = call("math", {"expression": "6*7"})
assert a["ok"] is True and str(a["output"]).find("42") >= 0, a
l = json.load(urllib.request.urlopen(os.environ["AGENTRUN_TOOLS_URL"]))
assert "math" in json.dumps(l), l
print("fine")`

// The variables of the environment, proxy variables included, must not lead the call astray: this one leaves urllib to them.
const pythonPlain = `
import json, os, urllib.request
q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/math", b'{"args":{"expression":"6*7"}}', {"Content-Type": "application/json"})
print(urllib.request.urlopen(q).read().decode())`

const pythonUnix = `
import http.client, os, socket
class C(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect("` + unixAt + `")
c = C("localhost")
c.request("POST", "/internal/tools/math", b'{"args":{"expression":"6*7"}}', {"Content-Type": "application/json"})
print(c.getresponse().read().decode())`

const nodeMCP = `
import { Client } from "/clients/node_modules/@modelcontextprotocol/sdk/dist/esm/client/index.js";
import { StreamableHTTPClientTransport } from "/clients/node_modules/@modelcontextprotocol/sdk/dist/esm/client/streamableHttp.js";
const client = new Client({ name: "agent", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.AGENTRUN_MCP_URL)));
const { tools } = await client.listTools();
if (!tools.some((t) => t.name === "math" && t.inputSchema.type === "object")) throw new Error(JSON.stringify(tools));
const r = await client.callTool({ name: "math", arguments: { expression: "6*7" } });
if (r.isError || !JSON.stringify(r.content).includes("42")) throw new Error(JSON.stringify(r));
const bad = await client.callTool({ name: "math", arguments: { nonsense: 1 } }).catch((e) => ({ isError: true, e }));
if (!bad.isError) throw new Error("bad arguments were taken");
await client.close();
console.log("fine");`

const nodeOpenAI = `
import OpenAI from "/clients/node_modules/openai/index.mjs";
const client = new OpenAI({ apiKey: "none" });
const ask = { model: "agentrun-test", messages: [{ role: "user", content: "say something" }] };
const whole = await client.chat.completions.create(ask);
if (!whole.choices[0].message.content || !(whole.usage.total_tokens > 0)) throw new Error(JSON.stringify(whole));
let text = "", chunks = 0;
for await (const c of await client.chat.completions.create({ ...ask, stream: true })) { chunks++; text += c.choices[0]?.delta?.content ?? ""; }
if (text !== whole.choices[0].message.content || chunks < 2) throw new Error(chunks + " chunks: " + text);
const e = await client.embeddings.create({ model: "agentrun-test", input: "x" });
if (!(e.data[0].embedding.length > 0)) throw new Error(JSON.stringify(e));
console.log("fine");`

// M-7, M-12: real clients, unmodified, from ring 3, which has nothing else.
func TestM7ClientsInRing3(t *testing.T) {
	x := newExit(t)
	x.file("tool.py", pythonTool)
	x.file("plain.py", pythonPlain)
	x.file("mcp.mjs", nodeMCP)
	x.file("openai.mjs", nodeOpenAI)
	url := "http://" + toolsAt + "/internal/tools/math"
	for _, tt := range []struct {
		name, program, want string
		npm                 bool
		argv                []string
	}{
		{name: "python", program: "python3", want: "fine", argv: []string{"python3", "tool.py"}},
		{name: "python, proxy variables left alone", program: "python3", want: `"ok":true`, argv: []string{"python3", "plain.py"}},
		{name: "curl", program: "curl", want: "42", argv: []string{"curl", "-sS", "-H", "Content-Type: application/json", "-d", math42, url}},
		{name: "curl without variables", program: "curl", want: "42", argv: []string{"curl", "-sS", "--noproxy", "*", "-H", "Content-Type: application/json", "-d", math42, url}},
		{name: "MCP SDK", program: "node", npm: true, want: "fine", argv: []string{"node", "mcp.mjs"}},
		{name: "openai", program: "node", npm: true, want: "fine", argv: []string{"node", "openai.mjs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needProgram(t, tt.program)
			o := x.opts("ring3")
			if tt.npm {
				o.flags = append(o.flags, needNPM(t)...)
			}
			r := x.run(o, tt.argv...)
			r.want(t, 0, "exited")
			if !strings.Contains(r.stdout, tt.want) {
				t.Errorf("got %q, want %q in it\nstderr: %s", r.stdout, tt.want, r.stderr)
			}
		})
	}
	for _, e := range calls(x.n.audit("node"), "tool") {
		if s := fmt.Sprint(e.Data); strings.Contains(s, "6*7") {
			t.Errorf("arguments are on record (M-18): %s", s)
		}
	}
}

// M-7: as a unix socket, where the ring has those.
func TestM7UnixSocket(t *testing.T) {
	x := newExit(t)
	x.file("unix.py", pythonUnix)
	r := x.run(x.opts("ring2"), "python3", "unix.py")
	r.want(t, 0, "exited")
	if !strings.Contains(r.stdout, "42") {
		t.Errorf("got %q\nstderr: %s", r.stdout, r.stderr)
	}
	once(t, calls(x.n.audit("node"), "tool"), "ok")
}

// M-7: clients that ask their proxy for everything, whatever no_proxy says, get the run's own gateway by it, in every ring, and nothing
// weighs. The gateway decides as if it had been asked directly; the proxy itself and the rest of loopback stay refused.
func TestM7GatewayByTheProxy(t *testing.T) {
	for _, ring := range []string{"ring2", "ring3"} {
		t.Run(ring, func(t *testing.T) {
			t.Parallel()
			x := newExit(t)
			call := post("/internal/tools/math", math42)[0]
			connect := "CONNECT " + toolsAt + " HTTP/1.1\r\nHost: " + toolsAt + "\r\n\r\n"
			socks := "\x05\x01\x00\x01\x7f\x00\x00\x01\x1d\xb0"
			absolute := func(path string) string {
				return strings.Replace(post(path, math42)[0], "POST /", "POST http://"+toolsAt+"/", 1)
			}
			want := map[string]string{
				"absolute": `"output"`, "tunnel": `"output"`, "SOCKS5": `"output"`, "localhost": `"output"`, "two on one connection": `"output"`,
				"forbidden route": "route_forbidden", "the proxy by itself": "egress_denied", "another port": "egress_denied",
			}
			got, r := x.raw(x.opts(ring),
				exchange{Name: "absolute", To: proxyAt, Send: []string{absolute("/internal/tools/math")}},
				exchange{Name: "tunnel", To: proxyAt, Send: []string{connect, call}},
				exchange{Name: "SOCKS5", To: proxyAt, Send: []string{"\x05\x01\x00", socks, call}},
				exchange{Name: "localhost", To: proxyAt, Send: []string{strings.ReplaceAll(absolute("/internal/tools/math"), "127.0.0.1", "localhost")}},
				exchange{Name: "two on one connection", To: proxyAt, Send: []string{
					strings.Replace(absolute("/internal/tools/none"), "Connection: close\r\n", "", 1), absolute("/internal/tools/math")}},
				exchange{Name: "forbidden route", To: proxyAt, Send: []string{absolute("/internal/wallet")}},
				exchange{Name: "the proxy by itself", To: proxyAt, Send: []string{"CONNECT " + proxyAt + " HTTP/1.1\r\nHost: " + proxyAt + "\r\n\r\n"}},
				exchange{Name: "another port", To: proxyAt, Send: []string{"CONNECT 127.0.0.1:7602 HTTP/1.1\r\nHost: 127.0.0.1:7602\r\n\r\n"}})
			r.want(t, 0, "exited")
			for name, words := range want {
				// The requests go out at once, and ring 3 may have four under way: that is the gateway's answer too.
				if a := got[name]; !strings.Contains(a.Reply, words) && !strings.Contains(a.Reply, "concurrency_limit") {
					t.Errorf("%s: got %.300q %s, want %q", name, a.Reply, a.Error, words)
				}
			}
			for _, e := range calls(x.n.audit("node"), "egress") {
				if e.Data["destination"] == toolsAt && e.Data["code"] != "ok" {
					t.Errorf("the gateway is refused on record: %v", e.Data)
				}
			}
		})
	}
}

// M-7: no spelling of a forbidden route is an answer, and none of an allowed one is a second way.
func TestM7ForbiddenRoutes(t *testing.T) {
	x := newExit(t)
	var tries []exchange
	for _, path := range []string{
		"/internal/wallet", "/internal/wallet/balance", "/internal/embassy/x", "/internal/rwa/x", "/internal/projects/1", "/internal/messages/1",
		"/internal/governance/vote", "/internal/dao/x", "/internal/db/x", "/internal/postgres",
		"/Internal/Wallet/x", "/INTERNAL/WALLET/x", "//internal//wallet/x", "/./internal/wallet", "/internal/./wallet",
		"/internal/tools/../wallet/x", "/internal/tools/%2e%2e/wallet/x", "/internal/tools/%2E%2E%2Fwallet", "/internal/tools/..%2fwallet",
		"/internal/tools/%252e%252e/wallet", "/internal/%77allet/x", "/%69nternal/wallet", "/internal%2fwallet", "/internal%5cwallet", "/internal\\wallet",
		"/internal;x=1/wallet", "/internal/wallet;x=1", "/internal/wallet.", "/internal/wallet%20", "/internal/wallet%00", "/internal/tools/;/../wallet",
		"/internal/router/../../internal/wallet", "/internal/tools/internal/wallet", "/v1/../internal/wallet", "/mcp/../internal/wallet",
		"/internal/tools/math/../../wallet/x", "/internal/tools/math%00/../wallet", "/internal/usage/..;/wallet", "/internal/%u0077allet", "/internal/w\xc0\xafallet",
		"http://127.0.0.1:7600/internal/wallet", "http://wallet/internal/wallet", "*", "/internal", "/", "/admin", "/metrics", "/debug/pprof/", "/v1/files", "/v1/models/../../internal/wallet",
		"/internal/wallet?x=/internal/tools/math", "/internal/tools/math#/../../wallet",
	} {
		tries = append(tries, exchange{Name: path, To: toolsAt, Send: post(path, math42)})
	}
	got, r := x.raw(x.opts("ring3"), tries...)
	r.want(t, 0, "exited")
	for _, tt := range tries {
		a, ok := got[tt.Name]
		if !ok || !strings.HasPrefix(a.Reply, "HTTP/1.1 4") || strings.Contains(a.Reply, `"ok":true`) || strings.Contains(a.Reply, `"output"`) {
			t.Errorf("%q: got %.300q %s, want a refusal", tt.Name, a.Reply, a.Error)
		}
	}
	for _, name := range []string{"/internal/wallet", "/INTERNAL/WALLET/x", "/internal/tools/%2e%2e/wallet/x", "/internal/governance/vote"} {
		if !denied(got[name].Reply, "route_forbidden") {
			t.Errorf("%q: got %.300q, want route_forbidden with a way out", name, got[name].Reply)
		}
	}
}

// M-9, S-15: who calls is known from where the connection comes, and no header changes it.
func TestM9IdentityIsNotClaimed(t *testing.T) {
	x := newExit(t)
	x.n.must("agent", "score", "planner-1", "0.7")
	x.n.must("agent", "score", "admin-1", "0.99", "--consensus")
	var tries []exchange
	for i, h := range []string{
		"X-Agent-Id: admin-1", "X-Agentrun-Run: 0123456789abcdef", "X-Agentrun-Ring: 1", "X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1",
		"Authorization: Bearer admin-1", "X-Team-Id: other", "X-Role: admin", "X-Plan: platformium", "Cookie: agent=admin-1", "X-Real-IP: 127.0.0.2",
		"X-Original-URL: /internal/wallet", "X-HTTP-Method-Override: GET", "traceparent: 00-11111111111111111111111111111111-2222222222222222-01",
	} {
		tries = append(tries, exchange{Name: fmt.Sprint(i), To: toolsAt, Send: post("/internal/tools/math", math42, h)})
	}
	_, r := x.raw(x.opts("ring3", "--agent", "planner-1"), tries...)
	r.want(t, 0, "exited")
	records := calls(x.n.audit("node"), "tool")
	if len(records) == 0 {
		t.Fatal("no call is on record")
	}
	for _, e := range records {
		if e.Data["run_id"] != r.status.ID || e.Data["agent_id"] != nil && e.Data["agent_id"] != "planner-1" {
			t.Errorf("a call of another identity: %v", e.Data)
		}
	}
}

// M-13, THREATS "tool proxy": what is malformed is refused with a code, and hides no second request.
func TestM13MalformedRequests(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	big := strings.Repeat("9", 2<<20)
	head := "POST /internal/tools/math HTTP/1.1\r\nHost: " + toolsAt + "\r\nContent-Type: application/json\r\n"
	second := "GET /internal/wallet/SMUGGLED HTTP/1.1\r\nHost: x\r\n\r\n"
	type try struct {
		exchange
		code string // begins like this; "": whatever, but nothing is done; "-": may be taken for what it nearly is
	}
	tool := func(name, code, path, body string) try {
		return try{exchange{Name: name, To: toolsAt, Send: post(path, body)}, code}
	}
	wire := func(name string, send string) try {
		return try{exchange{Name: name, To: toolsAt, Send: []string{send}}, ""}
	}
	// Nobody stands before the gateway who could read these otherwise, so they can't hide anything.
	odd := func(name string, send string) try {
		return try{exchange{Name: name, To: toolsAt, Send: []string{send}}, "-"}
	}
	tries := []try{
		tool("unknown tool", "tool_unknown", "/internal/tools/nonesuch", math42),
		tool("not JSON", "bad_", "/internal/tools/math", "expression=6*7"),
		tool("no arguments", "bad_arguments", "/internal/tools/math", `{"args":{}}`),
		tool("arguments too many", "bad_arguments", "/internal/tools/math", `{"args":{"expression":"1","more":2}}`),
		tool("key twice", "bad_", "/internal/tools/math", `{"args":{"expression":"1","expression":"2"}}`),
		tool("two documents", "bad_", "/internal/tools/math", math42+math42),
		tool("deep", "bad_", "/internal/tools/math", `{"args":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+`}`),
		tool("too large", "too_large", "/internal/tools/math", `{"args":{"expression":"`+big+`"}}`),
		wire("two lengths", head+"Content-Length: 5\r\nContent-Length: 40\r\n\r\n"+math42),
		wire("length and chunked", head+"Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+second),
		wire("chunked twice", head+"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"+second),
		wire("chunked misspelt", head+"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"+second),
		wire("chunked by a tab", head+"Transfer-Encoding:\tchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"+second),
		wire("space before the colon", head+"Content-Length : 29\r\n\r\n"+math42),
		odd("folded header", head+"X: a\r\n b\r\nContent-Length: 29\r\n\r\n"+math42),
		odd("bare line feeds", strings.ReplaceAll(head, "\r\n", "\n")+"Content-Length: 29\n\n"+math42+second),
		wire("NUL in a header", head+"X: a\x00b\r\nContent-Length: 29\r\n\r\n"+math42),
		wire("length with a sign", head+"Content-Length: +29\r\n\r\n"+math42),
		wire("length in hexadecimal", head+"Content-Length: 0x1d\r\n\r\n"+math42),
		wire("chunk size too large", head+"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n"+second),
		wire("no host", strings.Replace(head, "Host: "+toolsAt+"\r\n", "", 1)+"Content-Length: 29\r\n\r\n"+math42),
		wire("two hosts", head+"Host: other\r\nContent-Length: 29\r\n\r\n"+math42),
		wire("HTTP/0.9", "GET /internal/tools\r\n\r\n"),
		wire("not HTTP", "\x16\x03\x01\x02\x00\x01\x00"),
		wire("HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		wire("endless header", head+"X: "+strings.Repeat("a", 4<<20)),
		wire("many headers", head+strings.Repeat("X: a\r\n", 100_000)),
	}
	var all []exchange
	for _, tt := range tries {
		all = append(all, tt.exchange)
	}
	all = append(all, exchange{Name: "then a good one", To: toolsAt, Send: post("/internal/tools/math", math42)})
	got, r := x.raw(x.opts("ring3"), all...)
	r.want(t, 0, "exited")
	for _, tt := range tries {
		a := got[tt.Name]
		switch {
		case tt.code == "-":
		case tt.code != "" && !strings.Contains(a.Reply, `"code":"`+tt.code):
			t.Errorf("%s: got %.300q %s, want code %s", tt.Name, a.Reply, a.Error, tt.code)
		case strings.Contains(a.Reply, "HTTP/1.1 200") || strings.Contains(a.Reply, `"ok":true`):
			t.Errorf("%s: got %.600q, want a refusal, of a request hidden in it too", tt.Name, a.Reply)
		}
	}
	if a := got["then a good one"]; !strings.Contains(a.Reply, "42") {
		t.Errorf("after all that a good call gets %.300q %s", a.Reply, a.Error)
	}
}

// M-12: the agent never sees a secret, whatever the upstream does; what upstreams say in error is not passed on; an
// upstream without manners costs the agent one call and the gateway nothing.
func TestM12HostileUpstreams(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	x.hostile("bad.test")
	var tries []exchange
	for _, way := range exittest.HostileWays {
		x.settings.tool(way, x.httpTool("http://bad.test/"+way, "A"))
		tries = append(tries, exchange{Name: way, To: toolsAt, Send: post("/internal/tools/"+way, `{"args":{"text":"x"}}`)})
	}
	tries = append(tries, exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)})
	got, r := x.raw(x.opts("ring3"), tries...)
	r.want(t, 0, "exited")
	for _, way := range exittest.HostileWays {
		a := got[way].Reply
		if way != "long" && !strings.Contains(a, `"ok":false`) {
			t.Errorf("%s: got %.300q %s, want an error", way, a, got[way].Error)
		}
		for _, secret := range []string{x.secret, "stolen", "169.254"} {
			if strings.Contains(a, secret) {
				t.Errorf("%s: %q is in the answer: %.500q", way, secret, a)
			}
		}
	}
	for way, code := range map[string]string{"hang": "tool_timeout", "slow": "tool_timeout", "short": "tool_failed", "echo-key": "tool_failed"} {
		if !strings.Contains(got[way].Reply, code) {
			t.Errorf("%s: got %.300q, want %s", way, got[way].Reply, code)
		}
	}
	if !strings.Contains(got["math"].Reply, "42") {
		t.Errorf("after all that math gets %.300q %s", got["math"].Reply, got["math"].Error)
	}
	records := calls(x.n.audit("node"), "tool")
	if len(records) != len(tries) {
		t.Errorf("%d records of %d calls: %v", len(records), len(tries), codes(records))
	}
	for _, e := range records {
		if strings.Contains(fmt.Sprint(e.Data), x.secret) {
			t.Errorf("the secret is on record: %v", e.Data)
		}
	}
}

// M-12: a well-behaved upstream gets the secret and the arguments, an MCP upstream's tools are tools.
func TestM12Upstreams(t *testing.T) {
	x := newExit(t)
	api := x.host("api.test", exittest.Site())
	x.host("mcp.test", exittest.MCP())
	x.settings.tool("lookup", x.httpTool("https://api.test/echo", "A"))
	x.mcpSource("far", "https://mcp.test/mcp")
	got, r := x.raw(x.opts("ring3"),
		exchange{Name: "http", To: toolsAt, Send: post("/internal/tools/lookup", `{"args":{"text":"x"}}`)},
		exchange{Name: "mcp", To: toolsAt, Send: post("/internal/tools/far.shout", `{"args":{"text":"hey"}}`)},
		exchange{Name: "list", To: toolsAt, Send: []string{"GET /internal/tools HTTP/1.1\r\nHost: " + toolsAt + "\r\nConnection: close\r\n\r\n"}})
	r.want(t, 0, "exited")
	if !strings.Contains(got["http"].Reply, `"ok":true`) || !strings.Contains(got["mcp"].Reply, "hey!") {
		t.Errorf("got %.400q and %.400q", got["http"].Reply, got["mcp"].Reply)
	}
	if v := api.Visits(); len(v) != 1 || v[0].Header.Get("Authorization") != "Bearer "+x.secret {
		t.Errorf("the upstream has seen %+v, want one call with the secret", v)
	}
	// The site echoes what it gets: the reply filter has to take the secret out.
	for name, a := range got {
		if strings.Contains(a.Reply, x.secret) {
			t.Errorf("%s: the secret is in the answer: %.600q", name, a.Reply)
		}
	}
	if !strings.Contains(got["list"].Reply, `"lookup"`) || !strings.Contains(got["list"].Reply, `"far.shout"`) {
		t.Errorf("list: %.600q", got["list"].Reply)
	}
}

const leaving = `
import http.client, json, os, socket, time
def ask(tool):
    s = socket.create_connection(("127.0.0.1", 7600))
    s.sendall(("POST /internal/tools/%s HTTP/1.1\r\nHost: 127.0.0.1:7600\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"args\":{}}" % tool).encode())
    return s
def spent():
    c = http.client.HTTPConnection("127.0.0.1", 7600)
    c.request("GET", "/internal/usage")
    return json.load(c.getresponse())["run"]["spent"]
s = ask("hangs")
while not os.path.exists("asked"): time.sleep(0.01)
s.close()
ask("long").recv(1)
end = time.time() + 10
while spent() < 140 and time.time() < end: time.sleep(0.05)
`

// M-19: a tool's price is paid also by whoever hangs up once its server was asked, or has it answer more than may be read: it may have
// done all that it does for that.
func TestM19LeavingAToolIsPaidFor(t *testing.T) {
	x := newExit(t)
	x.host("api.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/long" {
			fmt.Fprintf(w, "%q", strings.Repeat("x", 2<<20))
			return
		}
		x.file("asked", "")
		<-r.Context().Done()
	}))
	for _, name := range []string{"hangs", "long"} {
		tool := x.httpTool("https://api.test/"+name, "C")
		tool["price"], tool["timeout"] = 70, "30s"
		x.settings.tool(name, tool)
	}
	x.file("leave.py", leaving)
	r := x.run(x.opts("ring3"), "python3", "leave.py")
	r.want(t, 0, "exited")
	made := calls(x.n.audit("node"), "tool")
	for _, e := range made {
		if e.Data["cost"] != 70.0 {
			t.Errorf("on record: %v", e.Data)
		}
	}
	if len(made) != 2 {
		t.Errorf("%d calls on record, want 2", len(made))
	}
}

// M-12: what an MCP server says of its tools has the secret that it is called with no more than its replies.
func TestM12SecretsInDescriptionsOfTools(t *testing.T) {
	x := newExit(t)
	x.host("mcp.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		w.Header().Set("Content-Type", "application/json")
		switch q.Method {
		case "initialize":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`, q.ID)
		case "tools/list":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"look","description":"Called with %s.","inputSchema":{"type":"object","properties":{"a":{"type":"string","default":%q}}}}]}}`,
				q.ID, r.Header.Get("Authorization"), r.Header.Get("Authorization"))
		case "notifications/initialized":
			w.WriteHeader(http.StatusAccepted)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, q.ID)
		}
	}))
	x.mcpSource("outside", "https://mcp.test/mcp")
	x.settings.section("tools")["outside"].(object)["mcp"].(object)["headers"] = object{"Authorization": object{"secret": "key", "prefix": "Bearer "}}
	got, r := x.raw(x.opts("ring3"), exchange{Name: "list", To: toolsAt, Send: []string{"GET /internal/tools HTTP/1.1\r\nHost: " + toolsAt + "\r\nConnection: close\r\n\r\n"}},
		exchange{Name: "mcp", To: toolsAt, Send: post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, "Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2025-06-18")})
	r.want(t, 0, "exited")
	for name, a := range got {
		if !strings.Contains(a.Reply, "Called with Bearer ") || strings.Contains(a.Reply, x.secret) {
			t.Errorf("%s: the agent is told %s", name, a.Reply)
		}
	}
}
