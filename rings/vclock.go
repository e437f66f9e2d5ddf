// SPDX-License-Identifier: Apache-2.0

package rings

import "maps"

// VectorClock counts, for each agent, the writes of it that are known (H-32). Nil knows of none.
type VectorClock map[string]uint64

// Covers tells whether everything that other knows is known to c too.
func (c VectorClock) Covers(other VectorClock) bool {
	for agent, n := range other {
		if c[agent] < n {
			return false
		}
	}
	return true
}

// join returns the least clock that covers both.
func (c VectorClock) join(other VectorClock) VectorClock {
	j := maps.Clone(c)
	if j == nil {
		j = VectorClock{}
	}
	for agent, n := range other {
		if n > j[agent] { // an entry of 0 says nothing and isn't kept
			j[agent] = n
		}
	}
	return j
}
