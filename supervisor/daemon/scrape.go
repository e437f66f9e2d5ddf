// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"agentrun/internal/uhttp"
	"agentrun/telemetry/counts"
	"agentrun/telemetry/scrape"
)

// Metrics is where the node's numbers are served (M-20). The zero value: on the control socket alone.
type Metrics struct {
	Addr     string // HOST:PORT; no host is 127.0.0.1
	Anywhere bool   // it may be another address than loopback, where whoever can connect can read
}

const (
	metricsType = "text/plain; version=0.0.4; charset=utf-8"
	// At once. Any user of the host may connect, and hold a place for as long as a request may take.
	maxScrapes = 16
	askTime    = 2 * time.Second
	scrapeTime = 10 * time.Second
)

// gauges are what this process alone knows of the node.
func (d *Daemon) gauges() []counts.Gauge {
	live, waiting := d.queue.Counts()
	return []counts.Gauge{
		{Name: "daemon_runs", Help: "Runs that the daemon supervises now.", Value: float64(live)},
		{Name: "queue_waiting", Help: "Runs that wait for room.", Value: float64(waiting)},
		{Name: "pool_ready", Help: "Sandboxes that are ready for nobody yet.", Value: float64(d.pool.Ready())},
	}
}

func (d *Daemon) metrics() (string, error) {
	var b bytes.Buffer
	err := d.node.Metrics(&b, d.gauges()...)
	return b.String(), err
}

// serveMetrics answers GET /metrics on the configured address, until the function that it returns is called.
func (d *Daemon) serveMetrics(m Metrics) (stop func(), err error) {
	if m.Addr == "" {
		return func() {}, nil
	}
	l, err := scrape.Listen(m.Addr, m.Anywhere)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	places := make(chan struct{}, maxScrapes)
	go func() {
		for ctx.Err() == nil {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			c, err := l.Accept()
			if err != nil {
				<-places
				time.Sleep(time.Millisecond) // short of descriptors: runs that end give some back
				continue
			}
			go func() {
				defer func() { <-places }()
				d.scraped(c)
				_ = c.Close()
			}()
		}
	}()
	d.node.Log.Info("metrics", "address", l.Addr().String())
	return func() { cancel(); _ = l.Close() }, nil
}

// scraped answers one request. A fault in it is that request's end: with the daemon its runs would die.
func (d *Daemon) scraped(c net.Conn) {
	defer func() {
		if r := recover(); r != nil {
			d.node.Log.Error("metrics", "panic", r)
		}
	}()
	if c.SetReadDeadline(time.Now().Add(askTime)) != nil {
		return
	}
	w := uhttp.NewWriter(c, scrapeTime)
	say := func(status int, text string) { _ = w.Send(status, "text/plain; charset=utf-8", []byte(text+"\n")) }
	r, err := uhttp.ReadRequest(uhttp.NewReader(c), c)
	switch {
	case err != nil:
		say(400, "no request")
	case !scrape.Served(c.LocalAddr(), r.Host):
		say(403, scrape.Refusal)
	case !slices.Equal(r.Path, []string{"metrics"}):
		say(404, "not found: GET /metrics")
	case r.Method != "GET":
		say(405, "method not allowed: GET /metrics")
	default:
		text, err := d.runs.Metrics()
		if err != nil {
			say(500, fmt.Sprint(err))
			return
		}
		_ = w.Send(200, metricsType, []byte(text))
	}
}
