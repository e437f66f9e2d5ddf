// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor/ports"
)

const (
	mostPorts = 16  // of a run
	mostOpen  = 256 // connections to them, together
)

// published are the ports of a run that can be reached from the host. Connections are decided one by one, by what holds then; those that are
// open are cut when less is allowed than before: at a demotion, a quarantine, the end of its key, a stop, and the end. Frozen, they stand still with their run.
type published struct {
	changing sync.Mutex // held by who publishes or removes, the audit's disk included

	mu    sync.Mutex // never held over anything that takes time
	doors map[uint16]*ports.Door
	slots chan struct{}
	over  bool

	ending sync.Once // begins to wait for the run's end
}

// cut ends what is open. It doesn't block.
func (p *published) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.doors {
		d.Cut()
	}
}

// stop ends everything, for good. It doesn't block.
func (p *published) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, d := range p.doors {
		d.Stop()
	}
}

// close is stop that returns when all is on record.
func (p *published) close() {
	p.stop()
	p.mu.Lock()
	doors := slices.Collect(maps.Values(p.doors))
	p.mu.Unlock()
	for _, d := range doors {
		d.Close()
	}
}

// find gives the door of a port, if there is one that is open.
func (p *published) find(port uint16) *ports.Door {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.doors[port]
	if d != nil && d.Shut() { // it couldn't record
		delete(p.doors, port)
		return nil
	}
	return d
}

func (p *published) list() []*ports.Door {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.SortedFunc(maps.Values(p.doors), func(a, b *ports.Door) int { return cmp.Compare(a.Port(), b.Port()) })
	return slices.DeleteFunc(all, (*ports.Door).Shut)
}

// open is how many connections there are.
func (p *published) open() (n int) {
	for _, d := range p.list() {
		n += d.Open()
	}
	return n
}

// add takes a door that is on record, unless the run has ended meanwhile.
func (p *published) add(d *ports.Door) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	if p.doors == nil {
		p.doors = map[uint16]*ports.Door{}
	}
	p.doors[d.Port()] = d
	return true
}

// passes decides about a connection to the run.
func (v *Run) passes(ctx context.Context) ports.Code {
	run, err := v.process()
	if err != nil {
		return ports.Unknown
	}
	v.mu.Lock()
	paused := v.frozenBy == byPause // it goes on for who has shown the secret: see dial
	v.mu.Unlock()
	err = run.Stands()
	switch {
	case errors.Is(err, runtime.ErrFrozen) && paused:
	case errors.Is(err, runtime.ErrFrozen):
		return ports.Frozen
	case err != nil:
		return ports.Ended
	}
	if v.stopped.Load() {
		return ports.Stopped
	}
	switch a, err := v.Control.Agent(ctx); {
	case err != nil:
		return ports.Unknown
	case a.Quarantined != nil:
		return ports.Quarantined
	case v.Control.KeyOver():
		return ports.KeyInvalid
	}
	return ports.OK
}

// dial has a run go on that is only paused. The connection counts as use from then on (published.open).
func (v *Run) dial(ctx context.Context, run *runtime.Live, port uint16) (*net.TCPConn, error) {
	awake, err := v.wake(ctx, itself, forPort)
	if err != nil {
		return nil, err
	}
	defer awake()
	return run.Dial(ctx, port)
}

// Publish implements control.Controller. The order is on record before anybody is let in.
func (s *Runs) Publish(ctx context.Context, id string, r control.PortRequest, by string) (control.Published, error) {
	v, err := s.find(id)
	if err != nil {
		return control.Published{}, err
	}
	run, err := v.process()
	if err != nil {
		return control.Published{}, err
	}
	at, err := r.Addr()
	if err != nil {
		return control.Published{}, err
	}
	v.ports.changing.Lock()
	defer v.ports.changing.Unlock()
	if err := endedError(run.Stands()); err != nil && !errors.Is(err, runtime.ErrFrozen) {
		return control.Published{}, err
	}
	port := uint16(r.Port) //nolint:gosec // it was checked
	d := v.ports.find(port)
	if d != nil {
		return v.link(d, r, at, by)
	}
	switch {
	case r.Link:
		return control.Published{}, noPort(r.Port)
	case run.OwnPort(port):
		return control.Published{}, portConflict(fmt.Sprintf("port %d is agentrun's own in a sandbox: who reaches it speaks for the agent", port), "publish what the agent serves")
	case len(v.ports.list()) >= mostPorts:
		return control.Published{}, portConflict(fmt.Sprintf("%d ports of the run are published", mostPorts), "agentrun port rm REF PORT makes room")
	}
	if code := v.passes(ctx); code != ports.OK && code != ports.Frozen {
		return control.Published{}, portConflict("nobody may reach the run: "+string(code), "agentrun inspect REF says what holds")
	}
	d, err = ports.Listen(ports.Options{
		At: at, Port: port, Raw: r.Raw, Own: r.To == "", Slots: v.ports.room(), Allow: v.passes,
		Dial:   func(ctx context.Context) (*net.TCPConn, error) { return v.dial(ctx, run, port) },
		Record: func(p ports.Passage) error { return v.ingress(port, p) },
	})
	if err != nil {
		return control.Published{}, portConflict(err.Error(), "--to names another address; without it a free port is taken")
	}
	err = v.Control.RecordPort(orderOf(d, "published", by))
	if err == nil && !v.ports.add(d) {
		err = endedError(runtime.ErrEnded)
	}
	if err != nil {
		d.Close()
		return control.Published{}, err
	}
	v.ports.ending.Do(func() {
		go func() {
			<-run.Over()
			v.ports.close() // its last seconds, of taking down and of hooks, are no time to connect
		}()
	})
	go d.Serve()
	return opened(d), nil
}

// link is Publish of what is published.
func (v *Run) link(d *ports.Door, r control.PortRequest, at netip.AddrPort, by string) (control.Published, error) {
	elsewhere := at.Addr() != d.Addr().Addr() || at.Port() != 0 && at.Port() != d.Addr().Port()
	if !r.Link && (r.Raw != d.Raw() || r.To != "" && elsewhere) {
		return control.Published{}, portConflict(fmt.Sprintf("port %d is published otherwise, on %s", r.Port, d.Addr()), "agentrun port rm REF PORT, and then again")
	}
	if d.Raw() {
		if r.Link {
			return control.Published{}, portConflict(fmt.Sprintf("port %d is published without a token", r.Port), "connect to "+d.Addr().String())
		}
		return opened(d), nil
	}
	if err := v.Control.RecordPort(orderOf(d, "linked", by)); err != nil {
		return control.Published{}, err
	}
	return opened(d), nil
}

func (v *Run) ingress(port uint16, p ports.Passage) error {
	err := v.Control.RecordIngress(hypervisor.Ingress{
		Code: string(p.Code), Port: port, Peer: p.Peer.String(), Received: p.In, Sent: p.Out, Took: p.Took,
	})
	if err != nil {
		v.all.warn(fmt.Errorf("port %d of run %s is closed: %w", port, v.Plan.ID, err))
	}
	return err
}

// room holds the connections of all ports.
func (p *published) room() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots == nil {
		p.slots = make(chan struct{}, mostOpen)
	}
	return p.slots
}

func orderOf(d *ports.Door, event, by string) hypervisor.PortOrder {
	return hypervisor.PortOrder{By: by, Event: event, Port: d.Port(), Address: d.Addr().String(), Raw: d.Raw()}
}

func portOf(d *ports.Door) control.PortInfo {
	return control.PortInfo{Port: int(d.Port()), Address: d.Addr().String(), Raw: d.Raw(), Open: d.Open()}
}

func opened(d *ports.Door) control.Published {
	p := control.Published{PortInfo: portOf(d)}
	if !d.Raw() {
		p.URL, p.Token = d.Link(), d.Token()
	}
	return p
}

// Ports implements control.Controller.
func (s *Runs) Ports(_ context.Context, id string) ([]control.PortInfo, error) {
	v, err := s.find(id)
	if err != nil {
		return nil, err
	}
	list := []control.PortInfo{}
	for _, d := range v.ports.list() {
		list = append(list, portOf(d))
	}
	return list, nil
}

// Unpublish implements control.Controller. What is taken away is taken away first: a record that can't be made must not keep it open.
func (s *Runs) Unpublish(_ context.Context, id string, port int, by string) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	v.ports.changing.Lock()
	defer v.ports.changing.Unlock()
	d := v.ports.find(uint16(port)) //nolint:gosec // it was checked
	if d == nil {
		return noPort(port)
	}
	d.Close()
	v.ports.mu.Lock()
	delete(v.ports.doors, d.Port())
	v.ports.mu.Unlock()
	return v.Control.RecordPort(orderOf(d, "removed", by))
}

func noPort(port int) error {
	return &control.Error{
		Status: 404, Code: control.CodeNotFound, Message: fmt.Sprintf("port %d of the run is not published", port), Hint: "agentrun port ls REF lists those that are",
	}
}

func portConflict(text, hint string) error {
	return &control.Error{Status: 409, Code: control.CodeConflict, Message: text, Hint: hint}
}
