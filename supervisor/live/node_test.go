// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"agentrun/control"
	"agentrun/hypervisor"
)

// document is as much of OpenAPI as says which requests there are.
type document struct {
	Paths map[string]map[string]struct {
		Parameters  []struct{ Name, In string }
		RequestBody *struct {
			Content map[string]struct{ Schema body }
		}
	}
	Components struct{ Schemas map[string]body }
}

type body struct {
	Ref        string `json:"$ref"`
	Properties map[string]json.RawMessage
}

// api serves the routes of a supervisor that has no run, and what the daemon adds.
func api(t *testing.T) (s *Runs, ask func(method, target, body string) error, doc document) {
	t.Helper()
	dir, state := t.TempDir(), t.TempDir()+"/state"
	s = New(Options{
		Node:    func() (*hypervisor.Hypervisor, error) { return hypervisor.Open(hypervisor.Options{StateDir: state}) },
		OwnNode: true, Log: slog.New(slog.DiscardHandler), Operators: state + "/operators",
	})
	silence, err := s.Serve(dir, "daemon", "test", control.Access{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silence(); s.Close() })
	c, err := control.Open(dir, "daemon")
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Text(t.Context(), "/v1/openapi.json")
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, func(method, target, body string) error {
		if body == "" {
			return c.Ask(context.Background(), method, target, nil, nil)
		}
		return c.Ask(context.Background(), method, target, json.RawMessage(body), nil)
	}, doc
}

func refusedAs(err error) (status int, message string) {
	e, ok := errors.AsType[*control.Error](err)
	if !ok {
		return 0, ""
	}
	return e.Status, e.Message
}

// TestM23EachRouteIsDocumented: the document has every route that supervisors add, and each of its operations is one that
// is answered, with the fields that it names and no other.
func TestM23EachRouteIsDocumented(t *testing.T) {
	s, ask, doc := api(t)
	for _, r := range s.routes() {
		if _, ok := doc.Paths[r.Path][strings.ToLower(r.Method)]; !ok {
			t.Errorf("%s %s is not in the document", r.Method, r.Path)
		}
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			at := strings.ToUpper(method) + " " + path
			if at == "POST /v1/sandboxes" || strings.HasPrefix(path, "/v1/kept") || strings.HasPrefix(path, "/v1/images") {
				continue // the daemon's; test/integration
			}
			target, method := strings.ReplaceAll(path, "{id}", "nobody"), strings.ToUpper(method)
			if method == "GET" {
				if status, text := refusedAs(ask(method, target+"?zz=1", "")); status != 400 || !strings.Contains(text, "zz") {
					t.Errorf("%s with an unknown parameter: got %d %s", at, status, text)
				}
				continue
			}
			status, text := refusedAs(ask(method, target, `{"zz":1}`))
			if strings.HasSuffix(path, "/attach") {
				if status != 400 || !strings.Contains(text, "Upgrade") {
					t.Errorf("%s: got %d %s", at, status, text)
				}
				continue
			}
			if status != 400 || !strings.Contains(text, "zz: unknown") {
				t.Errorf("%s with an unknown field: got %d %s", at, status, text)
			}
			if op.RequestBody == nil {
				continue
			}
			schema := op.RequestBody.Content["application/json"].Schema
			if name, ok := strings.CutPrefix(schema.Ref, "#/components/schemas/"); ok {
				schema = doc.Components.Schemas[name]
			}
			for _, field := range slices.Sorted(maps.Keys(schema.Properties)) {
				status, text := refusedAs(ask(method, target, `{"`+field+`":[[]]}`))
				if status != 400 || !strings.Contains(text, field) || strings.Contains(text, field+": unknown") {
					t.Errorf("%s, %s of a wrong type: got %d %s", at, field, status, text)
				}
			}
		}
	}
}

// What operators do to agents and approvals by the command line they do by the API, with the same refusals.
func TestM23AgentsByAPI(t *testing.T) {
	s, ask, _ := api(t)
	for _, c := range []struct {
		line, body string
		status     int // 0: done
		says       string
	}{
		{"POST /v1/agents/planner/score", `{"score":0.7}`, 0, ""},
		{"POST /v1/agents/planner/score", `{"score":1.5}`, 400, "0 to 1"},
		{"POST /v1/agents/planner/score", `{}`, 400, "score"},
		{"POST /v1/agents/-x/score", `{"score":0.7}`, 400, "identifier"},
		{"GET /v1/agents", "", 0, ""},
		{"GET /v1/agents/planner", "", 0, ""},
		{"POST /v1/agents/planner/quarantine", `{"reason":""}`, 400, "reason"},
		{"POST /v1/agents/planner/quarantine", `{"reason":"a\u001b[31m"}`, 400, "printable"},
		{"POST /v1/agents/planner/quarantine", `{"reason":"odd calls"}`, 0, ""},
		{"POST /v1/agents/planner/release", `{"attestation":"x"}`, 403, "trusts no operator's key"},
		{"POST /v1/sandboxes/nobody/quarantine", `{"reason":"x"}`, 404, "no live run"},
		{"GET /v1/approvals", "", 0, ""},
		{"GET /v1/approvals/x", "", 404, ""},
		{"POST /v1/approvals/x/approve", "", 404, ""},
		{"POST /v1/approvals/x/deny", "{}", 404, ""},
		{"POST /v1/grants", `{"agent_id":"mailer","tool":"mail.send","for_ns":3600000000000}`, 0, ""},
		{"POST /v1/grants", `{"agent_id":"mailer","tool":"mail.send","for_ns":-1}`, 400, "grant"},
		{"POST /v1/grants", `{"agent_id":"mailer","tool":"mail.send","digest":"","for_ns":3600000000000}`, 400, "digest"},
		{"POST /v1/grants/x/revoke", "{}", 404, ""},
	} {
		method, target, _ := strings.Cut(c.line, " ")
		err := ask(method, target, c.body)
		status, text := refusedAs(err)
		if status != c.status || !strings.Contains(text, c.says) || status == 0 && err != nil {
			t.Errorf("%s %s: got %d %v, want %d with %q", c.line, c.body, status, err, c.status, c.says)
		}
	}
	h, err := s.opt.Node()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	a, err := h.Agent(t.Context(), "planner")
	if err != nil || a.Quarantined == nil || a.Quarantined.Reason != "odd calls" || a.Score == nil || *a.Score != 0.7 {
		t.Errorf("got %+v, %v", a, err)
	}
	grants, err := h.StandingGrants(t.Context())
	if err != nil || len(grants) != 1 || !strings.HasPrefix(grants[0].By, "uid:") {
		t.Errorf("got %+v, %v", grants, err)
	}
}
