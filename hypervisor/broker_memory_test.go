// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// run opens the broker of one run, with as many tool calls taken as the test needs changes.
func (n *node) memoryRun(run, agent, session string) *Broker {
	n.t.Helper()
	e := n.Control(n.admit(Request{Agent: agent, Session: session}), ControlOptions{Run: run}).Broker(BrokerOptions{MaxSteps: 100_000})
	n.t.Cleanup(func() { over(e) })
	e.taken = 10_000 // what so many calls of the tool have taken
	return e
}

func putting(id, summary string) link.MemoryRequest {
	return link.MemoryRequest{Op: link.MemoryPut, Item: link.MemoryItem{ID: id, Kind: link.MemorySummary, Summary: summary}}
}

func deleting(id string) link.MemoryRequest {
	return link.MemoryRequest{Op: link.MemoryDelete, Item: link.MemoryItem{ID: id}}
}

func asked(t *testing.T, m link.Memory, q link.MemoryRequest) link.MemoryAnswer {
	t.Helper()
	a, err := m.Memory(t.Context(), q)
	if err != nil {
		t.Fatalf("%s: %v", q.Op, err)
	}
	return a
}

// listed is every page of a memory.
func listed(t *testing.T, m link.Memory) []link.MemoryItem {
	t.Helper()
	var all []link.MemoryItem
	for q := (link.MemoryRequest{Op: link.MemoryList}); ; {
		a := asked(t, m, q)
		if !a.Allowed {
			t.Fatalf("list: %+v", a)
		}
		all = append(all, a.Items...)
		if !a.More {
			return all
		}
		q.After = all[len(all)-1].ID
	}
}

func texts(items []link.MemoryItem) []string {
	got := []string{}
	for _, i := range items {
		got = append(got, i.ID+"="+i.Summary)
	}
	return got
}

// linked gives a run's broker to a gateway of its own, as agentrun does.
func linked(t *testing.T, e *Broker) *link.Client {
	t.Helper()
	ours, theirs, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&link.Server{Start: link.Start{Caller: e.adm.Caller(e.run, ""), Ring: rings.Sandbox}, Supervisor: e}).Serve(ctx, ours)
	}()
	l, err := link.Connect(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Hello(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); cancel(); <-done })
	return l
}

// Two gateways of one agent see the same memory, at once and after a restart; another agent's is another.
func TestM14MemoryLivesOn(t *testing.T) {
	n := newNode(t)
	runs := []*Broker{n.memoryRun("r1", "a", ""), n.memoryRun("r2", "a", ""), n.memoryRun("r3", "b", "")}
	one, two, other := linked(t, runs[0]), linked(t, runs[1]), linked(t, runs[2])
	if a := asked(t, one, putting("", "the build is green")); !a.Allowed || a.ID != "m1" || !a.At.Equal(n.now) || a.Version != 1 {
		t.Errorf("put: got %+v", a)
	}
	asked(t, two, putting("x", "the tests too"))
	want := []string{"m1=the build is green", "x=the tests too"}
	for name, l := range map[string]*link.Client{"first": one, "second": two} {
		if d := cmp.Diff(want, texts(listed(t, l))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if got := listed(t, other); len(got) != 0 {
		t.Errorf("another agent sees %v", texts(got))
	}
	if a := asked(t, other, deleting("x")); a.Allowed || a.Refused != link.MemoryMissing {
		t.Errorf("another agent deletes: got %+v", a)
	}
	for _, e := range runs {
		if err := over(e); err != nil {
			t.Fatal(err)
		}
	}
	n.restart()
	if d := cmp.Diff(want, texts(listed(t, n.memoryRun("r4", "a", "")))); d != "" {
		t.Errorf("after a restart: %s", d)
	}
}

// A request's author, time and claims about whose it is count for nothing.
func TestM14IdentityIsTheAdmissions(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	q := putting("x", "mine")
	q.Item.Author, q.Item.At = "b", n.now.AddDate(9, 0, 0)
	asked(t, e, q)
	if got := listed(t, e); len(got) != 1 || got[0].Author != "a" || !got[0].At.Equal(n.now) {
		t.Errorf("got %+v, want it by a, now", got)
	}
	// An agent whose name begins like another's, or has a session's form, is still another.
	for _, agent := range []string{"a.x", "a:x", "aa", "session"} {
		if got := listed(t, n.memoryRun("r2", agent, "")); len(got) != 0 {
			t.Errorf("agent %s sees %v", agent, texts(got))
		}
	}
	own := n.Control(n.admit(Request{}), ControlOptions{Run: "r3"}).Broker(BrokerOptions{MaxSteps: 9})
	defer over(own)
	own.taken = 9
	if a, err := own.Memory(t.Context(), putting("x", "s")); err == nil || a.Allowed {
		t.Errorf("a run without agent: got %+v, %v, want an error", a, err)
	}
}

// A session's participants share its memory, and change what is their own.
func TestM14SessionsShareTheirs(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	for _, session := range []string{"s", "t"} {
		if _, err := n.CreateSession(ctx, rings.SessionConfig{SessionID: session, MaxParticipants: 3, MinParticipants: 1, ConsistencyMode: rings.Eventual}); err != nil {
			t.Fatal(err)
		}
		for _, agent := range []string{"a", "b"} {
			if _, err := n.JoinSession(ctx, session, agent); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, b := n.memoryRun("r1", "a", "s"), n.memoryRun("r2", "b", "s")
	asked(t, a, putting("x", "ours"))
	if d := cmp.Diff([]string{"x=ours"}, texts(listed(t, b))); d != "" {
		t.Error(d)
	}
	for _, q := range []link.MemoryRequest{putting("x", "theirs"), deleting("x")} {
		if got := asked(t, b, q); got.Allowed || got.Refused != link.MemoryOthers {
			t.Errorf("%s of another's: got %+v", q.Op, got)
		}
	}
	for name, e := range map[string]*Broker{"another session": n.memoryRun("r3", "a", "t"), "the agent's own": n.memoryRun("r4", "a", "")} {
		if got := listed(t, e); len(got) != 0 {
			t.Errorf("%s: got %v", name, texts(got))
		}
	}
}

func TestM14QuotaOfWhatLivesOn(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	big := link.MemoryRequest{Op: link.MemoryPut, Item: link.MemoryItem{Kind: link.MemoryEmbedding, Embedding: make([]byte, 4*link.MaxMemoryEmbedding)}}
	count := 0
	for {
		a := asked(t, e, big)
		if !a.Allowed {
			if a.Refused != link.MemoryFull {
				t.Errorf("got %+v, want %s", a, link.MemoryFull)
			}
			break
		}
		count++
	}
	if most := MaxMemoryBytes / (4 * link.MaxMemoryEmbedding); count > most || count < most-2 {
		t.Errorf("%d items of 16 KiB fit, want about %d", count, most)
	}
	if got := len(listed(t, linked(t, e))); got != count { // in pages, over a link with its frames
		t.Errorf("listed %d, want %d", got, count)
	}
	// Replacing counts the difference; a deletion makes room.
	big.Item.ID = "m1"
	for range 3 {
		if a := asked(t, e, big); !a.Allowed {
			t.Fatalf("replace: %+v", a)
		}
	}
	asked(t, e, deleting("m1"))
	if a := asked(t, e, big); !a.Allowed {
		t.Errorf("after a deletion: %+v", a)
	}
}

func TestM14QuotaOfItems(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	db, err := n.store()
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *store.Tx) error {
		return store.PutJSON(tx.Bucket(accountBucket), "agent/a/", memoryAccount{Items: MaxMemoryItems - 1, Bytes: 1, Version: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := asked(t, e, putting("", "last")); !a.Allowed {
		t.Errorf("got %+v", a)
	}
	if a := asked(t, e, putting("", "one more")); a.Allowed || a.Refused != link.MemoryFull {
		t.Errorf("got %+v, want %s", a, link.MemoryFull)
	}
}

// No page is longer than a frame, whatever the items are like: that would end the link, and with it the run.
func TestM14PagesFitFrames(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	m := memory{scope: agentScope + "a/", author: strings.Repeat("a", 256), now: n.Hypervisor.now}
	err := n.update(t.Context(), func(tx *store.Tx) error {
		for i := range MaxMemoryItems {
			q := putting(fmt.Sprintf("%0*d", link.MaxMemoryID, i), "s")
			if i%100 == 99 {
				q.Item.Summary = strings.Repeat("<", link.MaxMemorySummary) // six bytes each in JSON
				q.Item.Tags = slices.Repeat([]string{strings.Repeat("&", link.MaxMemoryTag)}, link.MaxMemoryTags)
			}
			if a, err := m.put(tx, q); err != nil || !a.Allowed {
				return fmt.Errorf("item %d: %+v, %w", i, a, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(listed(t, linked(t, e))); got != MaxMemoryItems {
		t.Errorf("listed %d, want %d", got, MaxMemoryItems)
	}
}

// A gateway that was taken over gets what its run may have, and no more.
func TestM14WhatTheSupervisorHoldsTo(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	refused := func(name string, q link.MemoryRequest) {
		t.Helper()
		if a, err := e.Memory(t.Context(), q); err == nil || a.Allowed {
			t.Errorf("%s: got %+v, %v, want an error", name, a, err)
		}
	}
	refused("raw messages", putting("", "User: hi\nAssistant: hello"))
	refused("too long", putting("", strings.Repeat("a", link.MaxMemorySummary+1)))
	refused("path", putting("../b/x", "s"))
	refused("nothing", link.MemoryRequest{})
	e.taken = 1
	asked(t, e, putting("x", "s"))
	refused("more changes than calls", putting("y", "s"))
	asked(t, e, link.MemoryRequest{Op: link.MemoryList})
	e.taken = 9
	if _, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	refused("quarantine", putting("y", "s"))
	refused("quarantine", link.MemoryRequest{Op: link.MemoryList})
	e = n.memoryRun("r2", "b", "")
	over(e)
	refused("after the end", putting("y", "s"))
}

// Who has the list isn't sent it again; each change makes it another.
func TestM14VersionsOfAMemory(t *testing.T) {
	n := newNode(t)
	e := n.memoryRun("r1", "a", "")
	v := asked(t, e, putting("x", "s")).Version
	again := func() link.MemoryAnswer {
		return asked(t, e, link.MemoryRequest{Op: link.MemoryList, Version: v})
	}
	if a := again(); !a.Same || len(a.Items) != 0 {
		t.Errorf("got %+v, want the same", a)
	}
	v = asked(t, e, deleting("x")).Version
	if a := again(); !a.Same || v != 2 {
		t.Errorf("version %d, %+v, want 2, the same", v, a)
	}
	asked(t, e, putting("x", "s"))
	if a := again(); a.Same || len(a.Items) != 1 {
		t.Errorf("after a change: got %+v", a)
	}
}

func TestM14ManyAtOnce(t *testing.T) {
	n := newNode(t)
	runs := []*link.Client{linked(t, n.memoryRun("r1", "a", "")), linked(t, n.memoryRun("r2", "a", ""))}
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			if a, err := runs[i%2].Memory(t.Context(), putting("", fmt.Sprint(i))); err != nil || !a.Allowed {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	wait.Wait()
	if got := listed(t, runs[0]); len(got) != 20 {
		t.Errorf("%d items, want 20", len(got))
	}
}

func TestM14OperatorsSeeAndDelete(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	if all, err := n.AgentMemory(ctx, "a"); err != nil || len(all) != 0 {
		t.Errorf("nothing: got %v, %v", all, err)
	}
	if _, err := n.CreateSession(ctx, rings.SessionConfig{SessionID: "s", MaxParticipants: 3, MinParticipants: 1, ConsistencyMode: rings.Eventual}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.JoinSession(ctx, "s", "a"); err != nil {
		t.Fatal(err)
	}
	own, shared, other := n.memoryRun("r1", "a", ""), n.memoryRun("r2", "a", "s"), n.memoryRun("r3", "b", "")
	asked(t, own, putting("x", "one"))
	asked(t, own, putting("y", "two"))
	asked(t, shared, putting("x", "three"))
	asked(t, other, putting("x", "four"))
	all, err := n.AgentMemory(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.Session+"/"+e.ID+"="+e.Summary)
	}
	if d := cmp.Diff([]string{"/x=one", "/y=two", "s/x=three"}, got); d != "" {
		t.Error(d)
	}
	if _, err := n.DeleteMemory(ctx, "a", "z"); !errors.Is(err, ErrNoMemory) {
		t.Errorf("got %v, want %v", err, ErrNoMemory)
	}
	if count, err := n.DeleteMemory(ctx, "a", "x"); err != nil || count != 2 {
		t.Errorf("delete x: got %d, %v, want 2", count, err)
	}
	if count, err := n.DeleteMemory(ctx, "a", ""); err != nil || count != 1 {
		t.Errorf("delete the rest: got %d, %v, want 1", count, err)
	}
	if got := listed(t, own); len(got) != 0 {
		t.Errorf("a run that lives still sees %v", texts(got))
	}
	if got := listed(t, other); len(got) != 1 {
		t.Errorf("another agent has %v left", texts(got))
	}
	for _, bad := range []string{"", "a/b", "../a"} {
		if _, err := n.DeleteMemory(ctx, bad, ""); err == nil {
			t.Errorf("agent %q: no error", bad)
		}
	}
}

// The largest memory, as a gateway reads it the first time: what a call of the tool may have to wait for.
func BenchmarkMemoryListFull(b *testing.B) {
	h, err := Open(Options{StateDir: filepath.Join(b.TempDir(), "state")})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	m := memory{scope: agentScope + "a/", author: "a", now: h.now}
	big := link.MemoryRequest{Op: link.MemoryPut, Item: link.MemoryItem{Kind: link.MemoryEmbedding, Embedding: make([]byte, 4*1000)}}
	err = h.update(b.Context(), func(tx *store.Tx) error {
		for {
			if a, err := m.put(tx, big); err != nil || !a.Allowed {
				return err
			}
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	view := func(f func(*store.Tx) error) error { return h.view(b.Context(), f) }
	for b.Loop() {
		items := 0
		for q := (link.MemoryRequest{Op: link.MemoryList}); ; {
			a, err := m.answer(view, q)
			if err != nil {
				b.Fatal(err)
			}
			items += len(a.Items)
			if !a.More {
				break
			}
			q.After = a.Items[len(a.Items)-1].ID
		}
		if items != MaxMemoryItems {
			b.Fatalf("%d items", items)
		}
	}
}

func BenchmarkMemoryPut(b *testing.B) {
	h, err := Open(Options{StateDir: filepath.Join(b.TempDir(), "state")})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	m := memory{scope: agentScope + "a/", author: "a", now: h.now}
	update := func(f func(*store.Tx) error) error { return h.update(b.Context(), f) }
	q := putting("x", strings.Repeat("a", 200))
	for b.Loop() {
		if a, err := m.answer(update, q); err != nil || !a.Allowed {
			b.Fatal(a, err)
		}
	}
}

// One participant that puts without end leaves room in the session's memory for what the others put.
func TestM14LeavesRoomForOthers(t *testing.T) {
	n := newNode(t)
	a, b := memory{scope: sessionScope + "s/", author: "a", now: n.Hypervisor.now}, memory{scope: sessionScope + "s/", author: "b", now: n.Hypervisor.now}
	put := func(m memory, q link.MemoryRequest) (r link.MemoryAnswer) {
		t.Helper()
		err := n.update(t.Context(), func(tx *store.Tx) (err error) {
			r, err = m.put(tx, q)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	err := n.update(t.Context(), func(tx *store.Tx) error {
		for i := range MaxMemoryItems / 2 {
			if r, err := a.put(tx, putting("", "s")); err != nil || !r.Allowed {
				return fmt.Errorf("item %d: %+v, %w", i, r, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := put(a, putting("", "s")); r.Refused != link.MemoryFull {
		t.Errorf("more than is free: %+v", r)
	}
	if r := put(a, putting("m1", "s")); !r.Allowed {
		t.Errorf("what doesn't grow: %+v", r)
	}
	if r := put(b, putting("", "s")); !r.Allowed {
		t.Errorf("the other participant: %+v", r)
	}
	for _, id := range []string{"m1", "m2"} {
		if k, err := n.DeleteMemory(t.Context(), "a", id); err != nil || k != 1 {
			t.Fatal(k, err)
		}
	}
	if r := put(a, putting("", "s")); !r.Allowed {
		t.Errorf("room that it has again: %+v", r)
	}
}
