// SPDX-License-Identifier: Apache-2.0

package control

import "sync"

// Connections at once: of all, of those who are neither root nor the supervisor's user, and of one user of these. A member
// of a group that holds as many as it gets must not keep root from the kill.
const (
	maxConns    = 64
	maxOthers   = 48
	maxPerUser  = 16
	maxRefusals = 16 // that are being told so; more are hung up on
)

// places counts connections.
type places struct {
	mu       sync.Mutex
	all      int
	others   int
	users    map[int]int
	refusals int
}

// take gives a place, or nil. The place is given back by calling what it returns, once.
func (p *places) take(uid int, r right) (free func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := r != own
	if p.all >= maxConns || other && (p.others >= maxOthers || p.users[uid] >= maxPerUser) {
		return nil
	}
	p.all++
	if other {
		if p.users == nil {
			p.users = map[int]int{}
		}
		p.others++
		p.users[uid]++
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if other {
			p.others--
			if p.users[uid]--; p.users[uid] == 0 {
				delete(p.users, uid)
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
