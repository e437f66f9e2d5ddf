// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// ErrMalformed is wrapped by every error of a parser.
var ErrMalformed = errors.New("malformed trace context")

// TraceID names a trace. Zero is invalid. It converts to and from OpenTelemetry's trace.TraceID, which is [16]byte too.
type TraceID [16]byte

// SpanID names a span. Zero is invalid. It converts to and from OpenTelemetry's trace.SpanID.
type SpanID [8]byte

func (t TraceID) String() string { return hex.EncodeToString(t[:]) }
func (s SpanID) String() string  { return hex.EncodeToString(s[:]) }

// IsValid tells whether t names anything.
func (t TraceID) IsValid() bool { return t != TraceID{} }

// IsValid tells whether s names anything.
func (s SpanID) IsValid() bool { return s != SpanID{} }

// Flags are the trace-flags. It converts to and from OpenTelemetry's trace.TraceFlags.
type Flags byte

const (
	// Sampled says that the caller may have recorded the trace.
	Sampled Flags = 1 << iota
	// RandomID says that the last 7 bytes of the trace id were made at random (Level 2).
	RandomID

	knownFlags = Sampled | RandomID
)

// Parent is what a traceparent says. The zero value is invalid.
type Parent struct {
	TraceID TraceID
	SpanID  SpanID
	Flags   Flags
}

// IsValid tells whether both ids are.
func (p Parent) IsValid() bool { return p.TraceID.IsValid() && p.SpanID.IsValid() }

// Span is one piece of work in a trace (M-20): a run, or one of its calls. The zero value is invalid and goes nowhere:
// its headers are empty.
type Span struct {
	TraceID TraceID
	SpanID  SpanID
	// ParentID is the span that this one is part of; zero for the first of a trace.
	ParentID SpanID
	Flags    Flags
	// State goes along with the trace unchanged.
	State State
}

// IsValid tells whether both ids are.
func (s Span) IsValid() bool { return s.TraceID.IsValid() && s.SpanID.IsValid() }

// New begins a trace. Ids come from the operating system's generator: an agent that sees its own can't guess others.
func New(sampled bool) Span {
	s := Span{Flags: RandomID}
	if sampled {
		s.Flags |= Sampled
	}
	for !s.TraceID.IsValid() {
		_, _ = rand.Read(s.TraceID[:]) // never an error: it ends the program instead (Go 1.24)
	}
	s.SpanID = newSpanID()
	return s
}

func newSpanID() (id SpanID) {
	for !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

// Child begins a span within s. That of an invalid span is invalid.
func (s Span) Child() Span {
	if !s.IsValid() {
		return Span{}
	}
	return Span{TraceID: s.TraceID, SpanID: newSpanID(), ParentID: s.SpanID, Flags: s.Flags, State: s.State}
}

// Continue begins a span within what a caller sent. An invalid parent gives an invalid span; the caller begins a trace of
// its own with New. Never call it with what an agent sent without deciding that its claim may join a trace: agents may
// claim any id.
func Continue(p Parent, state State) Span {
	return Span{TraceID: p.TraceID, SpanID: p.SpanID, Flags: p.Flags & knownFlags, State: state}.Child()
}

// Traceparent is s as a header of version 00, empty if s is invalid.
func (s Span) Traceparent() string {
	return Parent{TraceID: s.TraceID, SpanID: s.SpanID, Flags: s.Flags}.String()
}

// String is the header of version 00, empty if p is invalid. Of the flags only those that version 00 knows go out.
func (p Parent) String() string {
	if !p.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%02x", p.TraceID, p.SpanID, byte(p.Flags&knownFlags))
}

const parentLength = 2 + 1 + 32 + 1 + 16 + 1 + 2

// ParseParent reads a traceparent. Version 00 has to be exact; of later versions the same beginning is read and anything
// after another hyphen ignored, as the recommendation wants it; ff is invalid.
func ParseParent(header string) (Parent, error) {
	bad := func(what string) (Parent, error) {
		return Parent{}, fmt.Errorf("traceparent: %w: %s", ErrMalformed, what)
	}
	if len(header) < parentLength || len(header) > maxHeader {
		return bad(fmt.Sprintf("%d bytes, want %d", len(header), parentLength))
	}
	var version, flags [1]byte
	var p Parent
	if !unhex(version[:], header[:2]) || version[0] == 0xff {
		return bad("version")
	}
	if len(header) > parentLength && (version[0] == 0 || header[parentLength] != '-') {
		return bad("more than version 00 has")
	}
	if header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return bad("hyphens")
	}
	if !unhex(p.TraceID[:], header[3:35]) || !p.TraceID.IsValid() {
		return bad("trace id")
	}
	if !unhex(p.SpanID[:], header[36:52]) || !p.SpanID.IsValid() {
		return bad("parent id")
	}
	if !unhex(flags[:], header[53:55]) {
		return bad("flags")
	}
	p.Flags = Flags(flags[0]) & knownFlags
	return p, nil
}

// unhex reads lower-case digits only: encoding/hex takes both cases.
func unhex(dst []byte, s string) bool {
	for i := range len(s) {
		if b := s[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	n, err := hex.Decode(dst, []byte(s))
	return err == nil && n == len(dst)
}

// Environ are the variables that hand s to a process, nil if s is invalid. Names are those of OpenTelemetry's convention
// for the environment.
func (s Span) Environ() []string {
	if !s.IsValid() {
		return nil
	}
	env := []string{"TRACEPARENT=" + s.Traceparent()}
	if state := s.State.String(); state != "" {
		env = append(env, "TRACESTATE="+state)
	}
	return env
}

// Inject writes s into the headers of a request; pass an http.Header. What stood there before goes, also if s is
// invalid: it may be the agent's.
func (s Span) Inject(header map[string][]string) {
	for name := range header {
		if n := strings.ToLower(name); n == "traceparent" || n == "tracestate" {
			delete(header, name)
		}
	}
	if !s.IsValid() {
		return
	}
	header["Traceparent"] = []string{s.Traceparent()}
	if state := s.State.String(); state != "" {
		header["Tracestate"] = []string{state}
	}
}

// LogValue gives the ids to slog.
func (s Span) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("trace_id", s.TraceID.String()), slog.String("span_id", s.SpanID.String())}
	if s.ParentID.IsValid() {
		attrs = append(attrs, slog.String("parent_id", s.ParentID.String()))
	}
	return slog.GroupValue(attrs...)
}

// MarshalJSON gives {"trace_id", "span_id", "parent_id"}; null for an invalid span.
func (s Span) MarshalJSON() ([]byte, error) {
	if !s.IsValid() {
		return []byte("null"), nil
	}
	ids := struct {
		TraceID  string `json:"trace_id"`
		SpanID   string `json:"span_id"`
		ParentID string `json:"parent_id,omitempty"`
	}{s.TraceID.String(), s.SpanID.String(), ""}
	if s.ParentID.IsValid() {
		ids.ParentID = s.ParentID.String()
	}
	return json.Marshal(ids)
}
