// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/tools"
)

// upstream is one tool of a server, by the name it has there.
type upstream struct {
	source *Source
	name   string
}

// Call calls the tool upstream.
func (u upstream) Call(ctx context.Context, c tools.Call) (tools.Result, error) {
	s := u.source
	p, bad := s.connected(ctx)
	if bad != nil {
		return tools.Result{}, bad
	}
	if !s.offers(p, u.name) {
		return tools.Result{}, tools.Refuse(gate.CodeToolUnknown, nil,
			"GET /internal/tools has what there is", "the server no longer has this tool")
	}
	limit := c.Most()
	for known := s.largest.Load(); limit > known && !s.largest.CompareAndSwap(known, limit); {
		known = s.largest.Load()
	}
	args := c.Args.Reveal()
	returned := s.lasting(ctx, p)
	result, err := p.session.CallTool(ctx, &mcp.CallToolParams{Name: u.name, Arguments: args})
	returned()
	s.after(ctx, p, err)
	if err != nil {
		return tools.Result{}, callError(ctx, err)
	}
	out, received, bad := s.output(result)
	if bad != nil {
		return tools.Result{}, bad
	}
	if bad := c.Fits(out); bad != nil {
		return tools.Result{}, bad
	}
	return tools.Result{Output: out, Sent: int64(len(args)), Received: received}, nil
}

// offers: after a new connection the list isn't known yet, and a tool that was offered before may be tried.
func (s *Source) offers(p *peer, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.offered == nil || p.offered[name]
}

// callError hides what the server said: its errors are where keys and queries are printed.
func callError(ctx context.Context, err error) *gate.Error {
	if ctx.Err() == nil && answered(err) {
		e := tools.Refuse(gate.CodeToolFailed, errors.New("the server answered with a protocol error"),
			"look at the arguments", "the server refused the call")
		e.Asked = true
		return e
	}
	if ctx.Err() == nil && errors.Is(err, errBody) {
		return tools.Refuse(gate.CodeTooLarge, err, "ask for less at once", "the server's reply is too large")
	}
	return httptool.Unreachable(ctx, err)
}

// output maps a result to JSON: structured content as it is; one block of text as a string; otherwise the blocks in order.
func (s *Source) output(r *mcp.CallToolResult) (json.RawMessage, int64, *gate.Error) {
	if r.NeedsInput() || len(r.InputRequests) > 0 {
		return nil, 0, tools.Refuse(gate.CodeToolFailed, nil, "go on without this tool",
			"the server asks questions back, which are not answered")
	}
	if r.IsError && s.config.Errors != "pass" {
		e := tools.Refuse(gate.CodeToolFailed, nil, "look at the arguments",
			"the server reports that the call failed")
		e.Asked = true
		return nil, 0, e
	}
	value, err := valueOf(r)
	if err == nil && r.IsError {
		value = map[string]any{"is_error": true, "content": value}
	}
	var raw, out []byte
	if err == nil {
		raw, err = json.Marshal(value)
	}
	if err == nil {
		out, err = s.hide.JSON(raw)
	}
	if err != nil {
		return nil, 0, tools.Refuse(gate.CodeToolFailed, err, "tell the operator",
			"the server's reply can't be read")
	}
	return out, int64(len(raw)), nil
}

type block struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	MIMEType string `json:"mime_type,omitempty"`
	Data     []byte `json:"data,omitempty"` // base64
	URI      string `json:"uri,omitempty"`
	Name     string `json:"name,omitempty"`
}

func valueOf(r *mcp.CallToolResult) (any, error) {
	if r.StructuredContent != nil {
		return r.StructuredContent, nil
	}
	blocks := []block{}
	for _, c := range r.Content {
		b, err := blockOf(c)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, b)
	}
	if len(blocks) == 1 && blocks[0].Type == "text" {
		return blocks[0].Text, nil
	}
	return blocks, nil
}

func blockOf(c mcp.Content) (block, error) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return block{Type: "text", Text: c.Text}, nil
	case *mcp.ImageContent:
		return block{Type: "image", MIMEType: c.MIMEType, Data: c.Data}, nil
	case *mcp.AudioContent:
		return block{Type: "audio", MIMEType: c.MIMEType, Data: c.Data}, nil
	case *mcp.ResourceLink:
		return block{Type: "resource_link", URI: c.URI, Name: c.Name, MIMEType: c.MIMEType}, nil
	case *mcp.EmbeddedResource:
		if c.Resource == nil {
			break
		}
		return block{Type: "resource", URI: c.Resource.URI, MIMEType: c.Resource.MIMEType, Text: c.Resource.Text, Data: c.Resource.Blob}, nil
	}
	return block{}, fmt.Errorf("content of an unknown kind: %T", c)
}
