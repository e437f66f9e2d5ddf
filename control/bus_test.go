// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func collect(t *testing.T, b *Bus, since uint64) []Event {
	t.Helper()
	var got []Event
	if err := b.Events(t.Context(), since, false, func(e Event) error { got = append(got, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestBusKeepsTheLast(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := NewBus(func() time.Time { return now })
	if got := collect(t, b, 0); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	data := map[string]string{"n": "1"}
	first := b.Publish(Event{Kind: EventStarted, ID: "r1", Data: data})
	data["n"] = "changed"
	want := Event{Seq: 1, At: now, Kind: EventStarted, ID: "r1", Data: map[string]string{"n": "1"}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	for range busSize - 1 {
		b.Publish(Event{Kind: EventRefused})
	}
	if got := collect(t, b, 0); len(got) != busSize || got[0].Kind != EventStarted {
		t.Errorf("got %d events, want %d and no gap", len(got), busSize)
	}
	for range 10 {
		b.Publish(Event{Kind: EventRefused})
	}
	got := collect(t, b, 3)
	gap := Event{Seq: 10, At: now, Kind: EventGap, Data: map[string]string{"lost": "7"}}
	if diff := cmp.Diff(gap, got[0]); diff != "" || len(got) != busSize+1 {
		t.Errorf("got %d events, first %v", len(got), got[0])
	}
	for i, e := range got {
		if e.Seq != uint64(10+i) {
			t.Fatalf("got seq %d at %d, want %d", e.Seq, i, 10+i)
		}
	}
	if got := collect(t, b, busSize+10); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	err := b.Events(t.Context(), busSize+11, true, nil)
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 {
		t.Errorf("got %v, want a refusal: the number is another supervisor's", err)
	}
}

func TestBusFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBus(nil)
		b.Publish(Event{Kind: EventStarted})
		var got []uint64
		done := make(chan error, 1)
		go func() {
			done <- b.Events(t.Context(), SinceNow, true, func(e Event) error { got = append(got, e.Seq); return nil })
		}()
		synctest.Wait()
		b.Publish(Event{Kind: EventFrozen})
		synctest.Wait()
		b.Publish(Event{Kind: EventThawed})
		b.Publish(Event{Kind: EventEnded})
		b.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]uint64{2, 3, 4}, got); diff != "" {
			t.Error(diff)
		}
		if e := b.Publish(Event{}); e.Seq != 0 {
			t.Errorf("got %d after the end, want 0", e.Seq)
		}
	})
}

func TestBusReaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBus(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Events(ctx, 0, true, func(Event) error { return nil }) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want canceled", err)
		}
		b.Publish(Event{})
		refused := errors.New("full")
		if err := b.Events(t.Context(), 0, true, func(Event) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("got %v, want %v", err, refused)
		}
	})
}

// TestBusNeverWaits: publishers go on while a reader hangs; what that one lost, it is told, and every event is either seen or
// counted.
func TestBusNeverWaits(t *testing.T) {
	const publishers, each = 4, 2000
	b := NewBus(nil)
	hang := make(chan struct{})
	done := make(chan error, 1)
	var seen, lost, last uint64
	go func() {
		done <- b.Events(t.Context(), 0, true, func(e Event) error {
			<-hang
			if e.Kind == EventGap {
				n, _ := strconv.ParseUint(e.Data["lost"], 10, 64)
				lost += n
			} else if seen++; e.Seq <= last {
				t.Errorf("got %d after %d", e.Seq, last)
			}
			last = e.Seq
			return nil
		})
	}()
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				b.Publish(Event{Kind: EventRefused})
			}
		})
	}
	wg.Wait()
	close(hang)
	b.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if seen+lost != publishers*each || last != publishers*each || lost == 0 {
		t.Errorf("got %d seen, %d lost, last %d, want %d together", seen, lost, last, publishers*each)
	}
}
