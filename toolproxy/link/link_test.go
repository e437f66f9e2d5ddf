// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// world is a supervisor that grants what its fields say.
type world struct {
	Supervisor // what is not overridden panics: nobody may ask it

	mu      sync.Mutex
	ring    rings.Ring
	changed chan struct{}
	places  map[uint64]bool
	next    uint64
	records []Record
	approve func(context.Context) (Approved, error)
	check   chan struct{} // checks wait for it, if not nil
	spawn   func() (Process, error)
	settled atomic.Int64
	asked   atomic.Int64
}

func newWorld() *world {
	return &world{ring: rings.Sandbox, changed: make(chan struct{}), places: map[uint64]bool{}}
}

func (w *world) Check(ctx context.Context, c Check) (Verdict, error) {
	w.asked.Add(1)
	if w.check != nil {
		<-w.check
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	w.places[w.next] = true
	return Verdict{Allowed: true, Code: rings.CodeOK, Place: w.next, Ring: w.ring}, nil
}

func (w *world) End(_ context.Context, e End) (Reservation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.places, e.Place)
	if e.Record != nil {
		w.records = append(w.records, *e.Record)
		w.settled.Add(e.Record.Cost)
	}
	return Reservation{Allowed: true}, nil
}

func (w *world) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.places)
}

func (w *world) Reserve(context.Context, Spend) (Reservation, error) {
	return Reservation{}, errors.New("budget can't be read")
}

func (w *world) Settle(_ context.Context, s Settle) (Reservation, error) {
	w.settled.Add(s.Cost)
	return Reservation{Allowed: true, ID: s.ID}, nil
}

func (w *world) Budget(context.Context) (Budget, error) { return Budget{Plan: "casual", Steps: 7}, nil }

func (w *world) Record(_ context.Context, r Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, r)
	return nil
}

func (w *world) Approve(ctx context.Context, _ Approval) (Approved, error) { return w.approve(ctx) }

func (w *world) Execute(context.Context, string) (Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spawn()
}

func (w *world) Ring() (rings.Ring, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ring, w.changed
}

func (w *world) setRing(r rings.Ring) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ring = r
	close(w.changed)
	w.changed = make(chan struct{})
}

// connect starts a server for w and gives a client that has said hello.
func connect(t testing.TB, w *world) (*Client, <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, peer, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	s := &Server{Start: Start{Caller: Caller{Run: "r1", Agent: "a"}, Ring: w.ring, MaxSteps: 3}, Supervisor: w}
	go func() { done <- s.Serve(ctx, conn) }()
	l, err := Connect(peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Hello(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); cancel() })
	return l, done
}

// A configuration may be larger than a message. It arrives whole, and what comes after it is no part of it.
func TestConfigurationOverTheLink(t *testing.T) {
	for _, size := range []int{0, 1, MaxFrame - 1, MaxFrame, MaxFrame + 1, 3*MaxFrame + 7, 4 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			conn, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			want := Config{Path: "/etc/g.yaml", Text: bytes.Repeat([]byte("a: 1\x00\n"), size/6+1)[:size]}
			s := &Server{Start: Start{Config: want, Ring: rings.Sandbox}, Supervisor: newWorld()}
			done := make(chan error, 1)
			go func() { done <- s.Serve(t.Context(), conn) }()
			l, err := Connect(peer)
			if err != nil {
				t.Fatal(err)
			}
			got := l.Start().Config
			if got.Path != want.Path || got.Size != 0 || !bytes.Equal(got.Text, want.Text) {
				t.Errorf("got %s, %d bytes, size %d, want %d", got.Path, len(got.Text), got.Size, size)
			}
			if err := l.Hello(nil); err != nil {
				t.Fatal(err)
			}
			if b, err := l.Budget(t.Context()); err != nil || b.Steps != 7 {
				t.Errorf("a question after it: got %v %v", b, err)
			}
			l.Close()
			if err := <-done; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
}

// A supervisor that dies in the middle has said nothing: the gateway serves nobody.
func TestHalfAConfigurationIsNone(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		pieces     []string
		want       error
	}{
		{"cut", `{"ring":3,"config":{"size":9}}`, []string{"12345678"}, io.EOF},
		{"nothing", `{"ring":3,"config":{"size":9}}`, nil, io.EOF},
		{"too much", `{"ring":3,"config":{"size":9}}`, []string{"12345678", "90"}, ErrFrame},
		{"less than none", `{"ring":3,"config":{"size":-1}}`, nil, ErrFrame},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			err = send(conn, frame{Op: opStart, Body: json.RawMessage(tt.says)})
			for _, p := range tt.pieces {
				_, werr := conn.Write([]byte(p))
				err = errors.Join(err, werr)
			}
			if err := errors.Join(err, conn.Close()); err != nil {
				t.Fatal(err)
			}
			if l, err := Connect(peer); !errors.Is(err, tt.want) || l != nil {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestQuestionsAndAnswers(t *testing.T) {
	w := newWorld()
	l, done := connect(t, w)
	ctx := context.Background()
	if got, want := l.Start().Caller, (Caller{Run: "r1", Agent: "a"}); got != want {
		t.Errorf("caller: got %v, want %v", got, want)
	}
	action := rings.Action{ID: "tool.math.invoke", Name: "math", ExecuteAPI: "tool", Reversibility: rings.Full, ReadOnly: true}
	v, err := l.Check(ctx, Check{Action: action, Held: true})
	if want := (Verdict{Allowed: true, Code: rings.CodeOK, Place: 1, Ring: rings.Sandbox}); err != nil || v != want {
		t.Errorf("check: got %v %v, want %v", v, err, want)
	}
	ended := Record{Kind: "tool", Name: "math", Allowed: true, Code: rings.CodeOK, Count: 1, Cost: 3}
	if r, err := l.End(ctx, End{Place: v.Place, Reservation: 4, Record: &ended}); err != nil || !r.Allowed {
		t.Errorf("end: got %v %v", r, err)
	}
	if b, err := l.Budget(ctx); err != nil || b.Steps != 7 {
		t.Errorf("budget: got %v %v, want 7 steps", b, err)
	}
	if w.held() != 0 || w.settled.Load() != 3 {
		t.Errorf("got %d places held and a cost of %d, want 0 and 3", w.held(), w.settled.Load())
	}
	want := Record{Kind: "tool", Name: "math", Allowed: true, Code: rings.CodeOK, Count: 1, Took: time.Second}
	if err := l.Record(ctx, want); err != nil {
		t.Error(err)
	}
	w.mu.Lock()
	if diff := cmp.Diff([]Record{ended, want}, w.records); diff != "" {
		t.Error(diff)
	}
	w.mu.Unlock()
	// An error has no answer beside it.
	if r, err := l.Reserve(ctx, Spend{Estimate: 1}); err == nil || r != (Reservation{}) || !strings.Contains(err.Error(), "budget can't be read") {
		t.Errorf("reserve: got %v %v, want the zero value and the reason", r, err)
	}
	l.Close()
	if err := <-done; err != nil {
		t.Errorf("serve after the gateway's end: got %v, want nil", err)
	}
}

// M-22: what the supervisor says of the ring is known in the gateway; after the end there is none.
func TestM22RingFollows(t *testing.T) {
	w := newWorld()
	l, _ := connect(t, w)
	ring, changed := l.Ring()
	if ring != rings.Sandbox {
		t.Fatalf("ring at start: got %v, want %v", ring, rings.Sandbox)
	}
	w.setRing(rings.Standard)
	<-changed
	if ring, changed = l.Ring(); ring != rings.Standard {
		t.Errorf("ring: got %v, want %v", ring, rings.Standard)
	}
	w.setRing(rings.Standard) // what changed is not the ring: whoever waits looks again
	<-changed
	if ring, changed = l.Ring(); ring != rings.Standard {
		t.Errorf("ring: got %v, want %v", ring, rings.Standard)
	}
	l.Close()
	<-changed
	if ring, _ = l.Ring(); ring != rings.NoRing {
		t.Errorf("ring after the end: got %v, want none", ring)
	}
	if _, err := l.Check(context.Background(), Check{}); !errors.Is(err, ErrGone) {
		t.Errorf("check after the end: got %v, want %v", err, ErrGone)
	}
}

// M-3: the gateway knows when the run's time is over, also after an operator has put that off.
func TestM3EndFollows(t *testing.T) {
	conn, peer, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	first, second := time.Now().Add(time.Minute).UTC().Truncate(time.Second), time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	later := make(chan struct{})
	s := &Server{Start: Start{Ring: rings.Sandbox, Ends: first}, Supervisor: newWorld(), Ends: func() (time.Time, <-chan struct{}) {
		select {
		case <-later:
			return second, nil
		default:
			return first, later
		}
	}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = s.Serve(ctx, conn) }()
	l, err := Connect(peer)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Hello(nil); err != nil || !l.Ends().Equal(first) {
		t.Errorf("at first: got %v, want %v; %v", l.Ends(), first, err)
	}
	close(later)
	for range 1000 {
		if l.Ends().Equal(second) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("put off: got %v, want %v", l.Ends(), second)
}

// M-3: less than a minute is soon, and a run without an end never ends soon.
func TestM3EndsSoon(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		ends time.Time
		left time.Duration
		soon bool
	}{
		{time.Time{}, 0, false}, {now.Add(WarnTime + 1), WarnTime + 1, false}, {now.Add(WarnTime), WarnTime, true}, {now, 0, true}, {now.Add(-time.Hour), 0, true},
	} {
		if left, soon := EndsSoon(tt.ends, now); left != tt.left || soon != tt.soon {
			t.Errorf("%v: got %v, %v", tt.ends, left, soon)
		}
	}
}

// A granted place whose asker gave up goes back: nobody else knows of it.
func TestCancelledCheckKeepsNoPlace(t *testing.T) {
	w := newWorld()
	w.check = make(chan struct{})
	l, _ := connect(t, w)
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan error)
	go func() { _, err := l.Check(ctx, Check{Action: action()}); asked <- err }()
	for w.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled check: got %v, want %v", err, context.Canceled)
	}
	close(w.check)
	for { // ends with the place given back, or the test's time
		if _, err := l.Budget(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		granted, held := w.next, len(w.places)
		w.mu.Unlock()
		if granted == 1 && held == 0 {
			return
		}
	}
}

func action() rings.Action {
	return rings.Action{ID: "x", Name: "x", ExecuteAPI: "x", Reversibility: rings.Full, ReadOnly: true}
}

// An approval that nobody waits for any more is withdrawn.
func TestCancelReachesTheSupervisor(t *testing.T) {
	w := newWorld()
	began, ended := make(chan struct{}), make(chan struct{})
	w.approve = func(ctx context.Context) (Approved, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return Approved{}, ctx.Err()
	}
	l, _ := connect(t, w)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-began; cancel() }()
	if a, err := l.Approve(ctx, Approval{}); err == nil || a.Allowed {
		t.Errorf("got %v %v, want an error", a, err)
	}
	<-ended
}

// Everything that waits ends with the supervisor, and so does its process.
func TestSupervisorGone(t *testing.T) {
	w := newWorld()
	began := make(chan struct{})
	w.approve = func(ctx context.Context) (Approved, error) { close(began); <-ctx.Done(); return Approved{}, ctx.Err() }
	conn, peer, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Start: Start{Ring: rings.Sandbox}, Supervisor: w}).Serve(ctx, conn) }()
	l, err := Connect(peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Hello(nil); err != nil {
		t.Fatal(err)
	}
	over := errors.New("run over")
	go func() { <-began; cancel(over) }()
	if _, err := l.Approve(context.Background(), Approval{}); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want %v", err, ErrGone)
	}
	<-l.Gone()
	if err := <-done; !errors.Is(err, over) {
		t.Errorf("serve: got %v, want %v", err, over)
	}
}

// pipes is a process that copies stdin to stdout until it is closed.
type pipes struct {
	in, out *os.File
	done    chan struct{}
	once    sync.Once
}

func newPipes(t *testing.T) *pipes {
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &pipes{in: inW, out: outR, done: make(chan struct{})}
	go func() {
		_, _ = io.Copy(outW, inR)
		outW.Close()
		inR.Close()
		p.once.Do(func() { close(p.done) })
	}()
	return p
}

func (p *pipes) Stdin() *os.File  { return p.in }
func (p *pipes) Stdout() *os.File { return p.out }
func (p *pipes) Wait(context.Context) (int, string, error) {
	<-p.done
	return 3, "killed", nil
}
func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func TestProcess(t *testing.T) {
	w := newWorld()
	p := newPipes(t)
	w.spawn = func() (Process, error) { return p, nil }
	l, _ := connect(t, w)
	got, err := l.Execute(context.Background(), "code")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Stdin().WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	got.Stdin().Close()
	if b, err := io.ReadAll(got.Stdout()); err != nil || string(b) != "hello" {
		t.Errorf("output: got %q %v, want hello", b, err)
	}
	if code, why, err := got.Wait(context.Background()); code != 3 || why != "killed" || err != nil {
		t.Errorf("end: got %d %q %v, want 3 killed", code, why, err)
	}
	if err := got.Close(); err != nil {
		t.Error(err)
	}
	// One that doesn't end is killed by Close, and by the gateway's end.
	for _, how := range []string{"close", "gone"} {
		q := newPipes(t)
		w.mu.Lock()
		w.spawn = func() (Process, error) { return q, nil }
		w.mu.Unlock()
		running, err := l.Execute(context.Background(), "code")
		if err != nil {
			t.Fatal(err)
		}
		if how == "close" {
			if err := running.Close(); err != nil {
				t.Error(err)
			}
		} else {
			l.Close()
		}
		<-q.done
	}
}

// Nothing is answered before the commands are known, and they can't be named twice.
func TestHelloFirstAndOnce(t *testing.T) {
	for name, frames := range map[string][]frame{
		"question first": {{ID: 1, Op: opBudget}},
		"close first":    {{ID: 1, Op: opClose, Body: json.RawMessage(`{"place":1}`)}, {ID: 2, Op: opBudget}},
		"twice":          {{Op: opHello, Body: json.RawMessage("[]")}, {Op: opHello, Body: json.RawMessage("[]")}},
		"unreadable":     {{Op: opHello, Body: json.RawMessage(`"x"`)}},
	} {
		t.Run(name, func(t *testing.T) {
			conn, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			w := newWorld()
			go func() {
				done <- (&Server{Start: Start{Ring: rings.Sandbox}, Supervisor: w}).Serve(context.Background(), conn)
			}()
			c, err := connOf(peer)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for i, f := range frames {
				if err := send(c, f); err != nil && (i == 0 || !errors.Is(err, unix.EPIPE)) { // the first may have been enough
					t.Fatal(err)
				}
			}
			if err := <-done; !errors.Is(err, ErrFrame) {
				t.Errorf("got %v, want %v", err, ErrFrame)
			}
		})
	}
}

// A message that is too large is refused by the sender; the link goes on.
func TestTooLarge(t *testing.T) {
	w := newWorld()
	l, _ := connect(t, w)
	if err := l.Record(context.Background(), Record{Name: strings.Repeat("x", MaxFrame)}); err == nil {
		t.Error("a record over the size of a message was taken")
	}
	// A call is over whatever its record weighs: what is counted gets through.
	long := Record{Kind: "tool", Name: strings.Repeat("x", MaxFrame), Rule: strings.Repeat("y", MaxFrame), Code: rings.CodeOK, Cost: 7, Count: 1}
	if _, err := l.End(context.Background(), End{Place: 1, Record: &long}); err != nil {
		t.Error(err)
	}
	if _, err := l.Budget(context.Background()); err != nil {
		t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) != 1 || w.records[0].Cost != 7 || len(w.records[0].Name) > maxCutName {
		t.Errorf("got records %.500v, want one with the cost", w.records)
	}
}

// What a gateway that was taken over may send: never a panic, never a grant that wasn't asked for.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"op":"hello","body":[]}`))
	f.Add([]byte(`{"id":1,"op":"check","body":{"action":null}}`))
	f.Add([]byte(`{"id":1,"op":"execute","body":"x"}`))
	f.Add([]byte(`{"id":1,"op":"close","body":{"place":1,"reservation":1,"record":{"kind":"tool"}}}`))
	f.Add([]byte(`{"id":1,"op":"elevate","body":{"target_ring":2,"ttl":60000000000,"reason":"deploy"}}`))
	f.Add([]byte(`{"id":1,"op":"alarm","body":{"reason":"circuit_breaker","action":"tool.shell.invoke"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 || len(text) > MaxFrame {
			return
		}
		conn, peer, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld()
		w.approve = func(context.Context) (Approved, error) { return Approved{}, nil }
		w.spawn = func() (Process, error) { return nil, errors.New("there is no such command") }
		done := make(chan error, 1)
		go func() {
			done <- (&Server{Start: Start{Ring: rings.Sandbox}, Supervisor: strictControls(t, w)}).Serve(context.Background(), conn)
		}()
		c, err := connOf(peer)
		if err != nil {
			t.Fatal(err)
		}
		_ = send(c, frame{Op: opHello, Body: json.RawMessage("[]")})
		_, _, _ = c.WriteMsgUnix(text, nil, nil)
		c.Close()
		<-done
	})
}

// What a call asks of its supervisor over the link, but for its reservation.
func BenchmarkCall(b *testing.B) {
	w := newWorld()
	l, _ := connect(b, w)
	r := Record{Kind: "tool", Name: "math", Allowed: true, Code: rings.CodeOK, Cost: 10, Count: 1}
	for b.Loop() {
		v, err := l.Check(context.Background(), Check{Action: action(), Held: true})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.End(context.Background(), End{Place: v.Place, Reservation: 1, Record: &r}); err != nil {
			b.Fatal(err)
		}
	}
}
