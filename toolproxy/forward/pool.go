// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/toolproxy/egress"
)

const (
	maxIdle    = 128
	maxIdleKey = 64
	idleAge    = 30 * time.Second
)

type poolKey struct {
	target egress.Target
	secure bool
}

// pool keeps upstream connections of the run for its next requests to the same place. A kept connection gives
// no right: each request is decided anew, and the address is checked against the list of that moment. What
// must not happen is that one outlives a change of ring; drops counts those, and put refuses a connection
// that was allowed before the last one.
type pool struct {
	mu     sync.Mutex
	closed bool
	drops  uint64 // by a change of ring
	count  int
	idle   map[poolKey][]*upstream
	sweep  *time.Timer
}

// get returns the connection used last, if it is still open and silent.
func (p *pool) get(key poolKey) *upstream {
	for {
		u := p.take(key)
		if u == nil || time.Since(u.idleSince) < idleAge && silent(u.raw) {
			return u
		}
		_ = u.raw.Close() // too old, or the server closed it
	}
}

func (p *pool) take(key poolKey) *upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	u := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[key] = list[:len(list)-1]
	p.count--
	u.drops = p.drops
	return u
}

// dropped returns how often the ring had changed. Whoever makes a connection asks before it looks at the
// ring.
func (p *pool) dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drops
}

// put keeps a connection whose flow is done with it, unless the ring that allowed it has gone meanwhile.
func (p *pool) put(u *upstream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || u.drops != p.drops || p.count >= maxIdle || len(p.idle[u.key]) >= maxIdleKey {
		_ = u.raw.Close() // no room for it, or no right to it
		return
	}
	if p.idle == nil {
		p.idle = map[poolKey][]*upstream{}
	}
	u.idleSince = time.Now()
	p.idle[u.key] = append(p.idle[u.key], u)
	p.count++
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleAge, p.expire)
	}
}

func (p *pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep = nil
	for key, list := range p.idle {
		list = slices.DeleteFunc(list, func(u *upstream) bool {
			old := time.Since(u.idleSince) >= idleAge
			if old {
				_ = u.raw.Close() // it may be cut off any time
				p.count--
			}
			return old
		})
		if p.idle[key] = list; len(list) == 0 {
			delete(p.idle, key)
		}
	}
	if p.count > 0 && !p.closed {
		p.sweep = time.AfterFunc(idleAge, p.expire)
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	p.emptyLocked()
}

// drop closes what waits for a next request, and what is put here later but was allowed before: the ring is
// another one now (M-22).
func (p *pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops++
	p.emptyLocked()
}

func (p *pool) emptyLocked() {
	for _, list := range p.idle {
		for _, u := range list {
			_ = u.raw.Close() // nobody uses it
		}
	}
	p.idle, p.count = nil, 0
}

// silent tells whether a connection is open and has nothing to read. A server that speaks without being asked
// has closed it, or would answer the next request with what was meant for another.
func silent(c net.Conn) bool {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return true
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, errno := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errno == unix.EAGAIN
		return true
	})
	return err == nil && quiet
}
