// SPDX-License-Identifier: Apache-2.0

package forward

import "sync/atomic"

// meter counts the bytes of one connection, and takes them from what it and the run have left. They are taken
// before they are sent, and given back where they weren't, so that many connections at once can't exceed the
// run's limit together.
type meter struct {
	run            *atomic.Int64
	left           atomic.Int64
	sent, received atomic.Int64
}

func (m *meter) empty() bool { return m.left.Load() <= 0 || m.run.Load() <= 0 }

// reserve takes up to n bytes and says how many; what isn't used is given back with refund.
func (m *meter) reserve(n int64) int64 {
	got := takeUpTo(&m.left, n)
	all := takeUpTo(m.run, got)
	m.left.Add(got - all)
	return all
}

func (m *meter) refund(n int64) {
	m.left.Add(n)
	m.run.Add(n)
}

// use takes exactly n bytes, or none.
func (m *meter) use(n int64) bool {
	got := m.reserve(n)
	if got < n {
		m.refund(got)
		return false
	}
	return true
}

func takeUpTo(from *atomic.Int64, n int64) int64 {
	for {
		have := from.Load()
		take := min(have, n)
		if take <= 0 {
			return 0
		}
		if from.CompareAndSwap(have, have-take) {
			return take
		}
	}
}

// share takes a part of what is left, up to n bytes: one direction that waits for bytes must not hold all
// that the other one may still use. The last sixteenth of a mebibyte goes to whoever comes first.
func (m *meter) share(n int64) int64 {
	quarter := min(m.left.Load(), m.run.Load()) / 4
	return m.reserve(min(n, max(quarter, 64<<10)))
}
