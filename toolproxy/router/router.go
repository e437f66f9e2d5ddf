// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

// ToolInfo is what an intent is matched with.
type ToolInfo struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Keywords    []string `json:"keywords,omitempty"`
}

// Invoker has the tools of this agent and calls them, with every decision that a call needs.
type Invoker interface {
	List() []ToolInfo
	Invoke(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, *gate.Error)
	// Refuse answers for an intent without a tool: with why, or with what refuses a call of this moment. It is on record.
	Refuse(ctx context.Context, why *gate.Error) *gate.Error
}

// Options of New.
type Options struct {
	Config Config
	Tools  Invoker // required
}

const maxBody = 1 << 20

type router struct {
	o Options
}

// New returns the handler of /internal/router/….
func New(o Options) (http.Handler, error) {
	if o.Tools == nil {
		return nil, errors.New("router: no tools to dispatch to")
	}
	r := &router{o}
	m := http.NewServeMux()
	m.HandleFunc("POST /internal/router/dispatch", r.dispatch)
	m.HandleFunc("GET /internal/router/intents", r.intents)
	return known{m, "POST /internal/router/dispatch or GET /internal/router/intents"}, nil
}

// known answers in JSON where the mux would in text.
type known struct {
	mux  *http.ServeMux
	next string
}

func (k known) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := k.mux.Handler(r); pattern == "" {
		writeError(w, "", refuse(gate.CodeNotFound, "there is no such endpoint, or not with this method", k.next))
		return
	}
	k.mux.ServeHTTP(w, r)
}

func (r *router) dispatch(w http.ResponseWriter, req *http.Request) {
	intent, args, e := request(w, req)
	if e != nil {
		writeError(w, "", e)
		return
	}
	f, ok := r.o.Config.match(intent, r.o.Tools.List())
	if !ok {
		writeError(w, "", r.o.Tools.Refuse(req.Context(), refuse(gate.CodeToolUnknown, "no tool that you may use fits this intent, or several do equally",
			"name it as in GET /internal/router/intents, or call the tool itself: GET /internal/tools")))
		return
	}
	args, e = f.arguments(args)
	var output json.RawMessage
	if e == nil {
		output, e = r.o.Tools.Invoke(req.Context(), f.tool, args)
	}
	if e != nil {
		writeError(w, f.tool, e)
		return
	}
	write(w, http.StatusOK, struct {
		OK      bool            `json:"ok"`
		Tool    string          `json:"tool"`
		Matched string          `json:"matched"`
		Output  json.RawMessage `json:"output"`
	}{true, f.tool, f.how, output})
}

func request(w http.ResponseWriter, req *http.Request) (string, json.RawMessage, *gate.Error) {
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return "", nil, refuse(gate.CodeBadRequest, "the body is not declared as JSON", "send Content-Type: application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return "", nil, refuse(gate.CodeTooLarge, "the body is too large", "send less")
	}
	var in struct {
		Intent string         `json:"intent"`
		Args   jsontext.Value `json:"args"`
	}
	// Names once, exact and known: another reader of the same text must not see another intent.
	if err != nil || jsonv2.Unmarshal(body, &in, jsonv2.RejectUnknownMembers(true)) != nil {
		return "", nil, refuse(gate.CodeBadRequest, "the body isn't the JSON that is read here", `send {"intent":"…","args":{…}}`)
	}
	if len(in.Args) == 0 {
		in.Args = jsontext.Value("{}")
	}
	if in.Intent = plain(in.Intent); in.Intent == "" || len(in.Intent) > maxIntent || in.Args.Kind() != '{' {
		return "", nil, refuse(gate.CodeBadArguments, "the intent is empty or too long, or args is not an object", `send {"intent":"…","args":{…}}`)
	}
	return in.Intent, json.RawMessage(in.Args), nil
}

// intents lists the operator's rules and the tools, as far as this agent may use them.
func (r *router) intents(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		Intent string `json:"intent"`
		Tool   string `json:"tool"`
		About  string `json:"description,omitempty"`
	}
	list := []entry{}
	tools := r.o.Tools.List()
	for i := range r.o.Config.Rules {
		rule := &r.o.Config.Rules[i]
		for j := range tools {
			if tools[j].Name == rule.Tool {
				list = append(list, entry{rule.Intent, rule.Tool, tools[j].Description})
			}
		}
	}
	for i := range tools {
		list = append(list, entry{plain(tools[i].Name), tools[i].Name, tools[i].Description})
	}
	write(w, http.StatusOK, struct {
		OK      bool    `json:"ok"`
		Intents []entry `json:"intents"`
	}{true, list})
}

func refuse(code rings.Code, message, next string) *gate.Error {
	return &gate.Error{Code: code, Message: message, Next: next}
}

func writeError(w http.ResponseWriter, tool string, e *gate.Error) {
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(e.Retry.Seconds()+0.999), 10))
	}
	write(w, gate.Status(e.Code), struct {
		OK    bool        `json:"ok"`
		Tool  string      `json:"tool,omitempty"`
		Error *gate.Error `json:"error"`
	}{false, tool, e})
}

func write(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // a tool's output that isn't JSON
		code, b = http.StatusBadGateway, []byte(`{"ok":false,"error":{"code":"tool_failed","message":"the output is not JSON","next":"tell the operator"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // an agent that went away
}
