// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"agentrun/test/exit"
)

// What the exit is called from outside stands here and nowhere else in the exit's tests: addresses, keys of gateway.yaml,
// flags, words of the audit.

const (
	toolsAt   = "127.0.0.1:7600"
	proxyAt   = "127.0.0.1:7601"
	resolveAt = "127.0.0.1:53"
	unixAt    = "/run/agentrun/tools.sock"

	whyHeader    = "X-Agentrun-Denied" // of every refusal that is an HTTP response
	gatewayProc  = "agentrun-gateway"
	gatewayEnded = "gateway" // is in the reason of a run whose gateway died
)

type object = map[string]any

// settings is a gateway.yaml.
type settings object

// egress opens the private addresses of a world, as an operator would. Names lead there by /etc/hosts: see onOtherHost.
func (s settings) egress(w *exittest.World) {
	s.section("egress")["private"] = w.Private()
	s.section("egress")["ca_files"] = []string{w.CAFile}
}

func (s settings) section(name string) object {
	if s[name] == nil {
		s[name] = object{}
	}
	return s[name].(object)
}

// tool registers a tool, of any kind.
func (s settings) tool(name string, definition object) { s.section("tools")[name] = definition }

// httpTool calls url with the secret "key" as a bearer token. To the ring enforcer it changes nothing, so ring 3 may.
func (x *exit) httpTool(url, category string) object {
	return object{
		"kind": "http", "description": "a test upstream", "category": category, "reversibility": "full", "read_only": true,
		"args": object{"type": "object", "properties": object{"text": object{"type": "string"}}, "additionalProperties": false},
		"http": object{
			"method": "POST", "url": url, "headers": object{"Authorization": object{"secret": "key", "prefix": "Bearer "}},
			"ca_file": x.w.CAFile, "allow_private": true,
		},
	}
}

// mcpSource brings in the tools of an MCP server, as NAME.TOOL.
func (x *exit) mcpSource(name, url string) {
	x.settings.tool(name, object{
		"kind": "mcp", "description": "a test server", "category": "A", "reversibility": "full", "read_only": true,
		"mcp": object{"url": url, "ca_file": x.w.CAFile, "allow_private": true},
	})
}

func (s settings) secret(name, file string) { s.section("secrets")[name] = object{"file": file} }

// model sends the named models to an upstream of the OpenAI shape, by http since there is no key for a CA of its own.
// price is millionths a token.
func (s settings) model(url string, price int64, models ...string) {
	list := []object{{"name": "embed", "kind": "embeddings", "input": price * 1_000_000}}
	for _, m := range models {
		list = append(list, object{"name": m, "input": price * 1_000_000, "output": price * 1_000_000, "max_tokens": 250})
	}
	s["llm"] = object{"providers": []object{{
		"name": "test", "base_url": url, "secret": "key", "allow_private": true, "timeout": "5s", "idle_timeout": "2s", "models": list,
	}}}
}

func (s settings) remotePDP(url string) {
	s["policy"] = object{"remote": object{"url": url, "timeout": "500ms"}}
}

func (s settings) collector(url string) { s["telemetry"] = object{"otlp": object{"endpoint": url}} }

// planned makes an agent with settings of an operator's, and returns the flags of its runs.
func (x *exit) planned(agent string, flags ...string) []string {
	x.t.Helper()
	x.n.must(append(append([]string{"agent", "set"}, flags...), agent)...)
	return []string{"--agent", agent}
}

// runCap is what a run of the plan freemium may cost, in millionths.
const runCap = 5000

func (x *exit) approvals(t *testing.T, args ...string) result {
	t.Helper()
	return x.n.do(append([]string{"approvals"}, args...)...)
}

// pending is what `agentrun approvals list --json` says of one call that waits.
type pending struct {
	ID   string          `json:"approval_id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"`
}

func pendingOf(stdout string) ([]pending, error) {
	var l struct {
		Approvals []pending `json:"approvals"`
	}
	err := json.Unmarshal([]byte(stdout), &l)
	return l.Approvals, err
}

// calls picks the records of one type: tool, llm, egress or dns.
func calls(all []entry, kind string) []entry {
	var some []entry
	for _, e := range all {
		if (e.Kind == "tool_call" || e.Kind == "egress") && e.Data["type"] == kind {
			some = append(some, e)
		}
	}
	return some
}

// denied tells whether a response of proxy or tool gateway is a refusal with this code, as an agent can read it (M-13).
func denied(reply, code string) bool {
	head, body, _ := strings.Cut(reply, "\r\n\r\n")
	return strings.HasPrefix(head, "HTTP/1.1 4") && strings.Contains(body, `"code":"`+code+`"`) && strings.Contains(body, `"next":`)
}
