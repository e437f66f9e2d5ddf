// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestM20ParseParent(t *testing.T) {
	p, err := ParseParent(good)
	if err != nil || p.String() != good || p.Flags != Sampled {
		t.Fatalf("got %v, %v", p, err)
	}
	for _, h := range []string{"cc" + good[2:], "cc" + good[2:] + "-what-ever", "01" + good[2:] + "-"} {
		if p, err := ParseParent(h); err != nil || p.String() != good {
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
		if p, err := ParseParent(h); !errors.Is(err, ErrMalformed) || p != (Parent{}) {
			t.Errorf("%q: %v, %v", h, p, err)
		}
	}
}

func TestM20ParseState(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a=1": "a=1", "a=1,b=2": "a=1,b=2", " a=1 ,\t,b= x y ": "", " a=1 ,\t,b=x y ": "a=1,b=x y", "0t@sys=v,k_-*/=~!": "0t@sys=v,k_-*/=~!",
	} {
		s, err := ParseState(in)
		if want == "" && in != "" {
			if err == nil {
				t.Errorf("%q: no error", in)
			}
			continue
		}
		if err != nil || s.String() != want {
			t.Errorf("%q: %q, %v", in, s, err)
		}
	}
	for _, in := range []string{
		"a", "=1", "a=", "A=1", "1=1", "a=1,a=2", "a=b=c", "a=\x7f", "a=\n", "a=é", "a b=1", "a@=1", "@a=1", "a@1=x", "a@b@c=1", "a@" + strings.Repeat("x", 15) + "=1",
		strings.Repeat("x", 257) + "=1", "a=" + strings.Repeat("x", 257), strings.Repeat("abc=1,", 90), "ab=1" + many(33),
	} {
		if s, err := ParseState(in); !errors.Is(err, ErrMalformed) || len(s.Members()) > 0 {
			t.Errorf("%.40q: %q, %v", in, s, err)
		}
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(",k" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + "=1")
	}
	return b.String()
}

func TestM20StateWithMovesToTheFront(t *testing.T) {
	s, _ := ParseState("a=1,b=2,c=3")
	next, err := s.With("b", "9")
	if err != nil || next.String() != "b=9,a=1,c=3" || s.String() != "a=1,b=2,c=3" {
		t.Errorf("%q from %q, %v", next, s, err)
	}
	if _, err := s.With("B", "9"); err == nil {
		t.Error("took a bad key")
	}
	full, err := ParseState(many(32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := full.With("new", "1"); err == nil {
		t.Error("took a 33rd member")
	}
}

func TestM20SpansMakeATree(t *testing.T) {
	root := New(true)
	root.State, _ = ParseState("a=1")
	child := root.Child()
	if !root.IsValid() || root.ParentID.IsValid() || child.TraceID != root.TraceID || child.ParentID != root.SpanID || child.SpanID == root.SpanID {
		t.Errorf("%+v, child %+v", root, child)
	}
	if diff := cmp.Diff([]string{"TRACEPARENT=" + child.Traceparent(), "TRACESTATE=a=1"}, child.Environ()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p, err := ParseParent(child.Traceparent())
	if err != nil || p.SpanID != child.SpanID || p.Flags != Sampled|RandomID {
		t.Errorf("%v, %v", p, err)
	}
	if next := Continue(p, child.State); next.ParentID != child.SpanID || next.TraceID != root.TraceID || next.State.String() != "a=1" {
		t.Errorf("%+v", next)
	}
	headers := map[string][]string{"traceparent": {good, good}, "Tracestate": {"evil=1"}}
	child.Inject(headers)
	if diff := cmp.Diff(map[string][]string{"Traceparent": {child.Traceparent()}, "Tracestate": {"a=1"}}, headers); diff != "" {
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
	zero.State, _ = ParseState("a=1")
	headers := map[string][]string{"Traceparent": {good}, "tracestate": {"evil=1"}, "Host": {"h"}}
	zero.Inject(headers)
	if len(headers) != 1 || zero.Environ() != nil || zero.Child().IsValid() || Continue(Parent{}, State{}).IsValid() {
		t.Errorf("%v, %v", headers, zero.Environ())
	}
	if b, err := json.Marshal(zero); string(b) != "null" || err != nil {
		t.Errorf("%s, %v", b, err)
	}
}

func TestM20SpanInLogs(t *testing.T) {
	child := New(false).Child()
	b, err := json.Marshal(child)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "trace", child)
	want := `{"trace_id":"` + child.TraceID.String() + `","span_id":"` + child.SpanID.String() + `","parent_id":"` + child.ParentID.String() + `"}`
	if string(b) != want || !strings.Contains(out.String(), `"trace":`+want) {
		t.Errorf("%s\n%s\nwant %s", b, out.String(), want)
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
		var p Parent
		copy(p.TraceID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace"))
		copy(p.SpanID[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "span"))
		p.Flags = Flags(rapid.Byte().Draw(t, "flags")) & knownFlags
		got, err := ParseParent(p.String())
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
			if again, err := ParseParent(p.String()); err != nil || again != p {
				t.Errorf("%q: %v, then %v, %v", h, p, again, err)
			}
		}
	})
}

func FuzzParseState(f *testing.F) {
	f.Add("a=1, b@c=2,,")
	f.Fuzz(func(t *testing.T, h string) {
		s, err := ParseState(h)
		if err != nil {
			if len(s.members) > 0 {
				t.Fatalf("%q: state and error", h)
			}
			return
		}
		again, err := ParseState(s.String())
		if err != nil || again.String() != s.String() || len(s.String()) > maxHeader || len(s.members) > maxMembers {
			t.Errorf("%q: %q, then %q, %v", h, s, again, err)
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
