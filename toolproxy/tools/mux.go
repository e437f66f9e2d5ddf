// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"agentrun/internal/pace"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// MuxOptions of NewMux.
type MuxOptions struct {
	Mounts map[egress.Family]http.Handler // a family without one doesn't exist
	Bodies map[egress.Family]int64        // bytes of a request's body; 0: MaxArguments plus room for what is around them
	Hosts  []string                       // that a request over TCP may name; nil: DefaultHosts

	// Record takes refusals that no entrance saw: forbidden routes, wrong hosts, bodies that are too long. Like ones within a
	// second are one record. Nil: they are not recorded.
	Record func(ctx context.Context, r link.Record) error

	// Unknown decides whether a route that isn't there is answered so; an error is told in its place, and is on record. Nil: it is.
	Unknown func(ctx context.Context) *gate.Error

	PerSecond   int           // requests in the long run, and twice that at once; what comes sooner waits, refused ones count for ten; 0: 200
	AtOnce      int           // requests under way; 0: 128
	BodiesAt    int64         // bytes of bodies held at once; 0: 64 MiB
	BodyTimeout time.Duration // to send a body; 0: 10 s
}

// DefaultHosts returns the names of the tool gateway's fixed address.
func DefaultHosts() []string { return []string{"127.0.0.1:7600", "[::1]:7600", "localhost:7600"} }

// Mux leads requests to the routes of egress.RouteAllowed, and nowhere else. It reads the request target as the client wrote
// it: net/http's own ServeMux cleans paths, decodes them and answers with redirects, which is how other spellings of a
// route come about (M-7). Behind it, URL.Path is the canonical path, the body is in memory, and RouteOf has the route.
type Mux struct {
	o        MuxOptions
	under    chan struct{}
	held     atomic.Int64
	refusals *refusals
	pace     *pace.Pace
}

// NewMux returns a Mux.
func NewMux(o MuxOptions) *Mux {
	if o.Hosts == nil {
		o.Hosts = DefaultHosts()
	}
	// Four times the rate of the most privileged ring: what is more is refused, or asks what costs nothing.
	o.PerSecond = cmp.Or(o.PerSecond, 200)
	o.AtOnce = cmp.Or(o.AtOnce, 128)
	o.BodiesAt = cmp.Or(o.BodiesAt, 64<<20)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, 10*time.Second)
	return &Mux{o: o, under: make(chan struct{}, o.AtOnce), refusals: newRefusals(o.Record), pace: pace.New(o.PerSecond, 2*o.PerSecond)}
}

// Close records what was gathered.
func (m *Mux) Close() { m.refusals.flush() }

type routeKey struct{}

// RouteOf returns the route that a Mux found for a request.
func RouteOf(ctx context.Context) (egress.Route, bool) {
	r, ok := ctx.Value(routeKey{}).(egress.Route)
	return r, ok
}

func (m *Mux) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	select {
	case m.under <- struct{}{}:
		defer func() { <-m.under }()
	default:
		m.refuse(w, req, &gate.Error{Code: gate.CodeConcurrency, Message: "too many requests at once", Next: "wait until one of yours has ended", Retry: time.Second}, rings.NoRing)
		return
	}
	if !m.pace.Wait(req.Context()) {
		return
	}
	answer := &answer{ResponseWriter: w}
	defer func() {
		if answer.status >= http.StatusBadRequest || answer.refused.Load() {
			m.pace.Owe(refusalCosts - 1)
		}
	}()
	w = answer
	if e := m.sameHost(req); e != nil {
		m.refuse(w, req, e, rings.NoRing)
		return
	}
	route, target, d := egress.ParseRoute(req.Method, req.RequestURI)
	handler := m.o.Mounts[route.Family]
	if d.Sub == egress.UnknownRoute || d.Allowed() && handler == nil {
		m.unknown(w, req)
		return
	}
	if !d.Allowed() {
		m.refuse(w, req, forbidden(d), rings.Root)
		return
	}
	body, e := m.readBody(w, req, cmp.Or(m.o.Bodies[route.Family], MaxArguments+4<<10))
	if e != nil {
		w.Header().Set("Connection", "close") // what is left of the body is nobody's request
		drain(w, req.Body)
		m.refuse(w, req, e, rings.NoRing)
		return
	}
	defer m.held.Add(-int64(cap(body)))
	req = req.WithContext(context.WithValue(req.Context(), answerKey{}, answer))
	handler.ServeHTTP(w, canonicalRequest(req, route, target, body))
}

// refusalCosts is how many turns a request takes that is answered with an error, so 20 a second in the long run: it is decided and put
// on record by the supervisor as well, a millisecond of processor time in all, and who means well doesn't ask again at once.
const refusalCosts = 10

// answer knows its status.
type answer struct {
	http.ResponseWriter
	status  int
	refused atomic.Bool // whatever the status says
}

type answerKey struct{}

// Refused says that a request of a Mux's is answered with an error, by a handler whose protocol has another place for that than the status.
func Refused(ctx context.Context) {
	if a, ok := ctx.Value(answerKey{}).(*answer); ok {
		a.refused.Store(true)
	}
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// unknown holds routes that are tried out to the ring's rate, as names of tools are.
func (m *Mux) unknown(w http.ResponseWriter, req *http.Request) {
	if m.o.Unknown != nil {
		if e := m.o.Unknown(req.Context()); e != nil {
			WriteError(w, e)
			return
		}
	}
	m.refuse(w, req, notFound(), rings.NoRing)
}

// forbidden is a family that is the host's own business, ring 0's: asking for it is an attempt, not a mistake.
func forbidden(d egress.Decision) *gate.Error {
	return &gate.Error{
		Code: egress.CodeRouteForbidden, Message: "this route is never open to an agent",
		Next: "use the routes below /internal/tools, /internal/llm, /internal/router, /internal/usage, /internal/elevation and /internal/safety", Rule: "M-7: " + string(d.Sub),
	}
}

// sameHost keeps out what a page in a browser sends after its name was made to resolve to this address (DNS rebinding). Over a
// unix socket there are no names; nothing but a program that opened it can speak there.
func (m *Mux) sameHost(req *http.Request) *gate.Error {
	if addr, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && strings.HasPrefix(addr.Network(), "unix") {
		return nil
	}
	if !slices.Contains(m.o.Hosts, strings.ToLower(req.Host)) {
		return &gate.Error{Code: gate.CodeBadRequest, Message: "the Host header isn't the tool gateway's", Next: "use the address in AGENTRUN_TOOLS_URL", Rule: "host"}
	}
	if origin := req.Header.Get("Origin"); origin != "" && !slices.Contains(m.o.Hosts, strings.TrimPrefix(strings.ToLower(origin), "http://")) {
		return &gate.Error{Code: gate.CodeBadRequest, Message: "requests of web pages aren't taken", Next: "send the request without a browser", Rule: "origin"}
	}
	return nil
}

// Bounds of drain: four of the largest bodies, and as long as a client that isn't slow on purpose takes for them.
const (
	maxDrain  = 8 << 20
	drainTime = time.Second
)

// drain reads on where a body was refused. Most clients read nothing before they have sent all, and a connection that is closed while
// they send is a reset: they would learn that something failed, and not what.
func drain(w http.ResponseWriter, body io.Reader) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, body, maxDrain)
}

// readBody takes the whole body before anything is decided about it: what is decided on is what arrived, and a slow sender
// holds memory within a bound and no place. ReadTimeout of http.Server would end long calls as well, since its deadline also
// cuts the read that notices when a client goes away.
func (m *Mux) readBody(w http.ResponseWriter, req *http.Request, limit int64) ([]byte, *gate.Error) {
	switch {
	case req.ContentLength > limit:
		return nil, bodyTooLarge(limit)
	case req.ContentLength == 0:
		return nil, nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(m.o.BodyTimeout))
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	from := http.MaxBytesReader(w, req.Body, limit)
	var body []byte
	for {
		if len(body) == cap(body) {
			grown := grow(cap(body), req.ContentLength, limit)
			if m.held.Add(int64(grown-cap(body))) > m.o.BodiesAt {
				m.held.Add(-int64(grown))
				return nil, &gate.Error{Code: gate.CodeConcurrency, Message: "too many large requests at once", Next: "wait until one of yours has ended", Retry: time.Second}
			}
			body = append(make([]byte, 0, grown), body...)[:len(body):grown]
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == nil {
			continue
		}
		if e := ofBody(err, limit); e != nil {
			m.held.Add(-int64(cap(body)))
			return nil, e
		}
		return body, nil
	}
}

// grow doubles: what a client announces takes little memory, only what it sends does.
func grow(size int, announced, limit int64) int {
	least := 4 << 10
	if announced > 0 && announced < int64(least) {
		least = int(announced) + 1 // and one byte to meet the end in
	}
	return min(max(2*size, least), int(limit)+1)
}

func ofBody(err error, limit int64) *gate.Error {
	var long *http.MaxBytesError
	switch {
	case err == io.EOF: //nolint:errorlint // and no wrapped one: that is a body that broke off
		return nil
	case errors.As(err, &long):
		return bodyTooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &gate.Error{Code: gate.CodeBadRequest, Message: "the body didn't arrive in time", Next: "send it at once", Rule: ruleSlow}
	}
	return badRequest("the body broke off", err)
}

const ruleSlow = "slow body" // answered with 408

func bodyTooLarge(limit int64) *gate.Error {
	return &gate.Error{Code: gate.CodeTooLarge, Message: fmt.Sprintf("the body is longer than %d bytes", limit), Next: "send less at once"}
}
