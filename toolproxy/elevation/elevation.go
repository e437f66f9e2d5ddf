// SPDX-License-Identifier: Apache-2.0

package elevation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"agentrun/rings"
	"agentrun/telemetry/mask"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Gate is what gate.Gate offers.
type Gate interface {
	AskElevation(ctx context.Context, target rings.Ring) *gate.Error
	AwaitRing(ctx context.Context, target rings.Ring) (rings.Ring, <-chan struct{})
}

// Options of New.
type Options struct {
	Gate     Gate                // required
	Controls link.Controls       // nil: nothing can be had, and requests are told so
	Now      func() time.Time    // nil: time.Now
	Timeout  time.Duration       // for the supervisor to answer, beside what the request waits for an operator; 0: 10 s
	Mask     func(string) string // of the reason; nil: mask.Text
}

// Handler serves the route. Make it with New.
type Handler struct {
	o    Options
	busy chan struct{} // one request at a time

	mu     sync.Mutex
	active link.Elevated   // zero: none that is known here
	holds  <-chan struct{} // closed when the ring that came with it changed; nil: not known
}

// New returns the handler for /internal/elevation.
func New(o Options) *Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Mask == nil {
		o.Mask = mask.Text
	}
	return &Handler{o: o, busy: make(chan struct{}, 1)}
}

// maxBody is room for the longest reason, all of it escaped.
const maxBody = 16 << 10

func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			tools.WriteError(w, unavailable(fmt.Errorf("elevation: panic of type %T", v)))
		}
	}()
	switch {
	case req.URL.RawQuery != "":
		tools.WriteError(w, badRequest("this route takes no query", nil))
	case req.Method == http.MethodGet:
		h.tell(w)
	case req.Method == http.MethodPost:
		h.ask(w, req)
	default:
		tools.WrongMethod(w, "GET, POST")
	}
}

func (h *Handler) ask(w http.ResponseWriter, req *http.Request) {
	if e := tools.JSONBody(req); e != nil {
		tools.WriteError(w, e)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil || len(body) > maxBody {
		tools.WriteError(w, &gate.Error{Code: gate.CodeTooLarge, Message: fmt.Sprintf("the body is longer than %d bytes", maxBody), Next: "give a shorter reason"})
		return
	}
	q, e := decode(body)
	if e != nil {
		tools.WriteError(w, e)
		return
	}
	granted, e := h.request(req.Context(), q)
	if e != nil {
		tools.WriteError(w, e)
		return
	}
	write(w, shown(granted))
}

// request asks the gate, then the supervisor. An agent that waits for an operator holds the one place there is.
func (h *Handler) request(ctx context.Context, q link.Elevation) (link.Elevated, *gate.Error) {
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	default:
		return link.Elevated{}, &gate.Error{Code: gate.CodeConcurrency, Message: "a request for an elevation is under way", Next: "wait for its answer", Retry: time.Second}
	}
	if e := h.o.Gate.AskElevation(ctx, q.Target); e != nil {
		return link.Elevated{}, e
	}
	if h.o.Controls == nil {
		return link.Elevated{}, unavailable(errors.New("elevation: the supervisor has no controls"))
	}
	q.Reason = h.o.Mask(q.Reason)
	if len(q.Reason) > link.MaxReason { // a mask may be longer than what it covers
		q.Reason = q.Reason[:0]
	}
	asking, cancel := context.WithTimeout(ctx, q.Wait+h.o.Timeout)
	defer cancel()
	a, err := h.o.Controls.Elevate(asking, q)
	if err != nil {
		return link.Elevated{}, unavailable(err)
	}
	if e := refused(a); e != nil {
		return link.Elevated{}, e
	}
	h.remember(ctx, a)
	return a, nil
}

// remember keeps the elevation with the channel of the ring that it brought. Until the ring is here, the agent isn't told: it would
// try at once, and be refused.
func (h *Handler) remember(ctx context.Context, a link.Elevated) {
	ring, changed := h.o.Gate.AwaitRing(ctx, a.Target)
	if !ring.Valid() || a.Target.MorePrivilegedThan(ring) {
		changed = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active, h.holds = a, changed
}

// current is the elevation that counts still, as far as is known here.
func (h *Handler) current() (link.Elevated, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	over := h.active.ID == "" || !h.o.Now().Before(h.active.Expires)
	select {
	case <-h.holds: // nil: never
		over = true
	default:
	}
	if over {
		h.active, h.holds = link.Elevated{}, nil
		return link.Elevated{}, false
	}
	return h.active, true
}

func (h *Handler) tell(w http.ResponseWriter) {
	ring, _ := h.o.Gate.AwaitRing(context.Background(), rings.Sandbox) // every ring is: it doesn't wait
	if !ring.Valid() {
		tools.WriteError(w, &gate.Error{Code: gate.CodeCanceled, Message: "the run has ended", Next: "end"})
		return
	}
	status := struct {
		Ring      rings.Ring `json:"ring"`
		Elevation *output    `json:"elevation"`
	}{Ring: ring}
	if a, ok := h.current(); ok && !a.Target.MorePrivilegedThan(ring) {
		o := shown(a)
		status.Elevation = &o
	}
	write(w, status)
}

type output struct {
	ID      string     `json:"elevation_id"`
	Target  rings.Ring `json:"target_ring"`
	Expires time.Time  `json:"expires_at"`
	TTL     int64      `json:"ttl_seconds"`
}

func shown(a link.Elevated) output {
	return output{a.ID, a.Target, a.Expires.UTC(), int64(a.TTL / time.Second)}
}

func write(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		tools.WriteError(w, unavailable(err))
		return
	}
	tools.WriteOutput(w, body)
}
