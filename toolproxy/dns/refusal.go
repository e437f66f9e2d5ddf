// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
)

// Reason says why a lookup got no address. The words are stable.
type Reason string

// The reasons. An empty answer about an allowed name is no refusal.
const (
	NameNotAllowed  Reason = "name_not_allowed" // Allow said no
	NameInvalid     Reason = "name_invalid"     // it holds bytes that no host name has
	TableFull       Reason = "table_full"       // allowed, but the run has used up its names
	Malformed       Reason = "malformed"        // not a query, or not one that can be read
	Unsupported     Reason = "unsupported"      // operation, class, type or EDNS version
	ConnectionLimit Reason = "connection_limit" // too many TCP connections at once
	OtherNames      Reason = "other_names"      // any refusal after the first 1024 different ones
)

const (
	maxRefused = 1024 // bounds memory and, as each is told at powers of two, reports
	maxName    = 253  // bytes, also of what is reported
	lastEscape = maxName - len(`\ddd`)
)

// Refusal is what the Observer gets.
type Refusal struct {
	Name   string // at most 253 bytes, printable ASCII, others as \ddd; "" where there is none to tell
	Type   uint16 // of the first such lookup, as in the DNS
	Reason Reason
	Count  uint64 // how many of this name and reason there were, with this one
}

type refusalKey struct {
	name   string
	reason Reason
}

// refusals counts. A flood of the same is told at 1, 2, 4, 8 …; a flood of different ones becomes one
// after maxRefused.
type refusals struct {
	tell func(Refusal)

	mu    sync.Mutex
	known map[refusalKey]uint64
}

func (r *refusals) add(name []byte, qtype uint16, reason Reason) {
	told := r.count(Refusal{Name: printable(name), Type: qtype, Reason: reason})
	if r.tell != nil && bits.OnesCount64(told.Count) == 1 {
		r.tell(told) // not under the lock: whatever it does, it may do
	}
}

func (r *refusals) count(one Refusal) Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[refusalKey]uint64{}
	}
	key := refusalKey{one.Name, one.Reason}
	if _, known := r.known[key]; !known && len(r.known) >= maxRefused {
		one = Refusal{Reason: OtherNames}
		key = refusalKey{reason: OtherNames}
	}
	r.known[key]++
	one.Count = r.known[key]
	return one
}

// printable makes a name that may hold anything fit for a log (RFC 1035, 5.1).
func printable(name []byte) string {
	var b strings.Builder
	for _, c := range name {
		plain := c > ' ' && c <= '~' && c != '\\'
		if b.Len() >= maxName || !plain && b.Len() > lastEscape {
			break // an escape is not cut in two
		}
		if plain {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\%03d`, c)
		}
	}
	return b.String()
}
