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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// ErrGone is a question to a supervisor that is no longer there: a denial, and the end of the run.
var ErrGone = errors.New("the supervisor is gone")

// Client is a gateway's side of a link. Safe for concurrent use.
type Client struct {
	c     *net.UnixConn
	start Start
	gone  chan struct{}
	ended chan struct{}
	well  bool // how, once ended is closed

	mu        sync.Mutex
	err       error // why it is gone
	last      uint64
	waiting   map[uint64]func(answer) // called once, by the goroutine that listens
	processes map[uint64]*process
	ring      rings.Ring
	ends      time.Time
	changed   chan struct{}
}

type answer struct {
	frame
	files []*os.File
}

// Connect takes over the inherited descriptor f and waits for what the supervisor says first. Hello must follow.
func Connect(f *os.File) (*Client, error) {
	c, err := connOf(f)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, MaxFrame)
	first, files, err := receive(c, buf)
	closeAll(files)
	l := &Client{c: c, gone: make(chan struct{}), ended: make(chan struct{}), waiting: map[uint64]func(answer){}, processes: map[uint64]*process{}, changed: make(chan struct{})}
	if err == nil && first.Op != opStart {
		err = fmt.Errorf("%w: %q for start", ErrFrame, first.Op)
	}
	if err == nil {
		err = json.Unmarshal(first.Body, &l.start)
	}
	if err == nil {
		err = l.start.Config.follow(c, buf)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("link: first message: %w", err)
	}
	l.ring, l.ends = l.start.Ring, l.start.Ends
	return l, nil
}

// follow reads what Size announces.
func (f *Config) follow(c io.Reader, buf []byte) error {
	for len(f.Text) < f.Size {
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("configuration: %d of %d bytes: %w", len(f.Text), f.Size, err)
		}
		f.Text = append(f.Text, buf[:n]...)
	}
	if len(f.Text) != f.Size {
		return fmt.Errorf("%w: configuration of %d bytes, not %d", ErrFrame, len(f.Text), f.Size)
	}
	f.Size = 0
	return nil
}

// Start is what the supervisor said first.
func (l *Client) Start() Start { return l.start }

// Gone is closed when the supervisor is gone: the run is over, and nothing may be granted any more.
func (l *Client) Gone() <-chan struct{} { return l.gone }

// Ended is closed when the run is over while the supervisor is still there for the last records.
func (l *Client) Ended() <-chan struct{} { return l.ended }

// EndedWell tells, once Ended is closed, whether the run ended well.
func (l *Client) EndedWell() bool { return l.well }

// Close ends the link.
func (l *Client) Close() error { return l.c.Close() }

// Hello names the commands of this run's tools. It must come before anything of the agent's is read, and starts the link.
func (l *Client) Hello(commands []Command) error {
	if commands == nil {
		commands = []Command{}
	}
	b, err := json.Marshal(commands)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if err := send(l.c, frame{Op: opHello, Body: b}); err != nil {
		return fmt.Errorf("link: hello: %w", err)
	}
	go l.listen()
	return nil
}

func (l *Client) listen() {
	buf := make([]byte, MaxFrame)
	over := false
	for {
		f, files, err := receive(l.c, buf)
		if err != nil {
			l.end(err)
			return
		}
		f.Body = append(json.RawMessage(nil), f.Body...)
		switch f.Op {
		case "":
			l.deliver(answer{f, files})
		case opRing:
			closeAll(files)
			var ring *rings.Ring
			if json.Unmarshal(f.Body, &ring) != nil || ring == nil {
				l.setRing(rings.NoRing)
			} else {
				l.setRing(*ring)
			}
		case opEnds:
			closeAll(files)
			var ends time.Time
			if json.Unmarshal(f.Body, &ends) == nil {
				l.mu.Lock()
				l.ends = ends
				l.mu.Unlock()
			}
		case opEnd:
			closeAll(files)
			if !over {
				over = true
				_ = json.Unmarshal(f.Body, &l.well)
				close(l.ended)
			}
		case opExited:
			closeAll(files)
			var e exited
			if json.Unmarshal(f.Body, &e) == nil {
				l.exited(e)
			}
		default:
			closeAll(files)
			l.end(fmt.Errorf("%w: %q", ErrFrame, f.Op))
			return
		}
	}
}

// end answers everybody who still waits.
func (l *Client) end(err error) {
	_ = l.c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = fmt.Errorf("%w: %w", ErrGone, err)
	close(l.gone)
	l.ring = rings.NoRing
	close(l.changed)
	for id, p := range l.processes {
		p.finish(exited{ID: id, Error: l.err.Error()})
	}
}

func (l *Client) deliver(a answer) {
	l.mu.Lock()
	to := l.waiting[a.ID]
	delete(l.waiting, a.ID)
	l.mu.Unlock()
	if to == nil {
		closeAll(a.files)
		return
	}
	to(a)
}

// setRing tells whoever waits, whether or not the ring is another: more than that may have changed.
func (l *Client) setRing(r rings.Ring) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.ring = r
	close(l.changed)
	l.changed = make(chan struct{})
}

// Ring implements Supervisor.
func (l *Client) Ring() (rings.Ring, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring, l.changed
}

// Ends is when the run's time is over, as far as is known; zero: never, or not known.
func (l *Client) Ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends
}

// ask sends a question and waits for its answer. One that comes after ctx's end goes to late: it may hold something.
func (l *Client) ask(ctx context.Context, o op, q any, late func(answer)) (answer, uint64, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return answer{}, 0, fmt.Errorf("link: %s: %w", o, err)
	}
	reply := make(chan answer, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return answer{}, 0, l.err
	}
	l.last++
	id := l.last
	l.waiting[id] = func(a answer) { reply <- a }
	l.mu.Unlock()
	if err := send(l.c, frame{ID: id, Op: o, Body: b}); err != nil {
		l.mu.Lock()
		delete(l.waiting, id)
		l.mu.Unlock()
		return answer{}, 0, fmt.Errorf("link: %s: %w", o, err)
	}
	select {
	case a := <-reply:
		if a.Error != "" {
			closeAll(a.files)
			return answer{}, id, fmt.Errorf("supervisor: %s: %s", o, a.Error)
		}
		return a, id, nil
	case <-l.gone:
		return answer{}, id, l.reason()
	case <-ctx.Done():
		dropped := func(a answer) {
			closeAll(a.files)
			if a.Error == "" && late != nil {
				late(a)
			}
		}
		l.mu.Lock()
		_, open := l.waiting[id]
		if open {
			l.waiting[id] = dropped
		}
		l.mu.Unlock()
		if open {
			_ = send(l.c, frame{ID: id, Op: opCancel})
		} else {
			dropped(<-reply) // it came in this instant
		}
		return answer{}, id, context.Cause(ctx)
	}
}

func (l *Client) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// asked decodes the answer; what can't be read is the zero value, a denial, and an error.
func asked[A any](ctx context.Context, l *Client, o op, q any, late func(answer)) (A, error) {
	var a, none A
	r, _, err := l.ask(ctx, o, q, late)
	if err != nil {
		return none, err
	}
	if err := json.Unmarshal(r.Body, &a); err != nil {
		return none, fmt.Errorf("%w: answer to %s: %w", ErrFrame, o, err)
	}
	return a, nil
}

// Check implements Supervisor.
func (l *Client) Check(ctx context.Context, c Check) (Verdict, error) {
	return asked[Verdict](ctx, l, opCheck, c, func(a answer) {
		var v Verdict
		if json.Unmarshal(a.Body, &v) == nil {
			l.giveBack(End{Place: v.Place})
		}
	})
}

// giveBack is for what came too late: nobody else knows of it. It doesn't wait, for whoever listens calls it.
func (l *Client) giveBack(e End) {
	if e.Place != 0 || e.Reservation != 0 {
		go func() { _, _ = l.End(context.Background(), e) }()
	}
}

// Reserve implements Supervisor.
func (l *Client) Reserve(ctx context.Context, s Spend) (Reservation, error) {
	return asked[Reservation](ctx, l, opReserve, s, func(a answer) {
		var r Reservation
		if json.Unmarshal(a.Body, &r) == nil && r.Allowed {
			l.giveBack(End{Reservation: r.ID})
		}
	})
}

// Settle implements Supervisor.
func (l *Client) Settle(ctx context.Context, s Settle) (Reservation, error) {
	return asked[Reservation](ctx, l, opSettle, s, nil)
}

// End implements Supervisor. A record that fits no message is cut to what is counted: the call is over all the same.
func (l *Client) End(ctx context.Context, e End) (Reservation, error) {
	a, err := asked[Reservation](ctx, l, opClose, e, nil)
	if r := e.Record; r != nil && errors.Is(err, unix.EMSGSIZE) {
		e.Record = &Record{Kind: r.Kind, Name: r.Name[:min(len(r.Name), maxCutName)], Allowed: r.Allowed, Code: r.Code, Cost: r.Cost, Tokens: r.Tokens, Prompt: r.Prompt, Took: r.Took, Count: r.Count, Weight: r.Weight}
		return asked[Reservation](ctx, l, opClose, e, nil)
	}
	return a, err
}

// maxCutName is of a name in a record that was cut.
const maxCutName = 256

// Budget implements Supervisor.
func (l *Client) Budget(ctx context.Context) (Budget, error) {
	return asked[Budget](ctx, l, opBudget, nil, nil)
}

// Record implements Supervisor.
func (l *Client) Record(ctx context.Context, r Record) error {
	_, err := asked[struct{}](ctx, l, opRecord, r, nil)
	return err
}

// Approve implements Supervisor.
func (l *Client) Approve(ctx context.Context, a Approval) (Approved, error) {
	return asked[Approved](ctx, l, opApprove, a, nil)
}

// Execute implements Supervisor.
func (l *Client) Execute(ctx context.Context, tool string) (Process, error) {
	a, id, err := l.ask(ctx, opExecute, tool, nil)
	if err != nil && id != 0 {
		// Started or not: the supervisor knows it by the question's number.
		go func() {
			_, _, _ = l.ask(context.Background(), opKill, id, nil)
			l.mu.Lock()
			delete(l.processes, id)
			l.mu.Unlock()
		}()
	}
	if err != nil {
		return nil, err
	}
	if len(a.files) != 2 {
		closeAll(a.files)
		return nil, fmt.Errorf("%w: %d descriptors for a process", ErrFrame, len(a.files))
	}
	p := &process{l: l, id: id, stdin: a.files[0], stdout: a.files[1], done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if early, ok := l.processes[id]; ok { // its end came first
		p.finish(early.end)
	} else if l.err != nil {
		p.finish(exited{ID: id, Error: l.err.Error()})
	} else {
		l.processes[id] = p
	}
	return p, nil
}

func (l *Client) exited(e exited) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[e.ID]
	if p == nil {
		// Before Execute has returned: kept for it.
		p = &process{done: make(chan struct{})}
		l.processes[e.ID] = p
	}
	p.finish(e)
	if p.l != nil {
		delete(l.processes, e.ID)
	}
}

type process struct {
	l             *Client
	id            uint64
	stdin, stdout *os.File
	once          sync.Once
	done          chan struct{}
	end           exited
}

func (p *process) finish(e exited) {
	p.once.Do(func() {
		p.end = e
		close(p.done)
	})
}

func (p *process) Stdin() *os.File  { return p.stdin }
func (p *process) Stdout() *os.File { return p.stdout }

func (p *process) Wait(ctx context.Context) (int, string, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return 0, "", context.Cause(ctx)
	}
	if p.end.Error != "" {
		return 0, "", fmt.Errorf("supervisor: %s", p.end.Error)
	}
	return p.end.Code, p.end.Why, nil
}

// Close kills it and waits until nothing is left, or the supervisor is gone, which kills it too.
func (p *process) Close() error {
	err := errors.Join(closed(p.stdin), closed(p.stdout))
	select {
	case <-p.done:
		return err
	default:
	}
	if _, _, kerr := p.l.ask(context.Background(), opKill, p.id, nil); kerr != nil && !errors.Is(kerr, ErrGone) {
		err = errors.Join(err, kerr)
	}
	select {
	case <-p.done:
	case <-p.l.gone:
	}
	return err
}

// closed closes f, once or again: who uses a process may close its stdin to say that it is all.
func closed(f *os.File) error {
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
