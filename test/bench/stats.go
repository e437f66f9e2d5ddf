// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// samples are figures by contender, one for each round.
type samples map[string][]float64

func (s samples) add(name string, v float64) { s[name] = append(s[name], v) }

// drop forgets the first n rounds.
func (s samples) drop(n int) {
	for name := range s {
		s[name] = s[name][n:]
	}
}

// reference is what others are set against: as a ratio, or as what is added to it.
type reference struct {
	name  string
	label string // short, for the table
	added bool
}

// Comparison is the median over the rounds of what a row has against a reference in the same round.
type Comparison struct {
	To    string  `json:"to"`
	Kind  string  `json:"kind"` // "ratio" or "added"
	Value float64 `json:"value"`
}

func (c Comparison) text(unit string) string {
	if c.Kind == "added" {
		return fmt.Sprintf("%s %+.*f %s", c.To, decimals(c.Value), c.Value, unit)
	}
	return fmt.Sprintf("%s %.2f×", c.To, c.Value)
}

// row sums up one contender. Comparing round by round cancels what slowed the whole machine for a while.
func (s samples) row(name, unit string, refs []reference) Row {
	own := s[name]
	r := Row{
		Name: name, Unit: unit, N: len(own), Samples: own,
		Median: quantile(own, 0.5), P10: quantile(own, 0.1), P90: quantile(own, 0.9), Min: slices.Min(own),
	}
	for _, ref := range refs {
		base := s[ref.name]
		if ref.name == name || len(base) != len(own) {
			continue
		}
		pairs := make([]float64, len(own))
		for i := range own {
			if ref.added {
				pairs[i] = own[i] - base[i]
			} else {
				pairs[i] = own[i] / base[i]
			}
		}
		kind := "ratio"
		if ref.added {
			kind = "added"
		}
		r.Against = append(r.Against, Comparison{To: ref.label, Kind: kind, Value: quantile(pairs, 0.5)})
	}
	return r
}

// quantile interpolates between the two nearest values; of nothing it is 0.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return quantileSorted(slices.Sorted(slices.Values(values)), q)
}

func quantileSorted(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	at := q * float64(len(v)-1)
	low := int(at)
	if low == len(v)-1 {
		return v[low]
	}
	return v[low] + (at-float64(low))*(v[low+1]-v[low])
}

// decimals gives three digits that count.
func decimals(v float64) int {
	switch v = max(v, -v); {
	case v >= 100:
		return 0
	case v >= 10:
		return 1
	default:
		return 2
	}
}
