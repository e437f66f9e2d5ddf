// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// H-32: a run reaches its session's context and no other, as its agent, within bounds, and not in quarantine; a gateway that was taken
// over can name neither session nor agent, and changes no more than the run makes calls.
func TestH32ContextOfARun(t *testing.T) {
	n := newNode(t)
	for _, s := range []string{"mine", "other"} {
		if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: s, MaxParticipants: 4, MinParticipants: 1, ConsistencyMode: rings.Strong}); err != nil {
			t.Fatal(err)
		}
	}
	for _, agent := range []string{"a", "b"} {
		if _, err := n.JoinSession(t.Context(), "mine", agent); err != nil {
			t.Fatal(err)
		}
	}
	a, b, alone := n.memoryRun("r1", "a", "mine"), n.memoryRun("r2", "b", "mine"), n.memoryRun("r3", "a", "")
	do := func(e *Broker, q link.ContextRequest) (link.ContextAnswer, error) { return e.Context(t.Context(), q) }
	put := func(key, value string, version uint64) link.ContextRequest {
		return link.ContextRequest{Op: link.ContextPut, Key: key, Value: []byte(value), Version: version}
	}
	if r, err := do(a, put("k", "one", 0)); err != nil || !r.Allowed || r.Version != 1 || r.Standing != 1 {
		t.Fatalf("put: %+v, %v", r, err)
	}
	if r, err := do(b, put("k", "two", 0)); err != nil || r.Allowed || r.Refused != link.ContextVersion {
		t.Errorf("a version that is gone: %+v, %v", r, err)
	}
	r, err := do(b, link.ContextRequest{Op: link.ContextGet, Key: "k"})
	if err != nil || !r.Allowed || len(r.Values) != 1 || r.Values[0].Agent != "a" || string(r.Values[0].Value) != "one" {
		t.Errorf("get: %+v, %v", r, err)
	}
	if r, err := do(b, link.ContextRequest{Op: link.ContextPut, Key: "k", Value: []byte("x"), Clock: rings.VectorClock{"b": 1}}); err != nil || r.Refused != link.ContextWrong {
		t.Errorf("a clock in a strong session: %+v, %v", r, err)
	}
	if _, err := do(alone, link.ContextRequest{Op: link.ContextGet, Key: "k"}); err == nil {
		t.Error("a run without session reads")
	}
	for _, q := range []link.ContextRequest{
		{}, {Op: "delete", Key: "k"}, {Op: link.ContextGet}, {Op: link.ContextGet, Key: "k", From: -1}, put("\xff", "x", 0), put(string(bytes.Repeat([]byte("k"), 257)), "x", 0),
		{Op: link.ContextPut, Key: "k", Value: make([]byte, rings.MaxSharedValueBytes+1)},
	} {
		if _, err := do(a, q); err == nil {
			t.Errorf("%+v was taken", q)
		}
	}
	a.written = a.taken
	if _, err := do(a, put("more", "x", 0)); err == nil {
		t.Error("more writes than calls")
	}
	if _, err := n.Quarantine(t.Context(), "b", Cause{Code: "operator", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := do(b, link.ContextRequest{Op: link.ContextGet, Key: "k"}); err == nil {
		t.Error("an agent in quarantine reads")
	}
}

// H-32: the bounds hold over all keys though a write reads its own alone, and a list has pages.
func TestH32ContextBoundsOverAllKeys(t *testing.T) {
	n := newNode(t)
	if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: "s", MaxParticipants: 1, MinParticipants: 1, ConsistencyMode: rings.Eventual}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.JoinSession(t.Context(), "s", "a"); err != nil {
		t.Fatal(err)
	}
	e := n.memoryRun("r", "a", "s")
	value := bytes.Repeat([]byte("x"), rings.MaxSharedValueBytes)
	fits := rings.MaxSharedBytes / rings.MaxSharedValueBytes
	for i := range fits + 1 {
		r, err := e.Context(t.Context(), link.ContextRequest{Op: link.ContextPut, Key: fmt.Sprintf("k%03d", i), Value: value})
		if err != nil || r.Allowed != (i < fits) || i == fits && r.Refused != link.ContextFull {
			t.Fatalf("key %d: %+v, %v", i, r, err)
		}
	}
	if r, err := e.Context(t.Context(), link.ContextRequest{Op: link.ContextPut, Key: "k000", Value: []byte("small")}); err != nil || !r.Allowed {
		t.Errorf("a smaller value: %+v, %v", r, err)
	}
	var keys []string
	for q := (link.ContextRequest{Op: link.ContextList}); ; {
		r, err := e.Context(t.Context(), q)
		if err != nil || !r.Allowed || len(r.Keys) == 0 {
			t.Fatalf("list: %+v, %v", r, err)
		}
		size := 0
		for _, k := range r.Keys {
			keys = append(keys, k.Key)
			size += k.Bytes
		}
		if size > sharedPage {
			t.Errorf("a transaction that all runs of the node wait for reads %d bytes for %d keys", size, len(r.Keys))
		}
		if !r.More {
			break
		}
		q.After = keys[len(keys)-1]
	}
	if len(keys) != fits {
		t.Errorf("%d keys are listed, want %d", len(keys), fits)
	}
}

// H-32: one participant that writes without end leaves room for what the others write, in keys and in bytes.
func TestH32ContextLeavesRoomForOthers(t *testing.T) {
	for _, mode := range []rings.ConsistencyMode{rings.Strong, rings.Causal, rings.Eventual} {
		n := newNode(t)
		if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: "s", MaxParticipants: 2, MinParticipants: 2, ConsistencyMode: mode}); err != nil {
			t.Fatal(err)
		}
		for _, agent := range []string{"a", "b"} {
			if _, err := n.JoinSession(t.Context(), "s", agent); err != nil {
				t.Fatal(err)
			}
		}
		put := func(agent, key string, size int) error {
			r, err := n.GetShared(t.Context(), "s", agent, key)
			if err != nil {
				t.Fatal(err)
			}
			if mode != rings.Causal {
				r.Clock = nil
			}
			n.now = n.now.Add(time.Second)
			_, err = n.PutShared(t.Context(), "s", rings.SharedWrite{Agent: agent, Key: key, Value: make([]byte, size), Version: r.Version, Clock: r.Clock})
			return err
		}
		const large = rings.MaxSharedValueBytes
		many := rings.MaxSharedBytes / large / 2
		for i := range many + 1 {
			if err := put("a", fmt.Sprintf("a%d", i), large); (err == nil) != (i < many) || err != nil && !errors.Is(err, rings.ErrSharedBounds) {
				t.Fatalf("%s: value %d: %v", mode, i, err)
			}
		}
		if err := put("b", "b", large); err != nil {
			t.Errorf("%s: the other participant: %v", mode, err)
		}
		if err := put("a", "a0", large); err != nil {
			t.Errorf("%s: what doesn't grow: %v", mode, err)
		}
		// What another has replaced is no longer its own.
		if err := put("b", "a1", 1); err != nil {
			t.Errorf("%s: replaced by the other: %v", mode, err)
		}
		if err := put("b", "a2", 1); err != nil {
			t.Errorf("%s: replaced by the other: %v", mode, err)
		}
		if err := put("a", "more", large); err != nil {
			t.Errorf("%s: room that it has again: %v", mode, err)
		}
		var err error
		keys := 0
		for ; err == nil && keys < rings.MaxSharedKeys; keys++ {
			err = put("a", fmt.Sprintf("k%d", keys), 0)
		}
		if !errors.Is(err, rings.ErrSharedBounds) || keys > rings.MaxSharedKeys/2 {
			t.Errorf("%s: %d keys, %v", mode, keys, err)
		}
		if err := put("b", "another", 1); err != nil {
			t.Errorf("%s: another key of the other's: %v", mode, err)
		}
	}
}
