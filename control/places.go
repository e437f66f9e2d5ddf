// SPDX-License-Identifier: Apache-2.0

package control

import "sync"

// Of connections at once, those of all, of those who are neither root nor the supervisor's user, and of one user of these. A member
// of a group that holds as many as it gets must not keep root from the kill. Neither must those who wait for what lasts as long as a run does,
// whoever they are: what is answered at once has the rest to itself.
var (
	connections = bounds{all: 64, others: 48, user: 16}
	waiting     = bounds{all: 48, others: 36, user: 12}
)

const maxRefusals = 16 // that are being told so; more are hung up on

type bounds struct{ all, others, user int }

// places counts connections.
type places struct {
	mu       sync.Mutex
	conns    counter
	waiting  counter // of conns
	refusals int
}

type counter struct {
	all    int
	others int
	users  map[int]int
}

// take gives a place, or nil. The place is given back by calling what it returns, once.
func (p *places) take(uid int, r right) (free func()) { return p.count(&p.conns, connections, uid, r) }

// wait is take for who has a place, and asks for what may last.
func (p *places) wait(uid int, r right) (free func()) { return p.count(&p.waiting, waiting, uid, r) }

func (p *places) count(c *counter, most bounds, uid int, r right) (free func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := r != own
	if c.all >= most.all || other && (c.others >= most.others || c.users[uid] >= most.user) {
		return nil
	}
	c.all++
	if other {
		if c.users == nil {
			c.users = map[int]int{}
		}
		c.others++
		c.users[uid]++
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.all--
		if other {
			c.others--
			if c.users[uid]--; c.users[uid] == 0 {
				delete(c.users, uid)
			}
		}
	}
}

// refuse is take for who is only told no.
func (p *places) refuse() (free func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusals >= maxRefusals {
		return nil
	}
	p.refusals++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refusals--
	}
}
