// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
)

// IDs are the user and group ids of the user namespace that this process is in.
type IDs struct {
	Own int // the host's number for uid 0 here
	Sub int // ids 1 to Sub stand for others of the host, as uid and as gid
}

// MinIDs is what a run needs beside the user's own id, with room to let ids rest between runs.
const MinIDs = 256

var inside = sync.OnceValues(func() (*IDs, error) { return read("/proc/self") })

// Inside gives the ids of this process's user namespace; nil if it is the host's own, or one that looks like it to us: all ids mapped.
// The answer is kept: maps are written once (user_namespaces(7)). Before Arrived it must not be asked.
func Inside() (*IDs, error) { return inside() }

// Is tells whether agentrun is rootless; an answer that can't be had counts as yes: it gives less.
func Is() bool {
	ids, err := inside()
	return ids != nil || err != nil
}

func read(proc string) (*IDs, error) {
	u, err := readMap(proc + "/uid_map")
	if err != nil {
		return nil, err
	}
	g, err := readMap(proc + "/gid_map")
	if err != nil {
		return nil, err
	}
	return idsOf(u, g)
}

// extent is a line of a map.
type extent struct{ inside, outside, count uint32 }

func readMap(name string) ([]extent, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	m, err := parseMap(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func parseMap(text string) ([]extent, error) {
	var m []extent
	for line := range strings.Lines(text) {
		var n [3]uint32
		f := strings.Fields(line)
		if len(f) != len(n) {
			return nil, fmt.Errorf("%.80q is no line of three ids", line)
		}
		for i, s := range f {
			v, err := strconv.ParseUint(s, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%.80q: %w", line, err)
			}
			n[i] = uint32(v)
		}
		m = append(m, extent{n[0], n[1], n[2]})
	}
	return m, nil
}

var errNoMap = errors.New("the user namespace has no ids yet")

func idsOf(u, g []extent) (*IDs, error) {
	if len(u) == 0 || len(g) == 0 {
		return nil, errNoMap
	}
	whole := extent{0, 0, math.MaxUint32}
	if u[0] == whole && g[0] == whole {
		return nil, nil
	}
	ids := &IDs{Own: -1, Sub: min(run(u), run(g))}
	for _, e := range u {
		if e.inside == 0 {
			ids.Own = int(e.outside)
		}
	}
	if ids.Own < 0 {
		return nil, errors.New("the user namespace has no uid 0")
	}
	return ids, nil
}

// run counts the ids from 1 on that are mapped without a gap.
func run(m []extent) int {
	next := uint64(1)
	for again := true; again; {
		again = false
		for _, e := range m {
			if end := uint64(e.inside) + uint64(e.count); uint64(e.inside) <= next && next < end {
				next, again = end, true
			}
		}
	}
	return int(next - 1) //nolint:gosec // at most 2^33
}
