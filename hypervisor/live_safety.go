// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"agentrun/rings"
)

// Stop shuts every way out of the run: its tool proxy is in ring 3 and refuses each call, until Resume. Its processes keep their ring.
// They are frozen by whoever calls this and can do nothing with it; a demotion would kill some of them, and a stop is to be taken
// back whole where the judge was wrong.
func (c *Control) Stop() { c.live.shut(true) }

// Resume takes back what Stop did, and nothing else.
func (c *Control) Resume() { c.live.shut(false) }

// KillSoon is Kill for who can't wait for it: because the kill may wait for them.
func (c *Control) KillSoon(r KillRequest) { c.killSoon(r) }

// shut tells those who wait for a change, whether or not the ring is another.
func (l *live) shut(on bool) {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	if l.over || l.stopped == on {
		return
	}
	l.stopped = on
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *live) isStopped() bool {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	return l.stopped || l.parent != nil && l.parent.isStopped()
}

// brokerRing is the ring that the tool proxy goes by.
func (l *live) brokerRing() (rings.Ring, <-chan struct{}) {
	ring, changed := l.ring()
	if l.isStopped() {
		// Stopped or resumed since the line before: then changed is closed, and who waits for it asks again.
		return rings.Sandbox, changed
	}
	return ring, changed
}
