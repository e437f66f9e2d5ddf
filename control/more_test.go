// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
)

// Routes that others add are held to what holds for the server's own: credentials, methods, strict bodies.
func TestM23MoreRoutes(t *testing.T) {
	const readers = 54321
	routes := []Route{
		{Method: "GET", Path: "/v1/extra", Do: func(_ context.Context, r Request) (any, error) { return map[string]string{"by": r.By}, nil }},
		{Method: "GET", Path: "/v1/text", Do: func(context.Context, Request) (any, error) { return Text{"text/plain", "a 1\n"}, nil }},
		{Method: "POST", Path: "/v1/extra/{id}/do", Do: func(_ context.Context, r Request) (any, error) {
			var v struct {
				Word string `json:"word" read:"required"`
			}
			if err := r.Read(&v); err != nil {
				return nil, err
			}
			return map[string]string{"id": r.ID, "word": v.Word}, nil
		}},
		{Method: "POST", Path: "/v1/panic", Do: func(context.Context, Request) (any, error) { panic("oh") }},
	}
	dir := runDir(t)
	for name, who := range map[string]peer{"root": {uid: 0}, "reader": {uid: 1000, groups: []int{readers}}, "nobody": {uid: 1000}} {
		l, err := Listen(dir, name, Access{})
		if err != nil {
			t.Fatal(err)
		}
		srv := &Server{Controller: newFake(), More: routes, Access: Access{ReadGroup: readers}, peerOf: func(net.Conn) (peer, error) { return who, nil }}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx, l) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	for _, tt := range []struct {
		as, line, body string
		status         int
		want           string
	}{
		{"root", "GET /v1/extra", "", 200, `{"by":"uid:0"}`},
		{"root", "GET /v1/text", "", 200, "a 1\n"},
		{"root", "POST /v1/extra/a%20b/do", `{"word":"x"}`, 200, `{"id":"a b","word":"x"}`},
		{"root", "POST /v1/extra/a/do", `{"word":"x","word":"y"}`, 400, "twice"},
		{"root", "POST /v1/extra/a/do", `{"wort":"x"}`, 400, "wort: unknown key; did you mean word?"},
		{"root", "GET /v1/extra", "{}", 400, "body"},
		{"root", "GET /v1/extra?x=1", "", 400, "unknown parameter"},
		{"root", "DELETE /v1/extra", "", 405, "no method"},
		{"root", "POST /v1/panic", "", 500, "a fault"},
		{"root", "GET /v1/version", "", 200, "api"},
		{"reader", "GET /v1/extra", "", 200, `{"by":"uid:1000"}`},
		{"reader", "POST /v1/extra/a/do", `{"word":"x"}`, 403, "forbidden"},
		{"nobody", "GET /v1/extra", "", 403, "forbidden"},
	} {
		s := &served{dir: dir, client: &Client{dir, tt.as}}
		if status, text := s.raw(t, tt.line, tt.body); status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s, %s: got %d %q, want %d with %q", tt.as, tt.line, status, text, tt.status, tt.want)
		}
	}
	// Who is refused is named, the others answer.
	var asked []string
	err := Each(t.Context(), dir, func(ctx context.Context, c *Client) error {
		var got map[string]string
		err := c.Ask(ctx, "GET", "/v1/extra", nil, &got)
		if err == nil && c.Name() == "root" {
			asked = append(asked, got["by"])
		}
		return err
	})
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeForbidden || len(asked) != 1 {
		t.Errorf("got %v, %v", asked, err)
	}
}
