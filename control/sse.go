// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// events streams them as text/event-stream (the HTML standard, 9.2): id is Seq, so that a reader that lost its connection goes
// on with Last-Event-ID; event is the kind.
func (q *call) events() error {
	since, err := q.since()
	if err != nil {
		return err
	}
	follow, err := q.flag("follow")
	if err != nil {
		return err
	}
	free, err := q.follows(follow)
	if err != nil {
		return err
	}
	defer free()
	ctx, cancel := q.reading()
	defer cancel()
	w := &lazy{q: q, start: func() error { return q.w.Start("text/event-stream") }}
	if follow {
		defer q.beat(w)()
	}
	err = q.s.Controller.Events(ctx, since, follow, func(e Event) error {
		text, err := eventText(e)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.begin()
}

// firstBeat is when a reader of a quiet stream learns that it was taken. A Controller refuses before, if it does.
const firstBeat = 100 * time.Millisecond

// beat keeps a quiet stream from looking like a dead one, to its reader and to us: one that doesn't take what it is sent is
// found by the write. It returns what ends it.
func (q *call) beat(w *lazy) (stop func()) {
	timer, end, ended := time.NewTimer(firstBeat), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-timer.C:
				if _, err := w.Write([]byte(": still here\n\n")); err != nil {
					_ = q.conn.Close() // whoever waits for events is woken by that
					return
				}
				timer.Reset(heartbeat)
			case <-end:
				return
			}
		}
	}()
	return func() { timer.Stop(); close(end); <-ended }
}

func (q *call) since() (uint64, error) {
	text, given := q.request.Query["since"]
	if !given {
		text = q.request.Header("last-event-id")
	}
	switch text {
	case "":
		if given {
			return 0, badField("since", "want a number, or now")
		}
		return 0, nil
	case "now":
		return SinceNow, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == math.MaxUint64 || text[0] == '0' && text != "0" {
		return 0, badField("since", "want a number, or now")
	}
	return n, nil
}

func eventText(e Event) ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event %d: %w", e.Seq, err)
	}
	kind := e.Kind
	// A line end in it would begin a field of the sender's choice.
	if kind == "" || strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz_") != "" {
		kind = "other"
	}
	return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, kind, data), nil
}
