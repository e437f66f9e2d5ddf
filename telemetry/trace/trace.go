// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
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

// Span is one piece of work in a trace (M-20): a run, or one of its calls. The zero value is invalid and goes nowhere:
// its headers are empty.
type Span struct {
	TraceID TraceID
	SpanID  SpanID
	// ParentID is the span that this one is part of; zero for the first of a trace, and for what a header named.
	ParentID SpanID
	Flags    Flags
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
	return Span{TraceID: s.TraceID, SpanID: newSpanID(), ParentID: s.SpanID, Flags: s.Flags}
}

// Traceparent returns the header of version 00, which is empty if s is invalid. Of the flags only those that version 00
// knows go out.
func (s Span) Traceparent() string {
	if !s.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%02x", s.TraceID, s.SpanID, byte(s.Flags&knownFlags))
}

// maxHeader bounds what is read of a later version's header.
const maxHeader = 512

const parentLength = 2 + 1 + 32 + 1 + 16 + 1 + 2

// ParseParent reads a traceparent, and returns the span that it names. Version 00 has to be exact; of later versions the
// same beginning is read and anything after another hyphen ignored, as the recommendation wants it; ff is invalid.
func ParseParent(header string) (Span, error) {
	bad := func(what string) (Span, error) {
		return Span{}, fmt.Errorf("traceparent: %w: %s", ErrMalformed, what)
	}
	if len(header) < parentLength || len(header) > maxHeader {
		return bad(fmt.Sprintf("%d bytes, want %d", len(header), parentLength))
	}
	var version, flags [1]byte
	var s Span
	if !unhex(version[:], header[:2]) || version[0] == 0xff {
		return bad("version")
	}
	if len(header) > parentLength && (version[0] == 0 || header[parentLength] != '-') {
		return bad("more than version 00 has")
	}
	if header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return bad("hyphens")
	}
	if !unhex(s.TraceID[:], header[3:35]) || !s.TraceID.IsValid() {
		return bad("trace id")
	}
	if !unhex(s.SpanID[:], header[36:52]) || !s.SpanID.IsValid() {
		return bad("parent id")
	}
	if !unhex(flags[:], header[53:55]) {
		return bad("flags")
	}
	s.Flags = Flags(flags[0]) & knownFlags
	return s, nil
}

// unhex reads lower-case digits only: encoding/hex takes both cases.
func unhex(dst []byte, s string) bool {
	n, err := hex.Decode(dst, []byte(s))
	return err == nil && n == len(dst) && s == strings.ToLower(s)
}

// Inject writes s into the headers of a request; pass an http.Header. What stood there before goes, also if s is
// invalid: it may be the agent's.
func (s Span) Inject(header map[string][]string) {
	for name := range header {
		if n := strings.ToLower(name); n == "traceparent" || n == "tracestate" {
			delete(header, name)
		}
	}
	if s.IsValid() {
		header["Traceparent"] = []string{s.Traceparent()}
	}
}
