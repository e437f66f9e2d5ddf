// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/audit"
)

// book is a log that can be full.
type book struct {
	chain *audit.Memory
	full  atomic.Bool
	mu    sync.Mutex
	all   []audit.Record
	bytes int
}

func newBook(t *testing.T) *book {
	t.Helper()
	chain, err := audit.NewMemory("node", nil)
	if err != nil {
		t.Fatal(err)
	}
	return &book{chain: chain}
}

var errFull = errors.New("no space left")

func (b *book) write(r audit.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full.Load() {
		return errFull
	}
	e, err := b.chain.Append(r)
	if err != nil {
		return err
	}
	line, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	b.bytes += len(line) + 1
	b.all = append(b.all, r)
	return nil
}

func (b *book) entries() []audit.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

func (b *book) counted() (n int64) {
	for _, r := range b.entries() {
		n += countOf(r)
	}
	return n
}

func countOf(r audit.Record) int64 {
	switch r := r.(type) {
	case *audit.ToolCall:
		return r.Count
	case *audit.Egress:
		return r.Count
	case *audit.Refusal:
		return r.Count
	case *audit.RingCheck:
		return r.Count
	case *audit.RateLimit:
		return r.Count
	}
	return 0
}

const runID = "abcdefghijklmnop"

func toolRefusal(name, code string) *audit.ToolCall {
	return &audit.ToolCall{
		AgentID: "agent-of-the-flood", Args: strings.Repeat("ab", 32), Code: code, Count: 1, DurationNS: 12345678, Name: name, Rule: "M-13",
		EffScore: audit.NumberOf(0.25), RequiredRing: audit.Sandbox, Ring: audit.Sandbox, SessionID: "session-7",
		RunID: runID, TraceID: strings.Repeat("0f", 16), Type: "tool",
	}
}

func connection(name, code string, allowed bool) *audit.Egress {
	return &audit.Egress{AgentID: "agent-of-the-flood", Allowed: allowed, Code: code, Count: 1, Destination: name, Detail: "ring_has_no_egress", RunID: runID, Type: "egress", Sent: 7}
}

func syscallRefusal(name, class string) *audit.Refusal {
	return &audit.Refusal{AgentID: "agent-of-the-flood", Class: class, Count: 1, RunID: runID, Syscall: name, Verdict: "EPERM"}
}

// M2: whatever a ring 3 run floods with for a minute, it leaves 50 KB, so twenty of them less than a megabyte. Everything is counted.
func TestM18FloodIsGathered(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(i int) audit.Record
		most int // bytes in a minute
	}{
		{"one name", func(int) audit.Record { return toolRefusal("nmap", "tool_unknown") }, 30_000},
		{"a name each", func(i int) audit.Record { return toolRefusal(fmt.Sprint("t", i), "tool_unknown") }, 30_000},
		{"arguments", func(i int) audit.Record {
			r := toolRefusal("math", "bad_arguments")
			r.Args = fmt.Sprintf("%064x", i)
			return r
		}, 30_000},
		{"everything at once", func(i int) audit.Record {
			codes := []string{"tool_unknown", "bad_arguments", "not_found", "route_forbidden"}
			switch i % 8 {
			case 7:
				return &audit.RingCheck{Action: fmt.Sprint("tool.t", i), AgentID: "agent-of-the-flood", AgentRing: audit.Sandbox, Count: 1, EffScore: audit.NumberOf(0.25), SessionID: "session-7", Reason: "ring_denied", RequiredRing: audit.Root, Rule: "H-9", RunID: runID}
			case 4:
				return &audit.RateLimit{Action: fmt.Sprint("tool.t", i), AgentID: "agent-of-the-flood", Count: 1, Exhausted: true, EffScore: audit.NumberOf(0.25), SessionID: "session-7", RequiredRing: audit.Sandbox, Ring: audit.Sandbox, RunID: runID}
			case 5:
				return connection(fmt.Sprintf("h%d.example:443", i), "ring_denied", false)
			case 6:
				return syscallRefusal("ioctl", fmt.Sprint("request=", i%256))
			}
			return toolRefusal(fmt.Sprint("t", i), codes[i%8])
		}, 52_500},
		{"codes that a fallen gateway makes up", func(i int) audit.Record { return toolRefusal("x", fmt.Sprint("code_", i)) }, 110_000},
		{"long names", func(i int) audit.Record {
			return toolRefusal(audit.Claimed(strings.Repeat("x", 300)+fmt.Sprint(i)), "tool_unknown")
		}, 40_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBook(t)
				g := newGatherer(refusedLimit, time.Now, b.write)
				const each, minute = 1000, 60
				for i := range each * minute {
					if i%each == 0 {
						time.Sleep(time.Second)
					}
					if err := g.add(tt.make(i)); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.flush(); err != nil {
					t.Fatal(err)
				}
				if b.bytes > tt.most {
					t.Errorf("%d entries, %d bytes in a minute, want at most %d", len(b.all), b.bytes, tt.most)
				}
				if got := b.counted(); got != each*minute {
					t.Errorf("%d refusals are on record, want %d", got, each*minute)
				}
			})
		})
	}
}

// Connections that pass are an agent's to make without number in rings 2 and 1: they are gathered too, with more room, and the bytes of
// all of them are there.
func TestM18PassedConnectionsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t)
		g := newGatherer(passedLimit, time.Now, b.write)
		const each, minute = 500, 60
		for i := range each * minute {
			if i%each == 0 {
				time.Sleep(time.Second)
			}
			if err := g.add(connection(fmt.Sprintf("h%d.example:443", i%200), "ok", true)); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.flush(); err != nil {
			t.Fatal(err)
		}
		var sent int64
		for _, r := range b.entries() {
			sent += r.(*audit.Egress).Sent
		}
		if b.bytes > 400_000 || b.counted() != each*minute || sent != 7*each*minute {
			t.Errorf("%d bytes for %d connections that sent %d, want at most 400000, %d and %d", b.bytes, b.counted(), sent, each*minute, 7*each*minute)
		}
	})
}

// The first of a kind is on record when add returns, also in the middle of a flood (H-27, M-4).
func TestM4FirstOfAKindIsOnRecordAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t)
		g := newGatherer(refusedLimit, time.Now, b.write)
		for i := range 10_000 {
			if err := g.add(toolRefusal(fmt.Sprint("t", i), "tool_unknown")); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range []audit.Record{
			toolRefusal("math", "bad_arguments"), connection("evil.example:443", "ring_denied", false), syscallRefusal("mount", ""), syscallRefusal("ptrace", "request=ATTACH"),
		} {
			before := len(b.entries())
			if err := g.add(r); err != nil {
				t.Fatal(err)
			}
			if all := b.entries(); len(all) != before+1 || all[before] != r {
				t.Errorf("%+v is not on record", r)
			}
		}
		for i := range 400 { // each system call by its name, however many there are
			before := len(b.entries())
			if err := g.add(syscallRefusal(fmt.Sprint("call", i), "")); err != nil {
				t.Fatal(err)
			}
			if len(b.entries()) != before+1 {
				t.Fatalf("system call %d is not on record", i)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := b.counted(), int64(10_000+4+400); got != want {
			t.Errorf("%d are on record after a minute, want %d", got, want)
		}
	})
}

// What is gathered has what all have in common, and no name of one of them.
func TestM18GatheredNamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t)
		g := newGatherer(gatherLimit{alone: pace{burst: 1}, together: 2}, time.Now, b.write)
		for _, r := range []audit.Record{
			connection("a:1", "ok", true), connection("a:1", "ok", true), connection("b:1", "ok", true), connection("b:1", "ok", true), connection("c:1", "host_denied", false),
		} {
			if err := g.add(r); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(gatherTime + time.Millisecond)
		synctest.Wait()
		var got []string
		for _, r := range b.entries() {
			e := r.(*audit.Egress)
			got = append(got, fmt.Sprint(e.Destination, " ", e.Code, " ", e.Count, " ", e.Sent))
		}
		// The first of all; the first of its code among what has no room by itself; the rest after a second.
		want := "a:1 ok 1 7, b:1 ok 1 7, c:1 host_denied 1 7, b:1 ok 1 7, a:1 ok 1 7"
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("got %s\nwant %s", s, want)
		}
	})
}

// A full disk loses no count: whoever comes next hears of it, and what was counted is written when there is room.
func TestH28GatheredSurvivesAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t)
		g := newGatherer(refusedLimit, time.Now, b.write)
		for i := range 1000 {
			if err := g.add(toolRefusal(fmt.Sprint("t", i), "tool_unknown")); err != nil {
				t.Fatal(err)
			}
		}
		b.full.Store(true)
		time.Sleep(3 * gatherTime)
		if err := g.add(toolRefusal("x", "tool_unknown")); !errors.Is(err, errFull) {
			t.Errorf("got %v, want %v", err, errFull)
		}
		if err := g.flush(); !errors.Is(err, errFull) {
			t.Errorf("got %v, want %v", err, errFull)
		}
		b.full.Store(false)
		if err := g.flush(); err != nil {
			t.Fatal(err)
		}
		if got := b.counted(); got != 1000 {
			t.Errorf("%d are on record, want 1000: the refused one was told so", got)
		}
	})
}

func TestGathererTakesOnlyWhatHasACount(t *testing.T) {
	b := newBook(t)
	if err := newGatherer(refusedLimit, time.Now, b.write).add(&audit.Breach{}); err == nil || len(b.all) != 0 {
		t.Errorf("got %v, %d entries, want an error and none", err, len(b.all))
	}
}
