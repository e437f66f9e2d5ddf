// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"agentrun/control"
)

func event(seq uint64, at int, kind, id string, data ...string) control.Event {
	e := control.Event{Seq: seq, At: liveNow.Add(time.Duration(at) * time.Second), Kind: kind, ID: id, Ring: 3, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		e.Data[data[i]] = data[i+1]
	}
	return e
}

func TestM23EventsInOrder(t *testing.T) {
	a := &fakeSuper{boxes: []control.Sandbox{box("one")}, events: []control.Event{
		event(1, 0, control.EventStarted, "one"), event(2, 3, control.EventRing, "one", "to", "2", "from", "3", "cause", "an elevation"), event(3, 9, control.EventEnded, "one"),
	}}
	b := &fakeSuper{boxes: []control.Sandbox{box("two")}, events: []control.Event{event(1, 1, control.EventStarted, "two"), event(2, 4, control.EventFrozen, "two")}}
	l, _ := liveOn(t, a, b)
	out, errs, code := liveDo(t, l, "", "events")
	const want = `2026-11-21T12:00:00.000Z  one  started  ring=3
2026-11-21T12:00:01.000Z  two  started  ring=3
2026-11-21T12:00:03.000Z  one  ring_changed  ring=3  cause="an elevation"  from=3  to=2
2026-11-21T12:00:04.000Z  two  frozen  ring=3
2026-11-21T12:00:09.000Z  one  ended  ring=3
`
	if out != want || code != 0 {
		t.Errorf("got %d, %q:\n%s", code, errs, out)
	}
	out, _, _ = liveDo(t, l, "", "events", "--since", "2", "--json")
	var e control.Event
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Seq != 3 || strings.Count(out, "\n") != 1 {
		t.Errorf("got %q, %v", out, err)
	}
	// Of one run, to its end.
	a.events = append(a.events, event(4, 10, control.EventStarted, "other"))
	out, _, code = liveDo(t, l, "", "events", "--follow", "one")
	if code != 0 || strings.Count(out, "\n") != 3 || strings.Contains(out, "other") {
		t.Errorf("got %d:\n%s", code, out)
	}
	b.refuse = map[string]error{"events": errHung}
	out, errs, code = liveDo(t, l, "", "events")
	if code != 1 || !strings.Contains(errs, "supervisor s1") || !strings.Contains(out, "ended") {
		t.Errorf("got %d, %q, %q", code, out, errs)
	}
}

// A supervisor that starts while events are followed is followed too; one whose stream breaks is taken up where it stopped.
func TestM23EventsFollow(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	later := &fakeSuper{stream: func(ctx context.Context, since uint64, send func(control.Event) error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		defer end()
		return send(event(since+1, 7, control.EventStarted, "later"))
	}}
	breaks := 0
	var l *liveVerbs
	var n *fakeNode
	first := &fakeSuper{events: []control.Event{event(1, 0, control.EventStarted, "one")}}
	first.stream = func(ctx context.Context, since uint64, send func(control.Event) error) error {
		switch breaks++; breaks {
		case 1:
			return send(event(since+1, 1, control.EventFrozen, "one"))
		case 2:
			err := send(event(since+1, 2, control.EventThawed, "one"))
			n.mu.Lock()
			n.supers = append(n.supers, later)
			n.mu.Unlock()
			return err
		}
		<-ctx.Done()
		return nil
	}
	l, n = liveOn(t, first)
	var got []string
	w := watching{l: l, seen: map[string]uint64{}, streams: map[string]bool{}, silent: map[string]bool{}, to: func(e control.Event) error {
		got = append(got, e.ID+" "+e.Kind)
		return nil
	}}
	if err := w.past(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.follow(ctx); err != nil {
		t.Fatal(err)
	}
	if want := "one started, one frozen, one thawed, later started"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if w.seen["s0"] != 3 {
		t.Errorf("got %v, want each event once", w.seen)
	}
}
