// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	queueSize = 2048
	batchSize = 256
	linger    = 2 * time.Second // how long a span may wait for others
)

// queue is a span processor that never blocks and counts what it drops. The SDK's own does the first but tells the second
// only to a global log.
type queue struct {
	exporter sdk.SpanExporter
	timeout  time.Duration
	spans    chan sdk.ReadOnlySpan
	dropped  atomic.Int64

	once      sync.Once
	stop      chan struct{}
	done      chan struct{}
	cancel    context.CancelFunc
	exporting context.Context
}

func newQueue(exporter sdk.SpanExporter, size int, timeout time.Duration) *queue {
	q := &queue{exporter: exporter, timeout: timeout, spans: make(chan sdk.ReadOnlySpan, size), stop: make(chan struct{}), done: make(chan struct{})}
	q.exporting, q.cancel = context.WithCancel(context.Background())
	go q.run()
	return q
}

// OnStart of sdk.SpanProcessor.
func (q *queue) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd takes a span if there is room.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	select {
	case <-q.stop:
		q.dropped.Add(1)
		return
	default:
	}
	select {
	case q.spans <- s:
	default:
		q.dropped.Add(1)
	}
}

func (q *queue) run() {
	defer close(q.done)
	tick := time.NewTicker(linger)
	defer tick.Stop()
	var batch []sdk.ReadOnlySpan
	send := func() { q.export(batch); batch = nil }
	for {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); len(batch) >= batchSize {
				send()
			}
		case <-tick.C:
			send()
		case <-q.stop:
			for len(q.spans) > 0 {
				if batch = append(batch, <-q.spans); len(batch) >= batchSize {
					send()
				}
			}
			send()
			return
		}
	}
}

func (q *queue) export(batch []sdk.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(q.exporting, q.timeout)
	defer cancel()
	if err := q.exporter.ExportSpans(ctx, batch); err != nil {
		q.dropped.Add(int64(len(batch)))
	}
}

// Shutdown sends what is queued, until ctx ends.
func (q *queue) Shutdown(ctx context.Context) error {
	q.once.Do(func() { close(q.stop) })
	select {
	case <-q.done:
	case <-ctx.Done():
		q.cancel()
		<-q.done
	}
	q.cancel()
	return q.exporter.Shutdown(ctx)
}

// ForceFlush of sdk.SpanProcessor. Nobody may wait for the exporter but Shutdown.
func (q *queue) ForceFlush(context.Context) error { return nil }
