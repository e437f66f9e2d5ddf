// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"sync"
	"time"

	"agentrun/hypervisor"
	"agentrun/runtime"
)

// Ahead is what every plan looks at on the host, whatever was asked for. Whoever outlives runs has it looked at by another thread from the
// moment that a caller comes: begun one by one when they are asked for, each look would wake a thread, and be asked for before that runs.
type Ahead struct {
	began   time.Time
	own     *hypervisor.OwnAhead
	host    *runtime.HostAhead
	gateway func() (string, error)
}

// aheadTime is how old a look may be that a decision is made by: a plan takes less than a millisecond, and is no promise of what is there
// when it is carried out either: what the host's root mounts in that time below what is shown, or moves there, is not seen. What a caller who comes and then says nothing has had looked at is looked at again.
const aheadTime = 5 * time.Millisecond

// LookAhead prepares the looks. Each is made by Look, or by who asks first if that hasn't come to it.
func (n *Node) LookAhead() *Ahead {
	return &Ahead{began: time.Now(), own: n.options().LookAhead(), host: runtime.LookAhead(), gateway: sync.OnceValues(n.Gateway.Find)}
}

// Look makes those that nobody has asked for yet, in the order in which a run will.
func (a *Ahead) Look() {
	a.host.Look()
	a.own.Look()
	_, _ = a.gateway()
	// Whoever sets a timer has to wake the thread that waits for events, if that would sleep longer. The launch sets several, and this thread
	// is most likely to be the one that waits.
	time.AfterFunc(aheadTime, func() {})
}

// now are the looks that still count; none are a zero value, by which everything is looked at when it is asked for.
func (a *Ahead) now() Ahead {
	if a == nil || time.Since(a.began) > aheadTime {
		return Ahead{}
	}
	return *a
}
