// SPDX-License-Identifier: Apache-2.0

package authzen

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"agentrun/pdp"
)

// cache keeps answers for a short time, those used last. Its keys are digests, so that a request of 64 KiB takes no more room
// than any other, and so that no two requests can be made to share one.
type cache struct {
	allowTTL, denyTTL time.Duration
	most              int
	clock             func() time.Time

	mu    sync.Mutex
	found map[[sha256.Size]byte]*list.Element
	used  *list.List // of *kept, the last used in front
}

type kept struct {
	key      [sha256.Size]byte
	decision pdp.Decision
	since    time.Time
}

func newCache(most int, allowTTL, denyTTL time.Duration, clock func() time.Time) *cache {
	return &cache{allowTTL: allowTTL, denyTTL: denyTTL, most: most, clock: clock, found: map[[sha256.Size]byte]*list.Element{}, used: list.New()}
}

func (c *cache) ttl(d pdp.Decision) time.Duration {
	if d.Allowed() {
		return c.allowTTL
	}
	return c.denyTTL
}

func (c *cache) get(request []byte) (pdp.Decision, bool) {
	if c.allowTTL <= 0 && c.denyTTL <= 0 {
		return pdp.Decision{}, false
	}
	key := sha256.Sum256(request)
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.found[key]
	if !ok {
		return pdp.Decision{}, false
	}
	k := e.Value.(*kept)
	// A clock that was set back makes an answer come from the future: its age isn't known, so it is too old.
	if age := c.clock().Sub(k.since); age < 0 || age >= c.ttl(k.decision) {
		c.dropLocked(e)
		return pdp.Decision{}, false
	}
	c.used.MoveToFront(e)
	return k.decision, true
}

func (c *cache) put(request []byte, d pdp.Decision) {
	key := sha256.Sum256(request)
	c.mu.Lock()
	defer c.mu.Unlock()
	// Whatever is known of the request is older than d, also where d itself isn't kept.
	if e, ok := c.found[key]; ok {
		c.dropLocked(e)
	}
	if c.ttl(d) <= 0 {
		return
	}
	for c.used.Len() >= c.most {
		c.dropLocked(c.used.Back())
	}
	c.found[key] = c.used.PushFront(&kept{key, d, c.clock()})
}

func (c *cache) dropLocked(e *list.Element) {
	delete(c.found, e.Value.(*kept).key)
	c.used.Remove(e)
}
