// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"agentrun/internal/agentuid"
)

// The uid and gid ranges that runs are mapped to on the host.
const (
	rangeBase  = agentuid.First
	rangeSize  = 65536
	rangeCount = 4096

	agentID = 1000 // the agent's uid and gid inside: an ordinary user, never 0
)

// idRange is a block of ids of the supervisor's user namespace, the host's as a rule, that no other live run
// has (M-1).
type idRange struct {
	from   pool
	base   int
	agent  int // who the agent is
	size   int
	inside []idMap
	file   *os.File
}

// idMap is a line of the sandbox's uid_map and gid_map.
type idMap struct{ inside, outside, count int }

func (r *idRange) hostAgent() int { return r.agent }

// userInside is what the sandbox calls a user of the host's; -1: it has no such.
func (r *idRange) userInside(host int) int {
	for _, m := range r.inside {
		if n := host - m.outside; n >= 0 && n < m.count {
			return m.inside + n
		}
	}
	return -1
}

// hostOwner is who owns the run's user namespace: uid 0 inside.
func (r *idRange) hostOwner() int { return r.base }

// hostGateway is the user that the run's gateway becomes: no other run's, and one that nobody inside can be,
// since that takes a capability.
func (r *idRange) hostGateway() int { return r.base + r.size - 1 }

// pool is what ranges are taken from.
type pool struct{ first, size, count int }

// rootPool is the host's.
func rootPool() pool { return pool{rangeBase, rangeSize, rangeCount} }

// Blocks of subordinate ids are small: a user has 65536 of them as a rule, and a run has three: the
// sandbox's uid 0, the agent, and outside of it the gateway.
const subordinateSize = 16

// subordinatePool is that of an ordinary user: ids 1 to n of the namespace that agentrun entered. Of more
// than enough the upper end: other tools of the user's that use the same ids (rootless podman) count from the
// lower.
func subordinatePool(n int) pool {
	p := pool{first: 1, size: subordinateSize, count: min(n/subordinateSize, rangeCount)}
	p.first += n - p.count*p.size
	return p
}

// block is the n-th range.
func (p pool) block(n int, shared bool) *idRange {
	r := &idRange{from: p, base: p.first + n*p.size, size: p.size}
	if p.size > agentID {
		r.agent, r.inside = r.base+agentID, []idMap{{0, r.base, p.size}}
		return r
	}
	r.agent = r.base + 1
	if shared {
		r.agent = 0
	}
	r.inside = []idMap{{0, r.base, 1}, {agentID, r.agent, 1}}
	return r
}

// ErrNoIDs: as many runs are alive as there are id ranges.
var ErrNoIDs = errors.New("all uid ranges are in use by live runs")

// claimIDs takes a free range. The claim is an OFD lock on one byte of a file that all run folders of
// the machine share, so the kernel takes it back however the supervisor ends, and nothing is left to
// clean up. Ranges rotate: the uid of a run that just ended is the last to be given out again, so that
// a process which outlived its supervisor by an instant never shares it.
//
// prefer is the number of the range to try first; below 0: the next.
func claimIDs(dir string, p pool, shared bool, prefer int) (*idRange, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "uid-ranges"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	var last [2]byte
	_, _ = f.ReadAt(last[:], 0) // a fresh file starts at 0; two starts at once may read the same
	start := int(last[0]) | int(last[1])<<8
	if prefer >= 0 {
		start = prefer - 1
	}
	for i := range p.count {
		n := (start + 1 + i) % p.count
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 + n), Len: 1}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			f.Close()
			return nil, os.NewSyscallError("fcntl F_OFD_SETLK", err)
		}
		if _, err := f.WriteAt([]byte{byte(n), byte(n >> 8)}, 0); err != nil {
			f.Close()
			return nil, err
		}
		r := p.block(n, shared)
		r.file = f
		return r, nil
	}
	f.Close()
	return nil, ErrNoIDs
}

func (r *idRange) release() error { return r.file.Close() }
