// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"agentrun/internal/read"
	"agentrun/rings"
)

// inFlight bounds the requests of one gateway that are answered at once. A ring's tools at once are fewer; a gateway that
// was taken over gets no more of the supervisor's memory than this.
const inFlight = 256

// Server is the supervisor's side of a link.
type Server struct {
	Start      Start
	Supervisor Supervisor
	// Announce hears of the commands before anything else is answered. An error ends the link.
	Announce func([]Command) error
	// End, once closed, tells the gateway that the run is over: it puts its last records and closes the link.
	End <-chan struct{}
	// Ends is when the run's time limit ends it, and a channel that is closed when that is another time; zero: never. nil: not known.
	Ends func() (time.Time, <-chan struct{})
	// Well tells, once End is closed, whether the run ended well; nil: it didn't.
	Well func() bool
}

// Serve answers until the gateway is gone or ctx ends, and closes the connection. It returns nil at the gateway's end, and
// ctx's cause at ctx's. Processes it started are dead when it returns.
func (s *Server) Serve(ctx context.Context, c *net.UnixConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	v := &serving{Server: s, c: c, ctx: ctx, calls: map[uint64]context.CancelFunc{}, processes: map[uint64]Process{}}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	err := v.begin()
	if err == nil {
		v.wait.Go(v.followRing)
		v.wait.Go(v.followEnd)
		v.wait.Go(v.followEnds)
		err = v.loop()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	v.killAll()
	v.wait.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type serving struct {
	*Server
	c    *net.UnixConn
	ctx  context.Context
	wait sync.WaitGroup

	mu        sync.Mutex
	said      bool // hello
	calls     map[uint64]context.CancelFunc
	processes map[uint64]Process
}

// begin says who is served, and how.
func (v *serving) begin() error {
	start := v.Start
	text := start.Config.Text
	start.Config.Text, start.Config.Size = nil, len(text)
	err := v.push(opStart, start)
	for piece := range slices.Chunk(text, MaxFrame) {
		if err == nil {
			_, err = v.c.Write(piece)
		}
	}
	return err
}

func (v *serving) loop() error {
	buf := make([]byte, MaxFrame)
	places := make(chan struct{}, inFlight)
	for {
		f, files, err := receive(v.c, buf)
		if err != nil {
			return err
		}
		closeAll(files) // a gateway has none to give
		switch f.Op {
		case opHello:
			if err := v.hello(f); err != nil {
				return err
			}
		case opCancel:
			v.mu.Lock()
			stop := v.calls[f.ID]
			v.mu.Unlock()
			if stop != nil {
				stop()
			}
		default:
			if !v.said {
				return fmt.Errorf("%w: %q before hello", ErrFrame, f.Op)
			}
			select {
			case places <- struct{}{}:
			case <-v.ctx.Done():
				return context.Cause(v.ctx)
			}
			f.Body = append(json.RawMessage(nil), f.Body...)
			ctx, stop := context.WithCancel(v.ctx)
			v.mu.Lock()
			v.calls[f.ID] = stop
			v.mu.Unlock()
			v.wait.Go(func() {
				defer func() { <-places }()
				v.answer(ctx, f)
				v.mu.Lock()
				delete(v.calls, f.ID)
				v.mu.Unlock()
				stop()
			})
		}
	}
}

func (v *serving) hello(f frame) error {
	if v.said {
		return fmt.Errorf("%w: a second hello", ErrFrame)
	}
	var commands []Command
	if err := json.Unmarshal(f.Body, &commands); err != nil {
		return fmt.Errorf("%w: hello: %w", ErrFrame, err)
	}
	v.said = true
	if v.Announce == nil {
		return nil
	}
	return v.Announce(commands)
}

// answer asks the supervisor and sends what it says. The answer of an error has no body: nothing in it can be taken for a grant.
func (v *serving) answer(ctx context.Context, f frame) {
	body, files, err := v.ask(ctx, f)
	if v.ctx.Err() != nil {
		closeAll(files) // the link is over: what came of it now was cut short
		return
	}
	reply := frame{ID: f.ID}
	if err != nil {
		reply.Error = err.Error()
	} else if reply.Body, err = json.Marshal(body); err != nil {
		reply.Error = err.Error()
	}
	if err := send(v.c, reply, files...); err != nil && v.ctx.Err() == nil {
		_ = v.c.Close() // an unanswered question would wait for ever
	}
	closeAll(files)
}

func (v *serving) ask(ctx context.Context, f frame) (any, []*os.File, error) {
	switch f.Op {
	case opCheck:
		return call(ctx, f, v.Supervisor.Check)
	case opReserve:
		return call(ctx, f, v.Supervisor.Reserve)
	case opSettle:
		return call(ctx, f, v.Supervisor.Settle)
	case opClose:
		return call(ctx, f, v.Supervisor.End)
	case opApprove:
		return call(ctx, f, v.Supervisor.Approve)
	case opBudget:
		b, err := v.Supervisor.Budget(ctx)
		return b, nil, err
	case opRecord:
		return call(ctx, f, func(ctx context.Context, r Record) (struct{}, error) { return struct{}{}, v.Supervisor.Record(ctx, r) })
	case opMemory:
		return with(ctx, f, v.Supervisor, errNoMemory, Memory.Memory)
	case opContext:
		return with(ctx, f, v.Supervisor, errNoContext, Contexts.Context)
	case opFile:
		return with(ctx, f, v.Supervisor, errNoFiles, Files.File)
	case opElevate:
		return with(ctx, f, v.Supervisor, errNoControls, Controls.Elevate)
	case opAlarm:
		return with(ctx, f, v.Supervisor, errNoControls, func(c Controls, ctx context.Context, a Alarm) (struct{}, error) {
			return struct{}{}, c.Alarm(ctx, a)
		})
	case opSafety:
		return with(ctx, f, v.Supervisor, errNoSafety, func(s Safeties, ctx context.Context, a safetyAsk) (any, error) {
			return safetyReply(s.Safety(ctx, a.safety()))
		})
	case opIntent:
		return with(ctx, f, v.Supervisor, errNoSafety, func(s Safeties, ctx context.Context, a intentAsk) (safetyAnswer, error) {
			return answerOf(s.Intent(ctx, a.Tool, a.Target)), nil
		})
	case opBlocked:
		s, ok := v.Supervisor.(Safeties)
		if !ok {
			return nil, nil, errNoSafety
		}
		return answerOf(s.Blocked(ctx)), nil, nil
	case opExecute:
		var tool string
		if err := json.Unmarshal(f.Body, &tool); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrFrame, err)
		}
		return v.execute(ctx, f.ID, tool)
	case opKill:
		var id uint64
		if err := json.Unmarshal(f.Body, &id); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrFrame, err)
		}
		v.mu.Lock()
		p := v.processes[id]
		v.mu.Unlock()
		if p == nil {
			return struct{}{}, nil, nil
		}
		return struct{}{}, nil, p.Close()
	}
	return nil, nil, fmt.Errorf("%w: %q", ErrFrame, f.Op)
}

func call[Q, A any](ctx context.Context, f frame, fn func(context.Context, Q) (A, error)) (any, []*os.File, error) {
	var q Q
	if err := json.Unmarshal(f.Body, &q); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	a, err := fn(ctx, q)
	return a, nil, err
}

// with asks what only some supervisors are: one that isn't an I refuses with none.
func with[I any, Q interface{ Check() error }, A any](
	ctx context.Context, f frame, s Supervisor, none error, fn func(I, context.Context, Q) (A, error),
) (any, []*os.File, error) {
	i, ok := s.(I)
	if !ok {
		return nil, nil, none
	}
	q, err := decode[Q](f.Body)
	if err != nil {
		return nil, nil, err
	}
	a, err := fn(i, ctx, q)
	return a, nil, err
}

// decode reads strictly: a field that this build doesn't know could be what a grant hangs on, or what a message hides in (M-14).
func decode[Q interface{ Check() error }](body []byte) (Q, error) {
	var q, none Q
	if err := read.Exactly(body, &q); err != nil {
		return none, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	if err := q.Check(); err != nil {
		return none, err
	}
	return q, nil
}

// exited is what is told of a process's end.
type exited struct {
	ID    uint64 `json:"id"`
	Code  int    `json:"code"`
	Why   string `json:"why,omitempty"`
	Error string `json:"error,omitempty"`
}

// execute starts a command. It lives until it is killed or the link ends, not as long as the request.
func (v *serving) execute(ctx context.Context, id uint64, tool string) (any, []*os.File, error) {
	p, err := v.Supervisor.Execute(v.ctx, tool)
	if err != nil {
		return nil, nil, err
	}
	v.mu.Lock()
	// Cancelled before: the order to kill it may have found nothing. After: it finds it here.
	given := ctx.Err()
	if given == nil {
		v.processes[id] = p
	}
	v.mu.Unlock()
	if given != nil {
		return nil, nil, errors.Join(given, p.Close())
	}
	v.wait.Go(func() {
		e := exited{ID: id}
		var err error
		if e.Code, e.Why, err = p.Wait(v.ctx); err != nil {
			e.Error = err.Error()
		}
		_ = p.Close()
		v.mu.Lock()
		delete(v.processes, id)
		v.mu.Unlock()
		_ = v.push(opExited, e)
	})
	return struct{}{}, []*os.File{p.Stdin(), p.Stdout()}, nil
}

func (v *serving) killAll() {
	v.mu.Lock()
	all := v.processes
	v.processes = map[uint64]Process{}
	v.mu.Unlock()
	for _, p := range all {
		_ = p.Close()
	}
}

func (v *serving) followEnd() {
	select {
	case <-v.End: // nil: never
		_ = v.push(opEnd, v.Well != nil && v.Well())
	case <-v.ctx.Done():
	}
}

func (v *serving) followEnds() {
	for v.Ends != nil {
		ends, changed := v.Ends()
		if v.push(opEnds, ends) != nil {
			return
		}
		select {
		case <-changed:
		case <-v.ctx.Done():
			return
		}
	}
}

// followRing says the ring whenever the supervisor tells of a change, also if it is the same: an agent that is held in ring 3 stays there,
// and its calls that are under way are decided anew (H-31).
func (v *serving) followRing() {
	for known := true; ; known = false {
		ring, changed := v.Supervisor.Ring()
		known = known && ring == v.Start.Ring
		if !known && v.push(opRing, ringBody(ring)) != nil || changed == nil || !ring.Valid() {
			return
		}
		select {
		case <-changed:
		case <-v.ctx.Done():
			return
		}
		// At the run's end the channel stays closed: the ring no longer holds, and no other follows.
		if _, next := v.Supervisor.Ring(); next == changed {
			_ = v.push(opRing, ringBody(rings.NoRing))
			return
		}
	}
}

// ringBody is null for no ring: that has no number.
func ringBody(r rings.Ring) *rings.Ring {
	if !r.Valid() {
		return nil
	}
	return &r
}

func (v *serving) push(o op, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return send(v.c, frame{Op: o, Body: b})
}
