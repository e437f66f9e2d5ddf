// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"io"
	"mime"
	"net/http"
	"strings"

	"agentrun/toolproxy/gate"
)

// Handler serves the family egress.Tools behind a Mux: the list, and calls. It knows the route from the Mux alone.
func (r *Registry) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		route, ok := RouteOf(req.Context())
		switch {
		case !ok:
			WriteError(w, notFound())
		case req.URL.RawQuery != "":
			WriteError(w, badRequest("this route takes no query", nil))
		case route.Rest == "":
			r.serveList(w, req)
		case strings.Contains(route.Rest, "/"):
			WriteError(w, notFound())
		default:
			r.serveCall(w, req, route.Rest)
		}
	})
}

func (r *Registry) serveList(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		WrongMethod(w, http.MethodGet)
		return
	}
	WriteJSON(w, http.StatusOK, struct {
		OK    bool      `json:"ok"`
		Tools []Listing `json:"tools"`
	}{true, r.List(req.Context())})
}

func (r *Registry) serveCall(w http.ResponseWriter, req *http.Request, name string) {
	if req.Method != http.MethodPost {
		WrongMethod(w, http.MethodPost)
		return
	}
	if e := JSONBody(req); e != nil {
		WriteError(w, e)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, MaxArguments+1))
	if err != nil || len(body) > MaxArguments {
		WriteError(w, bodyTooLarge(MaxArguments))
		return
	}
	args, e := decodeRequest(body)
	if e != nil {
		WriteError(w, e)
		return
	}
	output, e := r.invoke(req.Context(), name, args)
	if e != nil {
		WriteError(w, e)
		return
	}
	WriteOutput(w, output)
}

// JSONBody requires the type: without it, a page in a browser could send a call as a simple request (CSRF).
func JSONBody(req *http.Request) *gate.Error {
	types := req.Header.Values("Content-Type")
	if len(types) != 1 {
		return badRequest("there isn't exactly one Content-Type", nil)
	}
	kind, params, err := mime.ParseMediaType(types[0])
	if err != nil || kind != "application/json" {
		return badRequest("Content-Type isn't application/json", nil)
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return badRequest("JSON is UTF-8", nil)
	}
	if coding := req.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return badRequest("the body is compressed; send it as it is", nil)
	}
	return nil
}

// WrongMethod refuses a method that a route doesn't take.
func WrongMethod(w http.ResponseWriter, allowed string) {
	w.Header().Set("Allow", allowed)
	writeError(w, http.StatusMethodNotAllowed, &gate.Error{Code: gate.CodeBadRequest, Message: "this route takes " + allowed, Next: "use " + allowed})
}

func notFound() *gate.Error {
	return &gate.Error{
		Code: gate.CodeNotFound, Message: "there is no such route",
		Next: "use /internal/tools, /internal/llm/chat, /internal/llm/embeddings, /internal/router, /internal/usage, /internal/elevation, /internal/safety or /mcp",
	}
}
