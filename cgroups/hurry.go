// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hurried is how many times its usual weight a group has while its processes run to where they stop. On a busy host the last of seven
// threads waited up to half a second for a turn of some microseconds: a group's weight is divided among its processors by load, at every
// level, and little of it is left where only one thread still runs. Figures, and what others notice, in docs/cgroups.md.
const hurried = 16

// hurry gives the group, and each of ours above it, that weight until settle is called. Without it everything only takes its time, so
// what stands in the way is no error; a weight that somebody else has set is left alone.
func (g *Group) hurry() (settle func()) {
	g.stopYielding()
	var raised []*share
	for dir, n := g.dir("cpu"), strings.Count(g.name, "/"); dir != "" && n >= 0; dir, n = filepath.Dir(dir), n-1 {
		if s := g.share(dir); s != nil && s.raise() {
			raised = append(raised, s)
		}
	}
	return func() {
		for _, s := range raised {
			s.settle()
		}
	}
}

// share is the weight of one group. It may be held up by several processes: each has a shared lock on the folder, and the last of them
// takes the weight back. The lock of one that dies goes with it; the next, or Sweep, does the rest.
type share struct {
	dir                    *os.File
	path                   string
	kernels, usual, raised string // weights: a new group's, this one's, and in a hurry
}

// share is nil for a group that is not there. The folder of all groups weighs less than what else the host runs.
func (g *Group) share(dir string) *share {
	name, weight := "cpu.shares", 1024
	if g.mode == V2 {
		name, weight = "cpu.weight", 100
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	usual := weight
	if dir == g.folder() {
		usual /= behindHost
	}
	return &share{f, filepath.Join(dir, name), strconv.Itoa(weight), strconv.Itoa(usual), strconv.Itoa(hurried * usual)}
}

// behindHost is by how much all groups together weigh less than one group, or one process, of the host's. It isn't about fairness alone:
// from Linux 6.13 on (seen on 6.18) a group whose threads sleep and wake up on several processors can be given all of the time, for
// seconds, since each change of its parts' load gives it time that it had already had. Ten runs that only sent datagrams kept everything
// else on the host waiting for up to seven seconds. With a sixteenth of the weight there is little to give. Figures in docs/cgroups.md.
const behindHost = 16

// stepBack gives the folder of all groups its weight, as long as it has the kernel's: an operator's own is left alone.
func (g *Group) stepBack() {
	if g.dir("cpu") == "" {
		return
	}
	if s := g.share(g.folder()); s != nil {
		if s.is(s.kernels) {
			_ = writeFile(s.path, s.usual)
		}
		s.dir.Close()
	}
}

// raise says whether the weight is up, and then settle must follow.
func (s *share) raise() bool {
	// A lock that isn't to be had: somebody is just taking the weight back.
	if s.lock(unix.LOCK_SH) && (s.is(s.raised) || s.is(s.usual) && writeFile(s.path, s.raised) == nil) {
		return true
	}
	s.release()
	return false
}

// settle takes the weight back, unless others still need it.
func (s *share) settle() {
	if s.lock(unix.LOCK_EX) && s.is(s.raised) {
		_ = writeFile(s.path, s.usual)
	}
	s.release()
}

func (s *share) lock(how int) bool { return unix.Flock(int(s.dir.Fd()), how|unix.LOCK_NB) == nil }

// release unlocks by name and not only by close: a child that is just being forked has a copy of the descriptor until its exec.
func (s *share) release() {
	_ = unix.Flock(int(s.dir.Fd()), unix.LOCK_UN)
	s.dir.Close()
}

func (s *share) is(weight string) bool {
	got, err := readFile(s.path)
	return err == nil && got == weight
}

// folder is the group of all groups: what the host's own are beside.
func (g *Group) folder() string {
	dir := g.dir("cpu")
	for range strings.Count(g.name, "/") {
		dir = filepath.Dir(dir)
	}
	return dir
}
