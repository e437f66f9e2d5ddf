// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"sync"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// refusals gathers like refusals, so that an agent can't fill the log by asking for nonsense: the first is recorded at once,
// those of the second that follows are one record with their number.
type refusals struct {
	record func(ctx context.Context, r link.Record) error

	mu   sync.Mutex
	open map[refusal]int64 // how many since the last record; a key without timer isn't there
}

type refusal struct {
	code   rings.Code
	rule   string
	weight rings.Ring
}

const (
	gatherFor     = time.Second
	recordTimeout = 5 * time.Second
)

func newRefusals(record func(ctx context.Context, r link.Record) error) *refusals {
	return &refusals{record: record, open: map[refusal]int64{}}
}

// add has few keys to keep: codes and rules are the gateway's own words, nothing of a request.
func (s *refusals) add(ctx context.Context, e *gate.Error, weight rings.Ring) {
	if s.record == nil {
		return
	}
	key := refusal{e.Code, e.Rule, weight}
	s.mu.Lock()
	n, gathering := s.open[key]
	if gathering {
		s.open[key] = n + 1
	} else {
		s.open[key] = 0
		time.AfterFunc(gatherFor, func() { s.close(key) })
	}
	s.mu.Unlock()
	if !gathering {
		s.write(ctx, key, 1)
	}
}

func (s *refusals) close(key refusal) {
	s.mu.Lock()
	n := s.open[key]
	delete(s.open, key)
	s.mu.Unlock()
	if n > 0 {
		s.write(context.Background(), key, n)
	}
}

func (s *refusals) flush() {
	s.mu.Lock()
	keys := make([]refusal, 0, len(s.open))
	for key := range s.open {
		keys = append(keys, key)
	}
	s.mu.Unlock()
	for _, key := range keys {
		s.close(key)
	}
}

// write may lose a record: the refusal stands all the same, and nothing passed.
func (s *refusals) write(ctx context.Context, key refusal, count int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	_ = s.record(ctx, link.Record{Kind: "tool", Name: "gateway", Code: key.code, Rule: key.rule, Weight: key.weight, Count: count})
}
