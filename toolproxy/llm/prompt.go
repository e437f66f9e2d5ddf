// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

// upRequest is what a provider gets.
type upRequest struct {
	sampling
	Model         string         `json:"model"`
	Messages      []upMessage    `json:"messages"`
	Stream        bool           `json:"stream"`
	StreamOptions *upStream      `json:"stream_options,omitzero"`
	MaxTokens     int64          `json:"max_tokens,omitzero"`
	MaxCompletion int64          `json:"max_completion_tokens,omitzero"`
	Stop          jsontext.Value `json:"stop,omitzero"`
	Tools         []toolSpec     `json:"tools,omitempty"`
	ToolChoice    jsontext.Value `json:"tool_choice,omitzero"`
	Format        jsontext.Value `json:"response_format,omitzero"`
}

// limit bounds the reply by the field that the provider reads.
func (u *upRequest) limit(t *target, most int64) {
	if t.provider.LimitField == "max_completion_tokens" {
		u.MaxCompletion = most
	} else {
		u.MaxTokens = most
	}
}

type upStream struct {
	Usage bool `json:"include_usage"`
}

type upMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"` // a string, []part or nil
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitzero"`
}

// prompt is a request on its way up: instructions are the operator's, all else is marked as data (M-16).
type prompt struct {
	up    telemetry.Plaintext[*upRequest]
	flags []string
	looks bool // without a marker: what users and tools say is looked at all the same
}

// prompt writes what goes up. The system message is the first and the only one: models weigh it above all
// else, so it is the operator's text and the explanation of the delimiters, and nothing of the agent's comes
// before or into it. The nonce of the delimiters is the run's, so that the prompt begins alike each time and the
// provider's cache has it; an agent that a model has told it all the same can't write it: it is taken out of every
// text on its way up, and of every reply (M-16).
//
// With another boundary than strict the application's own system messages stay what they are and no text is
// changed: then there is no marker, and the operator's instruction comes first only if there is one in the file.
func (g *Gateway) prompt(r *chatRequest, t *target) (*prompt, *gate.Error) {
	m, system := g.marker, g.o.Config.System
	up := &upRequest{Model: t.upstream(r.Model), Stream: true, StreamOptions: &upStream{true}, sampling: r.sampling}
	p, messages := &prompt{up: telemetry.NewPlaintext(up), looks: t.model.Boundary == boundaryMark}, r.Messages.Reveal()
	switch {
	case t.model.Boundary == boundaryStrict:
		up.Messages = []upMessage{{Role: "system", Content: system + "\n\n" + m.Instruction()}}
	case system != DefaultSystem:
		up.Messages = []upMessage{{Role: "system", Content: system}}
		fallthrough
	default:
		m = nil
	}
	up.limit(t, r.most(t.model))
	for i := range messages {
		if e := p.add(m, &messages[i], fmt.Sprintf("messages[%d]", i)); e != nil {
			return nil, e
		}
	}
	return p, p.settings(m, r)
}

// settings passes on what providers put into the prompt themselves: names and texts in it are the agent's, so
// escaped. They can't stand between delimiters, since they have a place of their own in the request, and a
// schema must stay one.
func (p *prompt) settings(m *boundary.Marker, r *chatRequest) *gate.Error {
	up := p.up.Reveal()
	for _, v := range []struct {
		from unsaid[jsontext.Value]
		to   *jsontext.Value
	}{{r.Stop, &up.Stop}, {r.ToolChoice, &up.ToolChoice}, {r.Format, &up.Format}} {
		escaped, e := p.escapeJSON(m, v.from.Reveal())
		if e != nil {
			return e
		}
		*v.to = escaped
	}
	for _, t := range r.Tools.Reveal() {
		t.Function.Description = p.escape(m, t.Function.Description)
		escaped, e := p.escapeJSON(m, t.Function.Parameters)
		if e != nil {
			return e
		}
		t.Function.Parameters = escaped
		up.Tools = append(up.Tools, t)
	}
	return nil
}

func (p *prompt) escape(m *boundary.Marker, text string) string {
	if m == nil {
		return text
	}
	out, flags := m.Escape(text)
	p.flags = boundary.Merge(p.flags, flags)
	return out
}

func (p *prompt) wrap(m *boundary.Marker, from boundary.Source, text string) string {
	if m == nil {
		if p.looks && from != boundary.FromDeveloper {
			p.flags = boundary.Merge(p.flags, boundary.Inspect(text))
		}
		return text
	}
	out, flags := m.Wrap(from, text)
	p.flags = boundary.Merge(p.flags, flags)
	return out
}

// add puts one message below the system message.
func (p *prompt) add(m *boundary.Marker, in *message, at string) *gate.Error {
	list, e := parts(in.Content, at+".content")
	if e != nil {
		return e
	}
	switch in.Role {
	case "system", "developer":
		role := "user"
		if m == nil {
			role = in.Role
		}
		return p.addData(m, boundary.FromDeveloper, role, list, in, at)
	case "user":
		return p.addData(m, boundary.FromUser, "user", list, in, at)
	case "tool":
		if in.ToolCallID == "" || len(in.ToolCallID) > maxID {
			return badArguments("%s.tool_call_id is missing or too long", at)
		}
		return p.addData(m, boundary.FromTool, "tool", list, in, at)
	case "assistant":
		return p.addAssistant(m, list, in, at)
	}
	return badArguments("%s.role is none of system, developer, user, assistant, tool", at)
}

// addData adds a message whose text is somebody's data, between delimiters that say whose. System and
// developer messages of the agent's become a user's: what they ask for is a wish, not an instruction. Images
// can't be delimited; only a user's message may have them, and a model that reads text in one has been told
// what the rest of the message is.
func (p *prompt) addData(m *boundary.Marker, from boundary.Source, role string, list []part, in *message, at string) *gate.Error {
	if len(list) == 0 || len(in.ToolCalls) > 0 {
		return badArguments("%s has no content, or calls that are not its", at)
	}
	out := upMessage{Role: role, ToolCallID: p.escape(m, in.ToolCallID)}
	if len(list) == 1 && list[0].Type == "text" {
		out.Content = p.wrap(m, from, list[0].Text)
	} else {
		for i := range list {
			if list[i].Type != "image_url" {
				list[i] = part{Type: "text", Text: p.wrap(m, from, list[i].Text+list[i].Refusal)}
			} else if role != "user" {
				return badArguments("%s has an image, which only a user's message may", at)
			}
		}
		out.Content = list
	}
	p.say(out)
	return nil
}

// addAssistant: what the agent says a model said. It has no delimiters, so that the model goes on in its own
// voice, and is escaped like all else: an agent can write what it likes here.
func (p *prompt) addAssistant(m *boundary.Marker, list []part, in *message, at string) *gate.Error {
	if len(in.ToolCalls) > maxToolCalls {
		return badArguments("%s has more than %d calls", at, maxToolCalls)
	}
	text := ""
	for _, one := range list {
		if one.Type == "image_url" {
			return badArguments("%s has an image, which only a user's message may", at)
		}
		text += one.Text + one.Refusal
	}
	out := upMessage{Role: "assistant"}
	if text != "" || len(in.ToolCalls) == 0 {
		if m != nil {
			p.flags = boundary.Merge(p.flags, boundary.Inspect(text))
			text, _ = boundary.StripText(text, false)
		}
		out.Content = p.escape(m, text)
	}
	for i, c := range in.ToolCalls {
		if c.Type != "function" || !functionName().MatchString(c.Function.Name) || c.ID == "" || len(c.ID) > maxID {
			return badArguments("%s.tool_calls[%d] is no function call with an id", at, i)
		}
		c.Index = nil
		c.ID = p.escape(m, c.ID)
		c.Function.Arguments = p.escape(m, c.Function.Arguments)
		out.ToolCalls = append(out.ToolCalls, c)
	}
	p.say(out)
	return nil
}

// escapeJSON escapes every string within a value, names of members too: providers write a function's schema
// into the prompt, and a parameter's name is as good a place for a delimiter as its description. It goes by
// tokens, not by recursion, so that depth costs nothing; the decoder refuses what is deeper than 10,000.
func (p *prompt) escapeJSON(m *boundary.Marker, v jsontext.Value) (jsontext.Value, *gate.Error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return nil, nil
	}
	if m == nil {
		return v, nil
	}
	var out bytes.Buffer
	dec, enc := jsontext.NewDecoder(bytes.NewReader(v)), jsontext.NewEncoder(&out)
	for {
		t, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return bytes.TrimSpace(out.Bytes()), nil
		}
		if err == nil && t.Kind() == '"' {
			t = jsontext.String(p.escape(m, t.String()))
		}
		if err == nil {
			err = enc.WriteToken(t)
		}
		if err != nil {
			return nil, badArguments("a setting is malformed")
		}
	}
}

func (p *prompt) say(m upMessage) {
	up := p.up.Reveal()
	up.Messages = append(up.Messages, m)
}

func (p *prompt) bytes() ([]byte, *gate.Error) {
	b, err := json.Marshal(p.up.Reveal())
	if err != nil {
		e := badArguments("the request can't be passed on")
		e.Cause = err
		return nil, e
	}
	return b, nil
}
