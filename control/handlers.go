// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// Version is what GET /v1/version answers.
type Version struct {
	Version    string `json:"version"`
	API        int    `json:"api"`
	Supervisor int    `json:"supervisor"` // process id
}

// SandboxList is what GET /v1/sandboxes answers.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// KillRequest is the body of POST /v1/kill. Without a selector's field nothing is killed: it is refused.
type KillRequest struct {
	Selector Selector `json:"selector"`
	Reason   string   `json:"reason,omitempty"` // one of rings.KillReasons, or an operator's words; empty: manual
}

// KillList is what POST /v1/kill answers.
type KillList struct {
	Results []KillResult `json:"results"`
}

// KillOneRequest is the body of POST /v1/sandboxes/{id}/kill.
type KillOneRequest struct {
	Reason string `json:"reason,omitempty"` // one of rings.KillReasons, or an operator's words; empty: manual
}

// RevokeRequest is the body of POST /v1/sandboxes/{id}/revoke.
type RevokeRequest struct {
	Elevation string `json:"elevation_id,omitempty"` // empty: the run's, whichever it is
}

// SignalRequest is the body of POST /v1/sandboxes/{id}/signal.
type SignalRequest struct {
	Signal int `json:"signal"` // 1 to 64
}

// Done is the answer of what only succeeds.
type Done struct{}

const maxReason = 1024 // bytes

func (q *call) send(v any, err error) error {
	if err != nil {
		return err
	}
	return sendJSON(q.w, 200, v)
}

// posts makes a handler of do, which gets the body, read onto a T. What do returns is sent as JSON.
func posts[T any](do func(q *call, r T) (any, error)) func(*call) error {
	return func(q *call) error {
		var r T
		if err := decodeBody(q.request.Body, &r); err != nil {
			return err
		}
		return q.send(do(q, r))
	}
}

// reads makes a handler of do, which ends when whoever asked leaves. What do returns is sent as JSON.
func reads(do func(q *call, ctx context.Context) (any, error)) func(*call) error {
	return func(q *call) error {
		ctx, cancel := q.reading()
		defer cancel()
		return q.send(do(q, ctx))
	}
}

// waits makes a handler of one that may last as long as a run does.
func waits(handle func(*call) error) func(*call) error {
	return func(q *call) error {
		free, err := q.stay()
		if err != nil {
			return err
		}
		defer free()
		return handle(q)
	}
}

// stay gives a request one of the places for those that last. A place is left for what is answered at once.
func (q *call) stay() (free func(), err error) {
	if free = q.s.places.wait(q.peer.uid, q.right); free == nil {
		err = &Error{Status: 503, Code: CodeBusy, Message: "too many connections wait for runs", Hint: "end some, as agentrun wait, attach, shell, output --follow; what is answered at once still is"}
	}
	return free, err
}

// follows is stay for an answer that lasts only if it was asked to.
func (q *call) follows(follow bool) (free func(), err error) {
	if !follow {
		return func() {}, nil
	}
	return q.stay()
}

func (q *call) version() error {
	return q.send(Version{q.s.Version, APIVersion, os.Getpid()}, nil)
}

func (q *call) openapi() error { return q.w.Send(200, "application/json", []byte(openAPI)) }

func (q *call) sandboxes(ctx context.Context) (any, error) {
	list, err := q.s.Controller.Sandboxes(ctx)
	if list == nil {
		list = []Sandbox{}
	}
	return SandboxList{list}, err
}

func (q *call) inspect(ctx context.Context) (any, error) { return q.s.Controller.Inspect(ctx, q.id) }

func (q *call) freeze(struct{}) (any, error) {
	return Done{}, q.s.Controller.Freeze(q.ctx, q.id, q.peer.by())
}

func (q *call) thaw(struct{}) (any, error) {
	return Done{}, q.s.Controller.Thaw(q.ctx, q.id, q.peer.by())
}

// pause that is held streams its one answer, and ends when who asked for it leaves: a copy that is killed leaves nobody standing still.
func (q *call) pause() error {
	held, err := q.flag("held")
	if err != nil {
		return err
	}
	if err := decodeBody(q.request.Body, &struct{}{}); err != nil {
		return err
	}
	free, err := q.follows(held)
	if err != nil {
		return err
	}
	defer free()
	p, err := q.s.Controller.Pause(q.ctx, q.id, q.peer.by())
	if err != nil || !held {
		return q.send(p, err)
	}
	defer q.endHeld(p)
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	gone, cancel := q.reading()
	defer cancel()
	w := &lazy{q: q, start: func() error { return q.w.Start("text/event-stream") }}
	if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
		return err
	}
	defer q.beat(w)()
	<-gone.Done()
	return nil
}

// endHeld ends the pause p, unless somebody has: another that came after it is theirs.
func (q *call) endHeld(p Pause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), heldTime)
	defer cancel()
	if now, err := q.s.Controller.Inspect(ctx, q.id); err == nil && now.Pause != nil && now.Pause.Since.Equal(p.Since) {
		err = q.s.Controller.Resume(ctx, q.id, q.peer.by())
		if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Code != CodeConflict) { // frozen besides, it stays so
			q.s.report(fmt.Errorf("end of a held pause of run %s: %w", q.id, err))
		}
	}
}

// heldTime is for a run to go on whose held pause is over.
const heldTime = 5 * time.Second

func (q *call) resume(struct{}) (any, error) {
	return Done{}, q.s.Controller.Resume(q.ctx, q.id, q.peer.by())
}

func (q *call) kill(r KillOneRequest) (any, error) {
	reason, err := killReason(r.Reason)
	if err != nil {
		return nil, err
	}
	list, err := q.s.Controller.Kill(q.ctx, Selector{ID: q.id}, reason, q.peer.by())
	if err == nil && len(list) != 1 {
		err = notFound(q.id)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

func (q *call) killAll(r KillRequest) (any, error) {
	// Two fields could mean both or either, none could mean all: each of that kills somebody who wasn't meant.
	set, sel := 0, r.Selector
	for _, is := range []bool{sel.ID != "", sel.Agent != "", sel.Session != "", sel.All} {
		if is {
			set++
		}
	}
	if set != 1 {
		return nil, badField("selector", "exactly one of id, agent, session, all")
	}
	reason, err := killReason(r.Reason)
	if err != nil {
		return nil, err
	}
	list, err := q.s.Controller.Kill(q.ctx, r.Selector, reason, q.peer.by())
	if list == nil {
		list = []KillResult{}
	}
	return KillList{list}, err
}

// killReason is one of H-23's, or what an operator says in their own words: then the kill is manual, and the words are its detail.
func killReason(s string) (string, error) {
	if s == "" {
		return string(rings.KillManual), nil
	}
	return s, CheckText("reason", s, maxReason)
}

func (q *call) elevate(r ElevateRequest) (any, error) {
	if err := CheckText("reason", r.Reason, maxReason); err != nil {
		return nil, err
	}
	return q.s.Controller.Elevate(q.ctx, q.id, r, q.peer.by())
}

func (q *call) extend(r ExtendRequest) (any, error) {
	if r.Time < 0 || r.CPUTime < 0 || r.Time == 0 && r.CPUTime == 0 {
		return nil, badField("time_ns", "want a time above 0, here or in cpu_time_ns")
	}
	if err := CheckText("reason", r.Reason, maxReason); err != nil {
		return nil, err
	}
	return q.s.Controller.Extend(q.ctx, q.id, r, q.peer.by())
}

func (q *call) revoke(r RevokeRequest) (any, error) {
	return Done{}, q.s.Controller.Revoke(q.ctx, q.id, r.Elevation, q.peer.by())
}

func (q *call) signal(r SignalRequest) (any, error) {
	switch unix.Signal(r.Signal) {
	case unix.SIGKILL, unix.SIGSTOP, unix.SIGCONT: // of one process, and on no record
		return nil, badField("signal", "kill, freeze and thaw do this to the whole run, on record")
	}
	if r.Signal < 1 || r.Signal > 64 {
		return nil, badField("signal", "want 1 to 64")
	}
	return Done{}, q.s.Controller.Signal(q.ctx, q.id, r.Signal, q.peer.by())
}

func (q *call) limits(l Limits) (any, error) {
	dryRun, err := q.flag("dry_run")
	if err != nil {
		return nil, err
	}
	if l == (Limits{}) {
		return nil, badField("body", "it changes nothing; give cpu, memory_bytes or pids")
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	return q.s.Controller.Update(q.ctx, q.id, l, dryRun, q.peer.by())
}

func (l Limits) check() error {
	switch {
	case l.CPU < 0 || math.IsInf(l.CPU, 0):
		return badField("cpu", "want a number of processors")
	case l.Memory < 0:
		return badField("memory_bytes", "want a number of bytes")
	case l.PIDs < 0:
		return badField("pids", "want a number of processes")
	}
	return nil
}

func (q *call) wait(ctx context.Context) (any, error) {
	status, err := q.s.Controller.Wait(ctx, q.id)
	if err == nil && !json.Valid(status) {
		err = errors.New("the status of the run is no JSON")
	}
	return status, err
}

func (q *call) flag(name string) (bool, error) {
	switch q.request.Query[name] {
	case "":
		if _, given := q.request.Query[name]; !given {
			return false, nil
		}
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, badField(name, "want true or false")
}

func (q *call) output() error {
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
	w := &lazy{q: q, start: func() error { return q.w.Start("application/octet-stream") }}
	if err := q.s.Controller.Output(ctx, q.id, follow, w); err != nil {
		return err
	}
	return w.begin() // of no output too
}

func (q *call) attach() error {
	if q.request.Upgrade != attachProtocol {
		return badField("Upgrade", "want "+attachProtocol)
	}
	if len(q.request.Body) > 0 {
		return badField("body", "attach has none")
	}
	return q.s.Controller.Attach(q.ctx, q.id, q.frames())
}

func (q *call) frames() *lazy {
	return &lazy{q: q, in: q.in, start: func() error { return q.w.Upgrade(attachProtocol) }}
}

func (q *call) exec() error {
	var r ExecRequest
	if err := decodeBody(q.request.Body, &r); err != nil {
		return err
	}
	switch {
	case q.request.Upgrade != attachProtocol:
		return badField("Upgrade", "want "+attachProtocol)
	case r.Timeout < 0:
		return badField("timeout_ns", "it is negative")
	case r.Rows < 0 || r.Rows > math.MaxUint16 || r.Columns < 0 || r.Columns > math.MaxUint16:
		return badField("rows", "want 0 to 65535, here and in columns")
	case r.TTY && r.Detach:
		return badField("detach", "a detached command has no terminal")
	}
	if err := r.Limits.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(q.ctx)
	defer cancel(nil)
	go q.watchPeer(ctx, func() { cancel(errLeft) })
	return q.s.Controller.Exec(ctx, q.id, r, q.peer.by(), q.frames())
}

var errLeft = errors.New("whoever ran it has hung up")

// lookForPeer is how often it is looked whether a peer is there whose command neither reads nor writes.
const lookForPeer = 200 * time.Millisecond

// watchPeer tells when the peer has hung up, also behind input that nobody reads: the end of the connection comes after that.
func (q *call) watchPeer(ctx context.Context, left func()) {
	sc, ok := q.conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	look := time.NewTicker(lookForPeer)
	defer look.Stop()
	for gone := false; !gone; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		err := raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor
			n, err := unix.Poll(p, 0)
			gone = err == nil && n > 0
		})
		gone = gone || err != nil
	}
	left()
}

const attachProtocol = "agentrun-attach"

// lazy begins the answer with the first byte, so that a Controller can still refuse before it.
type lazy struct {
	q     *call
	in    io.Reader
	start func() error
	mu    sync.Mutex // of begin: input and output are two goroutines' in general
}

func (l *lazy) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.q.w.Begun() {
		return nil
	}
	return l.start()
}

func (l *lazy) Write(p []byte) (int, error) {
	if err := l.begin(); err != nil {
		return 0, err
	}
	return l.q.w.Write(p)
}

func (l *lazy) Read(p []byte) (int, error) {
	if err := l.begin(); err != nil {
		return 0, err
	}
	return l.in.Read(p)
}

func notFound(id string) *Error {
	return &Error{Status: 404, Code: CodeNotFound, Message: "no live run " + strconv.Quote(id), Hint: "agentrun ps --all"}
}
