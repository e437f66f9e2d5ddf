// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestM20ParseParent(t *testing.T) {
	p, err := ParseParent(good)
	if err != nil || p.Traceparent() != good || p.Flags != Sampled {
		t.Fatalf("got %v, %v", p, err)
	}
	for _, h := range []string{"cc" + good[2:], "cc" + good[2:] + "-what-ever", "01" + good[2:] + "-"} {
		if p, err := ParseParent(h); err != nil || p.Traceparent() != good {
			t.Errorf("%q: %v, %v", h, p, err)
		}
	}
	if p, err := ParseParent(good[:53] + "ff"); err != nil || p.Flags != Sampled|RandomID {
		t.Errorf("unknown flags: %v, %v", p, err)
	}
	for _, h := range []string{
		"", good[:54], good + "-", good + "0", " " + good, good + " ", "ff" + good[2:], "cc" + good[2:] + ".x", "0x" + good[2:],
		strings.ToUpper(good), strings.Replace(good, "-", "_", 1), good[:53] + "0G", "-0" + good[2:],
		"00-" + strings.Repeat("0", 32) + good[35:], good[:36] + strings.Repeat("0", 16) + "-01", good + "," + good, "cc" + good[2:] + "-" + strings.Repeat("x", 600),
	} {
		if p, err := ParseParent(h); !errors.Is(err, ErrMalformed) || p != (Span{}) {
			t.Errorf("%q: %v, %v", h, p, err)
		}
	}
}

func TestM20SpansMakeATree(t *testing.T) {
	root := New(true)
	child := root.Child()
	if !root.IsValid() || root.ParentID.IsValid() || child.TraceID != root.TraceID || child.ParentID != root.SpanID || child.SpanID == root.SpanID {
		t.Errorf("%+v, child %+v", root, child)
	}
	p, err := ParseParent(child.Traceparent())
	if err != nil || p.SpanID != child.SpanID || p.Flags != Sampled|RandomID {
		t.Errorf("%v, %v", p, err)
	}
	if next := p.Child(); next.ParentID != child.SpanID || next.TraceID != root.TraceID {
		t.Errorf("%+v", next)
	}
	headers := map[string][]string{"traceparent": {good, good}, "Tracestate": {"evil=1"}}
	child.Inject(headers)
	if diff := cmp.Diff(map[string][]string{"Traceparent": {child.Traceparent()}}, headers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	seen := map[SpanID]bool{}
	for range 1000 {
		id := root.Child().SpanID
		if seen[id] || !id.IsValid() {
			t.Fatal("the same id twice, or none")
		}
		seen[id] = true
	}
}

func TestM20InvalidGoesNowhere(t *testing.T) {
	var zero Span
	headers := map[string][]string{"Traceparent": {good}, "tracestate": {"evil=1"}, "Host": {"h"}}
	zero.Inject(headers)
	if len(headers) != 1 || zero.Traceparent() != "" || zero.Child().IsValid() {
		t.Errorf("%v, %q", headers, zero.Traceparent())
	}
}

// Conversions that an exporter needs: the same arrays, without an import.
func TestM20ConvertsToOpenTelemetry(t *testing.T) {
	s := New(true)
	if [16]byte(s.TraceID) == [16]byte{} || [8]byte(s.SpanID) == [8]byte{} || byte(s.Flags)&1 != 1 {
		t.Errorf("%+v", s)
	}
}

func TestM20RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Span
		copy(p.TraceID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace"))
		copy(p.SpanID[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "span"))
		p.Flags = Flags(rapid.Byte().Draw(t, "flags")) & knownFlags
		got, err := ParseParent(p.Traceparent())
		if p.IsValid() != (err == nil) || p.IsValid() && got != p {
			t.Fatalf("%v: %v, %v", p, got, err)
		}
	})
}

func FuzzParseParent(f *testing.F) {
	f.Add(good)
	f.Add("cc" + good[2:] + "-x")
	f.Fuzz(func(t *testing.T, h string) {
		p, err := ParseParent(h)
		if (err == nil) != p.IsValid() {
			t.Fatalf("%q: %v, %v: want exactly one", h, p, err)
		}
		if err == nil {
			if again, err := ParseParent(p.Traceparent()); err != nil || again != p {
				t.Errorf("%q: %v, then %v, %v", h, p, again, err)
			}
		}
	})
}

func BenchmarkParseParent(b *testing.B) {
	for b.Loop() {
		if _, err := ParseParent(good); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChild(b *testing.B) {
	s := New(true)
	for b.Loop() {
		s = s.Child()
	}
}
