// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/internal/fault"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// booking is the check of a call that can be undone for a minute.
func booking() link.Check {
	c := tool("book")
	api := "tool.book.undo"
	c.Action.ReadOnly, c.Action.UndoAPI, c.Action.UndoWindowSeconds = false, &api, 60
	return c
}

// booked makes such a call, with these arguments of its undo, and returns its id.
func booked(t *testing.T, e *Broker, undo string) string {
	t.Helper()
	v := check(t, e, booking())
	if !v.Allowed {
		t.Fatalf("got %+v", v)
	}
	if _, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: v.Place}); err != nil {
		t.Fatal(err)
	}
	r := link.Record{Kind: "tool", Name: "book", Allowed: true, Code: rings.CodeOK, Count: 1}
	if _, err := e.End(t.Context(), link.End{Place: v.Place, Record: &r, Undo: json.RawMessage(undo)}); err != nil {
		t.Fatal(err)
	}
	return e.callID(v.Place)
}

// standard is a node with the broker of a run of an agent in ring 2.
func standard(t *testing.T) (*node, *Broker) {
	t.Helper()
	n := newNode(t)
	n.score("a", 0.8, false)
	return n, n.broker(BrokerOptions{MaxSteps: 1000, Gateway: "/etc/gateway.yaml"})
}

func (n *node) files(pattern string) []string {
	n.t.Helper()
	list, err := filepath.Glob(filepath.Join(n.dir, undoDir, pattern))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// H-7: an undo happens once, whoever asks at the same time; a failed one isn't tried again, one that wasn't begun can be; nothing is done
// that isn't on record; the arguments are gone afterwards.
func TestH7UndoOnce(t *testing.T) {
	n, e := standard(t)
	ask := func(id string, do Undoer) error {
		_, err := n.Undo(t.Context(), UndoRequest{Call: id, By: "uid:0"}, do)
		return err
	}
	id := booked(t, e, `{"id":1}`)
	var mu sync.Mutex
	var done []string
	good := func(_ context.Context, u Undoable, args json.RawMessage) error {
		mu.Lock()
		defer mu.Unlock()
		done = append(done, u.Tool+u.Gateway+string(args))
		return nil
	}
	var all sync.WaitGroup
	codes := make([]rings.Code, 20)
	for i := range codes {
		all.Go(func() {
			if d, ok := errors.AsType[*DeniedError](ask(id, good)); ok {
				codes[i] = d.Code
			}
		})
	}
	all.Wait()
	if slices.Sort(codes); codes[0] != "" || codes[1] != CodeUndoDone || len(done) != 1 || done[0] != `book/etc/gateway.yaml{"id":1}` {
		t.Errorf("20 at once: %v, done %q", codes, done)
	}

	id = booked(t, e, `{"id":2}`)
	if err := ask(id, func(context.Context, Undoable, json.RawMessage) error {
		return &UndoError{"tool_failed", errors.New("500")}
	}); err == nil {
		t.Error("a failed one was told as done")
	}
	if got := code(t, ask(id, good)); got != CodeUndoDone {
		t.Errorf("after a failed one: got %s", got)
	}

	id = booked(t, e, `{"id":3}`)
	if err := ask(id, func(context.Context, Undoable, json.RawMessage) error { return errors.New("no gateway") }); err == nil {
		t.Errorf("got %v", err)
	}
	clear := fault.Set("record/undo=ENOSPC")
	if err := ask(id, good); err == nil || len(done) != 1 {
		t.Errorf("without a record: %v, done %q", err, done)
	}
	clear()
	if err := ask(id, good); err != nil || len(done) != 2 {
		t.Errorf("got %v, done %q", err, done)
	}

	// Its process ended in the middle.
	id = booked(t, e, `{"id":4}`)
	u, _, lock, err := n.takeUndo(UndoRequest{Call: id})
	lock.Unlock()
	u.State, u.By = UndoBegun, "uid:0"
	if err := errors.Join(err, n.writeUndo(u)); err != nil {
		t.Fatal(err)
	}
	if got := code(t, ask(id, good)); got != CodeUndoDone {
		t.Errorf("after one that was cut off: got %s", got)
	}

	// It ended before anything was begun.
	id = booked(t, e, `{"id":5}`)
	if _, _, lock, err = n.takeUndo(UndoRequest{Call: id}); err != nil {
		t.Fatal(err)
	}
	if got := code(t, ask(id, good)); got != CodeUndoDone {
		t.Errorf("while another has it: got %s", got)
	}
	lock.Unlock()
	if err := ask(id, good); err != nil || len(done) != 3 {
		t.Errorf("after one that had begun nothing: %v, done %q", err, done)
	}
	if left := append(n.files("*.args"), n.files("*.taken")...); len(left) != 1 { // of the one that was cut off, until its window ends
		t.Errorf("arguments are left: %v", left)
	}
	got := ""
	for _, r := range (&site{node: n}).records(audit.NodeChain, "undo") {
		u := r.(*audit.Undo)
		got += fmt.Sprint(" ", u.State, u.Code)
	}
	if want := " undoing undone undoing failedtool_failed undoing failednot_begun undoing undone undoing undone"; got != want {
		t.Errorf("on record:%s, want%s", got, want)
	}
}

// H-7, M-18: after the window there is nothing to undo and no argument on the disk; what the call was is known for another day.
func TestH7WindowEnds(t *testing.T) {
	n, e := standard(t)
	id := booked(t, e, `{"id":1}`)
	never := func(context.Context, Undoable, json.RawMessage) error { t.Error("undone"); return nil }
	ask := func(r UndoRequest) rings.Code {
		_, err := n.Undo(t.Context(), r, never)
		return code(t, err)
	}
	for call, want := range map[string]rings.Code{
		id + "0": CodeUndoUnknown, "../x": CodeUndoUnknown, "": CodeUndoUnknown, strings.Repeat("x", 300): CodeUndoUnknown,
	} {
		if got := ask(UndoRequest{Call: call}); got != want {
			t.Errorf("%.40q: got %s, want %s", call, got, want)
		}
	}
	if got := ask(UndoRequest{Call: id, Session: "s1"}); got != CodeOtherSession {
		t.Errorf("of another session: got %s", got)
	}
	for _, f := range n.files("*") {
		if i, err := os.Lstat(f); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, i, err)
		}
	}
	n.now = n.now.Add(time.Minute)
	if got := ask(UndoRequest{Call: id}); got != CodeUndoOver {
		t.Errorf("at its end: got %s", got)
	}
	n.now = n.now.Add(time.Second)
	DropUndos(n.dir, n.now)
	if left := n.files("*"); len(left) != 1 || !strings.HasSuffix(left[0], id+undoCall) {
		t.Errorf("left: %v", left)
	}
	if list, err := n.Undos(); err != nil || len(list) != 1 || list[0].State != UndoOver {
		t.Errorf("got %+v, %v", list, err)
	}
	n.now = n.now.Add(25 * time.Hour)
	if list, err := n.Undos(); err != nil || len(list) != 0 || len(n.files("*")) != 0 {
		t.Errorf("a day later: %+v, %v, %v", list, err, n.files("*"))
	}
}

// H-6, H-7: a call that couldn't be undone any more, since no more are kept, isn't made; what a gateway says of calls that have no
// window, that never passed, or too much of, isn't kept.
func TestH7UndosAreBounded(t *testing.T) {
	n, e := standard(t)
	for range 2 {
		booked(t, e, `{}`)
		n.now = n.now.Add(time.Second) // for the rate
	}
	for i := range maxRunUndos - 2 {
		if err := n.writeUndoFile(fmt.Sprintf("%s.x%d%s", e.run, i, undoArgs), nil, n.now.Add(time.Hour), false); err != nil {
			t.Fatal(err)
		}
	}
	if v := check(t, e, booking()); v.Allowed || v.Code != link.CodeUnavailable {
		t.Errorf("beyond the bound: got %+v", v)
	}
	if v := check(t, e, tool("math")); !v.Allowed {
		t.Errorf("a tool without undo: got %+v", v)
	}
	if !n.roomToUndo("r2", "a") {
		t.Error("another run has no room")
	}

	for i := range maxRemembered + 10 {
		if err := n.writeUndoFile(fmt.Sprintf("r0.%d%s", i, undoCall), nil, n.now.Add(-time.Duration(i+1)*time.Second), false); err != nil {
			t.Fatal(err)
		}
	}
	DropUndos(n.dir, n.now)
	if left := n.files("r0.*"); len(left) != maxRemembered {
		t.Errorf("%d calls are remembered, want %d", len(left), maxRemembered)
	}

	n, e = standard(t)
	say := func(place uint64, undo []byte) {
		r := link.Record{Kind: "tool", Name: "book", Allowed: true, Code: rings.CodeOK, Count: 1}
		if _, err := e.End(t.Context(), link.End{Place: place, Record: &r, Undo: undo}); err != nil {
			t.Error(err)
		}
	}
	pass := func(c link.Check) uint64 {
		v := check(t, e, c)
		if _, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: v.Place}); err != nil {
			t.Fatal(err)
		}
		return v.Place
	}
	say(check(t, e, booking()).Place, []byte(`{}`)) // nobody agreed to it
	say(pass(tool("math")), []byte(`{}`))           // no window
	say(pass(booking()), []byte(`"`+strings.Repeat("x", link.MaxUndo)+`"`))
	say(99, []byte(`{}`)) // no call
	if left := n.files("*"); len(left) != 0 {
		t.Errorf("kept: %v", left)
	}
}

// H-21: a kill undoes the calls of the run and of its children, the latest first, and no other's; one that fails keeps no other.
func TestH7KillUndoes(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	var got []string
	do := func(_ context.Context, u Undoable, args json.RawMessage) error {
		got = append(got, u.Call)
		if string(args) == `"stuck"` {
			return &UndoError{"tool_failed", errors.New("no")}
		}
		return nil
	}
	c := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: "r1", Undo: do})
	e := c.Broker(BrokerOptions{MaxSteps: 9})
	defer over(e)
	other := n.brokerOf("r2", BrokerOptions{MaxSteps: 9})
	booked(t, other, `{}`)
	var ids []string
	for _, args := range []string{`"a"`, `"stuck"`, `"c"`} {
		n.now = n.now.Add(time.Second)
		ids = append(ids, booked(t, e, args))
	}
	n.now = n.now.Add(time.Second)
	if err := n.keepUndo(Undoable{Call: "r9.1", Run: "r9", Parent: "r1", Tool: "t", Made: n.now, Until: n.now.Add(time.Minute), State: UndoOpen}, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	res := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual, By: "uid:7"})
	if want := []string{"r9.1", ids[2], ids[1], ids[0]}; !slices.Equal(got, want) {
		t.Errorf("undone %v, want %v", got, want)
	}
	failed := 0
	for _, e := range res.Errors {
		if e.Stage == rings.StageCompensation {
			failed++
		}
	}
	if res.CompensationsExecuted != 4 || failed != 1 {
		t.Errorf("got %+v", res)
	}
	if again := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual}); again.CompensationsExecuted != 0 {
		t.Errorf("a second kill: %+v", again)
	}
	for _, r := range (&site{node: n}).records(audit.NodeChain, "undo") {
		if u := r.(*audit.Undo); u.By != "uid:7" || u.Trigger != "kill" {
			t.Errorf("got %+v", u)
		}
	}
}
