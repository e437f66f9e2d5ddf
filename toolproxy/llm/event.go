// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry"
)

// event is one piece of a reply, whatever form it came in.
type event struct {
	said      telemetry.Plaintext[said]
	finish    string
	usage     *usage
	size      int  // bytes of text, arguments and reasoning: what a provider charges for
	reasoning bool // there was some; it is gone
}

// said are the words of an event.
type said struct {
	text  string
	calls []toolCall
}

// source gives a reply piece by piece, io.EOF at its proper end. A reply that ends otherwise is an error and
// never io.EOF: the agent must be able to tell half an answer from a whole one.
type source interface {
	next() (event, error)
	close()
}

// Bounds of a stream.
const (
	maxLine      = 512 << 10 // of an SSE stream
	maxEventSize = 1 << 20   // data lines of one event
)

// chunk is what is read of a provider's object, of a stream or whole. All else in it isn't: a provider's
// extension can hold reasoning, and what isn't read can't come through (M-17). Values whose type differs from
// provider to provider are kept as they are and looked at later, so that an odd one spoils no more than
// itself.
type chunk struct {
	Error   jsontext.Value `json:"error"`
	Choices few[choice]    `json:"choices"`
	Usage   jsontext.Value `json:"usage"`
}

type choice struct {
	Index   int64    `json:"index"`
	Delta   fragment `json:"delta"`
	Message fragment `json:"message"`
	Finish  string   `json:"finish_reason"`
}

// few is a list of at most maxFew. An element that says nothing takes three bytes of a request or reply and
// some hundred of memory: a provider's 8 MiB of them would be a gigabyte here, and an agent's 64 MiB of
// bodies ten.
type few[T any] []T

const maxFew = 4096 // messages, by the configuration; all else is less

var errMany = fmt.Errorf("a list of more than %d", maxFew)

// UnmarshalJSONFrom reads a list or null.
func (f *few[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind != '[' && kind != 'n' {
		return errForm
	}
	if t, err := dec.ReadToken(); err != nil || t.Kind() == 'n' {
		return err
	}
	for dec.PeekKind() != ']' {
		if len(*f) == maxFew {
			return errMany
		}
		var v T
		if err := json.UnmarshalDecode(dec, &v); err != nil {
			return err
		}
		*f = append(*f, v)
	}
	_, err := dec.ReadToken()
	return err
}

type fragment struct {
	Content   jsontext.Value `json:"content"`
	Refusal   string         `json:"refusal"`
	ToolCalls few[toolCall]  `json:"tool_calls"`
	// Read to be counted, never passed on (M-17).
	Reasoning        jsontext.Value `json:"reasoning"`
	ReasoningContent jsontext.Value `json:"reasoning_content"`
	Thinking         jsontext.Value `json:"thinking"`
}

// parseChunk reads one object. Names given twice and broken UTF-8 make it malformed: two readers, two
// meanings. Whole replies have a message where pieces of a stream have a delta; one type reads both. Choices
// other than the first are dropped, and not counted: one was asked for.
func parseChunk(data []byte) (event, error) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return event{}, errForm
	}
	if len(c.Error) > 0 && c.Error.Kind() != 'n' {
		return event{}, errSaid
	}
	var ev event
	var words said
	ev.usage = usageOf(c.Usage)
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.Index != 0 {
			continue // one was asked for
		}
		if ch.Finish != "" {
			ev.finish = ch.Finish
		}
		for _, f := range []*fragment{&ch.Delta, &ch.Message} {
			if err := ev.add(&words, f); err != nil {
				return event{}, err
			}
		}
	}
	ev.said = telemetry.NewPlaintext(words)
	return ev, nil
}

// usageOf is nil for what can't be read: the bill is an estimate then, the reply is still a reply.
func usageOf(v jsontext.Value) *usage {
	var u *usage
	if len(v) == 0 || json.Unmarshal(v, &u) != nil || u == nil {
		return nil
	}
	if u.Prompt > 0 && u.Total > u.Prompt { // xAI's models and Google's count thoughts in the sum alone
		u.Completion = max(u.Completion, u.Total-u.Prompt)
	}
	return u
}

// add joins one choice to the event. The three names of reasoning are those of OpenRouter, DeepSeek and
// Anthropic's compatible API; a fourth would come as a field that isn't read, so not at all, and be charged
// for by the provider's own usage.
func (ev *event) add(to *said, f *fragment) error {
	text, err := contentText(f.Content)
	if err != nil {
		return err
	}
	to.text += text + f.Refusal
	ev.size += len(text) + len(f.Refusal)
	for i, t := range f.ToolCalls {
		if t.Index == nil { // whole replies number them by their place
			n := int64(i)
			t.Index = &n
		}
		to.calls = append(to.calls, t)
		ev.size += len(t.Function.Name) + len(t.Function.Arguments)
	}
	for _, r := range []jsontext.Value{f.Reasoning, f.ReasoningContent, f.Thinking} {
		if len(r) > 0 && r.Kind() != 'n' {
			ev.size += len(r)
			ev.reasoning = true
		}
	}
	return nil
}

// contentText reads a string, or the text parts of a list; parts of other types (thinking) are left out.
// Unlike parts, which reads an agent's request, it passes over what it doesn't know: a provider may send new
// kinds, and the rest is still an answer.
func contentText(v jsontext.Value) (string, error) {
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return "", nil
	case v.Kind() == '"':
		var s string
		if json.Unmarshal(v, &s) != nil {
			return "", errForm
		}
		return s, nil
	}
	var list few[struct {
		Type string         `json:"type"`
		Text jsontext.Value `json:"text"`
	}]
	if json.Unmarshal(v, &list) != nil {
		return "", errForm
	}
	all := ""
	for _, p := range list {
		if p.Type == "text" || p.Type == "output_text" {
			var s string
			if json.Unmarshal(p.Text, &s) != nil {
				return "", errForm
			}
			all += s
		}
	}
	return all, nil
}

// sse reads server-sent events (WHATWG HTML, 9.2): lines, "data:" fields, an empty line at the end of each
// event. Other fields and comments are skipped, but count as bytes and as progress.
type sse struct {
	*lines
	body     io.Closer
	finished bool // a finish_reason was there: an end without [DONE] is an end too
}

func (s *sse) close() { _ = s.body.Close() }

// next reads one event. A stream ends well with [DONE], as OpenAI ends it, or after a finish_reason, as
// others do. Where the connection ends before either, the reply is cut off, whatever the transport says:
// without TLS or a length an end looks like an end.
func (s *sse) next() (event, error) {
	for {
		data, err := s.event()
		if errors.Is(err, io.EOF) {
			if s.finished {
				return event{}, io.EOF
			}
			return event{}, errShort
		}
		if err != nil {
			return event{}, err
		}
		switch data := bytes.TrimSpace(data); {
		case len(data) == 0:
			continue
		case string(data) == "[DONE]":
			return event{}, io.EOF
		default:
			ev, err := parseChunk(data)
			s.finished = s.finished || ev.finish != ""
			return ev, err
		}
	}
}

// event returns the data of the next event. By the standard an event without an empty line after it is
// dropped at the stream's end; some providers leave the last one out, so it counts here, and next decides
// whether the reply was whole.
func (s *sse) event() ([]byte, error) {
	var data []byte
	for {
		line, err := s.line(maxLine)
		if err != nil {
			if errors.Is(err, io.EOF) && len(data) > 0 {
				return data, nil
			}
			return nil, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			if len(data) > 0 {
				return data, nil
			}
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue // comments, event names, ids
		}
		if len(data)+len(value) > maxEventSize {
			return nil, errLong
		}
		data = append(append(data, bytes.TrimPrefix(value, []byte(" "))...), '\n')
	}
}

// lines are those of a stream.
type lines struct {
	in       *bufio.Reader
	left     int64  // bytes that may still come
	progress func() // told of every piece: the upstream isn't silent
	count    *int64
}

func newLines(from io.Reader, limit int64, progress func(), count *int64) *lines {
	return &lines{in: bufio.NewReaderSize(from, 32<<10), left: limit, progress: progress, count: count}
}

// line reads one, with its end. A line without end costs at most longest, all of them together what a reply may
// have (left). Each piece counts before it is kept, so that the check comes ahead of the memory.
func (s *lines) line(longest int64) ([]byte, error) {
	var line []byte
	for {
		piece, err := s.in.ReadSlice('\n')
		s.progress()
		*s.count += int64(len(piece))
		if s.left -= int64(len(piece)); s.left < 0 || int64(len(line)+len(piece)) > longest {
			return nil, errLong
		}
		line = append(line, piece...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			return line, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errShort
		}
		return nil, err
	}
}

// raw reads the next event as it came, its empty line included, and what its data lines say. A stream may have any
// length, an event not: it may have limit bytes, which left begins with each time.
func (s *lines) raw(limit int64) (event, data []byte, err error) {
	s.left = limit
	for {
		line, err := s.line(limit)
		if errors.Is(err, io.EOF) && len(event) > 0 {
			return event, bytes.TrimSpace(data), nil
		}
		if err != nil {
			return nil, nil, err
		}
		event = append(event, line...)
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			return event, bytes.TrimSpace(data), nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(append(data, value...), '\n')
		}
	}
}

// whole is a reply that came as one object.
type whole struct {
	ev   event
	done bool
}

func (s *whole) close() {}

func (s *whole) next() (event, error) {
	if s.done {
		return event{}, io.EOF
	}
	s.done = true
	return s.ev, nil
}
