// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

// swelling asks for what makes a careless reader large: bodies of lists that say nothing, several at once; providers that lie; an
// MCP server that floods. Then it wants to go on as before.
const swelling = `
import http.client, json, threading
def post(path, body, timeout=60):
    c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=timeout)
    c.request("POST", path, body if isinstance(body, str) else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse(); b = r.read().decode(); c.close()
    return [r.status, b[:2000]]
def ask(model): return post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}]})
got = {}
def large(k, body): got[k] = post("/v1/chat/completions", body)
nothing = "{}," * 340000 + "{}"
threads = [threading.Thread(target=large, args=("messages%d" % i, '{"messages":[' + nothing + ']}')) for i in range(4)]
threads += [threading.Thread(target=large, args=("tools%d" % i, '{"messages":[{"role":"user","content":"x"}],"tools":[' + nothing + ']}')) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
for model in ["swell", "early", "drip", "plain"]: got[model] = ask(model)
for i in range(3): got["mcp%d" % i] = post("/internal/tools/liar.flood", {"args": {}})
got["math"] = post("/internal/tools/math", {"args": {"expression": "6*7"}})
print(json.dumps(got))`

// floodingMCP answers the handshake; called, it asks and tells without end, and reads nothing any more.
const floodingMCP = `
import json, sys
out = sys.stdout
def say(m): out.write(json.dumps(m) + "\n"); out.flush()
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "liar", "version": "1"}}})
    elif m.get("method") == "tools/list":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}})
    elif m.get("method") == "tools/call":
        sys.stderr.write("x" * 1000000)
        i = 0
        while True:
            out.write('{"jsonrpc":"2.0","id":"q%d","method":"ping"}\n{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n' % i); i += 1
    elif "id" in m:
        say({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "unknown"}})`

// THREATS "tool proxy: oversized bodies and replies; upstream that hangs, lies, never ends", and the host's counters: a gateway that
// can be made to swell takes the host's memory, which is in no limit of the run's.
func TestM19GatewayStaysSmall(t *testing.T) {
	t.Parallel() // it mostly waits
	needProgram(t, "python3")
	x := newExit(t)
	x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain", "swell", "early", "drip")
	server := write(t, filepath.Join(t.TempDir(), "server.py"), floodingMCP, 0o644)
	x.settings.tool("liar", object{
		"kind": "mcp", "category": "B", "reversibility": "full", "read_only": true,
		"mcp": object{"command": object{"argv": []string{sandboxProgram("python3"), "/server.py"}, "ring": 3, "ro_bind": []string{server + ":/server.py"}}},
	})
	x.file("swell.py", swelling)
	c := x.prepare(x.opts("ring3"), "python3", "swell.py")
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	peak, ended := make(chan int), make(chan struct{})
	go func() {
		most := 0
		for {
			most = max(most, gatewayPeak(c.Process.Pid))
			select {
			case <-ended:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	r := c.finish(t)
	close(ended)
	r.want(t, 0, "exited")
	var got map[string][2]any
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v: %.500s %.500s", err, r.stdout, r.stderr)
	}
	for what, want := range map[string]string{
		"messages0": `"ok":false`, "messages3": `"ok":false`, "tools0": `"ok":false`, "swell": "tool_failed", "early": strings.Repeat("x", 900), "drip": "tool_timeout",
		"plain": "the answer is 42", "mcp0": `"ok":false`, "mcp2": `"ok":false`, "math": "42",
	} {
		if !strings.Contains(fmt.Sprint(got[what][1]), want) {
			t.Errorf("%s: got %.300v, want %.40q in it", what, got[what], want)
		}
	}
	if most := <-peak; most == 0 || most > 200<<10 {
		t.Errorf("the gateway had %d KiB at its largest, want at most 200 MiB", most)
	} else {
		t.Logf("the gateway had %d KiB at its largest", most)
	}
	booked := 0.0
	for _, e := range calls(x.n.audit("node"), "llm") {
		if e.Data["allowed"] == true && e.Data["code"] == "ok" {
			booked = max(booked, e.Data["tokens"].(float64))
		}
	}
	if booked < 300 { // three bytes a token, as for every reply that says nothing it can be believed in
		t.Errorf("900 bytes are booked as %v tokens", booked)
	}
	left, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range left {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), server) {
			t.Errorf("an MCP server outlives its run: %s %q", f, b)
		}
	}
}

// gatewayPeak is the most memory, in KiB, that the gateway of this supervisor ever had; 0: there is none.
func gatewayPeak(supervisor int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(b), "Name:\tagentrun-gatewa\n") {
			continue
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		if fields["PPid"] == strconv.Itoa(supervisor) {
			n, _ := strconv.Atoi(strings.TrimSuffix(fields["VmHWM"], " kB"))
			return n
		}
	}
	return 0
}
