// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"
)

const (
	busSize  = 1024 // events kept
	busBatch = 64   // handed to one reader between two looks
)

// SinceNow asks for what happens from now on. On the wire it is since=now.
const SinceNow uint64 = math.MaxUint64

// Bus keeps the last 1024 events of a supervisor and hands them to readers. Publishing never waits for a reader: one that is
// slower than the events gets an EventGap that says how many it lost. Make one with NewBus; safe for concurrent use.
type Bus struct {
	now func() time.Time

	mu      sync.Mutex
	last    uint64 // Seq of the newest; 0: none yet
	ring    [busSize]Event
	changed chan struct{} // closed at the next change, if somebody waits
	closed  bool
}

// NewBus returns an empty Bus. now is the clock; nil means time.Now.
func NewBus(now func() time.Time) *Bus {
	if now == nil {
		now = time.Now
	}
	return &Bus{now: now}
}

// Publish appends an event and returns it with its Seq, and with At where that was zero. After Close it is dropped, its Seq 0.
func (b *Bus) Publish(e Event) Event {
	e.Data = maps.Clone(e.Data) // readers have it after the caller changes its own
	if e.At.IsZero() {
		e.At = b.now().UTC().Round(0)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		e.Seq = 0
		return e
	}
	b.last++
	e.Seq = b.last
	b.ring[e.Seq%busSize] = e
	b.wakeLocked()
	return e
}

// Close ends the readers that follow, after what there is. Publish does nothing from here on.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.wakeLocked()
}

func (b *Bus) wakeLocked() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Events is Controller's. since 0: all that are kept; SinceNow: those to come; more than the newest event's is an *Error: the
// number is another supervisor's. Data of events must not be changed.
func (b *Bus) Events(ctx context.Context, since uint64, follow bool, send func(Event) error) error {
	b.mu.Lock()
	if since == SinceNow {
		since = b.last
	}
	last := b.last
	b.mu.Unlock()
	if since > last {
		return &Error{Status: 400, Code: CodeBadRequest, Message: fmt.Sprintf("since: %d is after the newest event, %d", since, last), Hint: "it may be another supervisor's; ask without since"}
	}
	for {
		batch, changed, closed := b.after(since)
		for _, e := range batch {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := send(e); err != nil {
				return err
			}
			since = e.Seq
		}
		switch {
		case len(batch) > 0:
		case !follow || closed:
			return nil
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// after returns the next events, or what is closed when there is one.
func (b *Bus) after(since uint64) (batch []Event, changed <-chan struct{}, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since == b.last {
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		return nil, b.changed, b.closed
	}
	if oldest := max(b.last, busSize) - busSize + 1; since+1 < oldest {
		lost := oldest - 1 - since
		batch = append(batch, Event{Seq: oldest - 1, At: b.now().UTC().Round(0), Kind: EventGap, Data: map[string]string{"lost": strconv.FormatUint(lost, 10)}})
		since = oldest - 1
	}
	for n := since + 1; n <= b.last && len(batch) < busBatch; n++ {
		batch = append(batch, b.ring[n%busSize])
	}
	return batch, nil, false
}
