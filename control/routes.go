// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	_ "embed" // the document is text in the binary; nothing runs at the start for it
	"net"
	"slices"
	"strings"

	"agentrun/internal/uhttp"
)

// openAPI describes the API; a test holds it equal to the routes and types.
//
//go:embed openapi.json
var openAPI string

// APIVersion is the number in every path. It changes when something is taken away; fields and routes are added without.
const APIVersion = 1

// call is one request on its way.
type call struct {
	s       *Server
	peer    peer
	right   right
	request *uhttp.Request
	id      string // of the run, where the path has one
	w       *uhttp.Writer
	conn    net.Conn
	in      *bufio.Reader
	ctx     context.Context //nolint:containedctx // it lives as long as the request
}

type route struct {
	method, path string   // {id} stands for a run's
	queries      []string // that it knows
	handle       func(*call) error
}

// routes are all there are. GET routes change nothing, so they are what readers may use.
func routes() []route {
	return []route{
		{"GET", "/v1/version", nil, (*call).version},
		{"GET", "/v1/openapi.json", nil, (*call).openapi},
		{"GET", "/v1/sandboxes", nil, reads((*call).sandboxes)},
		{"GET", "/v1/sandboxes/{id}", nil, reads((*call).inspect)},
		{"POST", "/v1/sandboxes/{id}/freeze", nil, posts((*call).freeze)},
		{"POST", "/v1/sandboxes/{id}/thaw", nil, posts((*call).thaw)},
		{"POST", "/v1/sandboxes/{id}/pause", []string{"held"}, (*call).pause},
		{"POST", "/v1/sandboxes/{id}/resume", nil, posts((*call).resume)},
		{"POST", "/v1/sandboxes/{id}/kill", nil, posts((*call).kill)},
		{"POST", "/v1/sandboxes/{id}/elevate", nil, posts((*call).elevate)},
		{"POST", "/v1/sandboxes/{id}/revoke", nil, posts((*call).revoke)},
		{"POST", "/v1/sandboxes/{id}/signal", nil, posts((*call).signal)},
		{"PATCH", "/v1/sandboxes/{id}/limits", []string{"dry_run"}, posts((*call).limits)},
		{"POST", "/v1/sandboxes/{id}/extend", nil, posts((*call).extend)},
		{"GET", "/v1/sandboxes/{id}/wait", nil, waits(reads((*call).wait))},
		{"GET", "/v1/sandboxes/{id}/output", []string{"follow"}, (*call).output},
		{"POST", "/v1/sandboxes/{id}/attach", nil, waits((*call).attach)},
		{"POST", "/v1/sandboxes/{id}/files", nil, posts((*call).files)},
		{"POST", "/v1/sandboxes/{id}/read", nil, waits(copies(Controller.ReadFiles))},
		{"POST", "/v1/sandboxes/{id}/write", nil, waits(copies(Controller.WriteFiles))},
		{"POST", "/v1/sandboxes/{id}/watch", nil, waits((*call).watch)},
		{"POST", "/v1/sandboxes/{id}/exec", nil, waits((*call).exec)},
		{"GET", "/v1/sandboxes/{id}/ports", nil, reads((*call).ports)},
		{"POST", "/v1/sandboxes/{id}/ports", nil, posts((*call).publish)},
		{"DELETE", "/v1/sandboxes/{id}/ports", nil, posts((*call).unpublish)},
		{"POST", "/v1/kill", nil, posts((*call).killAll)},
		{"GET", "/v1/events", []string{"since", "follow"}, (*call).events},
	}
}

// routes are all that this server answers.
func (s *Server) routes() []route {
	all := routes()
	for _, m := range s.More {
		all = append(all, m.route())
	}
	return all
}

// route finds who handles the request, and refuses what isn't allowed, known or well-formed before that one sees it.
func (q *call) route() error {
	// Before anything else is said: a reader doesn't learn either which other routes there are.
	if q.right != operate && q.right != own && q.request.Method != "GET" {
		return &Error{Status: 403, Code: CodeForbidden, Message: "forbidden"}
	}
	known := false
	for _, r := range q.s.routes() {
		id, ok := match(r.path, q.request.Path)
		if !ok {
			continue
		}
		known = true
		if r.method != q.request.Method {
			continue
		}
		q.id = id
		if err := q.check(r); err != nil {
			return err
		}
		return r.handle(q)
	}
	if known {
		return &Error{Status: 405, Code: CodeBadRequest, Message: "this path has no method " + printable(q.request.Method)}
	}
	return &Error{Status: 404, Code: CodeNotFound, Message: "no such path", Hint: "GET /v1/openapi.json describes the API"}
}

func (q *call) check(r route) error {
	for name := range q.request.Query {
		if !slices.Contains(r.queries, name) {
			return badField(printable(name), "unknown parameter")
		}
	}
	if r.method == "GET" && len(q.request.Body) > 0 {
		return badField("body", "GET has none")
	}
	if _, last, _ := strings.Cut(r.path, "{id}/"); q.request.Upgrade != "" && !slices.Contains([]string{"attach", "exec", "read", "write"}, last) {
		return badField("Upgrade", "only attach, exec, read and write change the protocol")
	}
	return nil
}

func match(pattern string, path []string) (id string, ok bool) {
	parts := strings.Split(pattern[1:], "/")
	if len(parts) != len(path) {
		return "", false
	}
	for i, p := range parts {
		if p == "{id}" {
			id = path[i]
		} else if p != path[i] {
			return "", false
		}
	}
	return id, true
}

func badField(name, text string) *Error {
	return &Error{Status: 400, Code: CodeBadRequest, Message: name + ": " + text}
}

// printable keeps what a peer wrote fit for a terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 64)]
}
