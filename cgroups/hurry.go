// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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
	for dir, n := g.dir("cpu"), strings.Count(g.own, "/"); dir != "" && n >= 0; dir, n = filepath.Dir(dir), n-1 {
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
	dir       *os.File
	path      string
	low, high string // a group's usual weight and that in a hurry; of the folder of all groups that of behindHost, and the kernel's
	ofAll     bool
}

// share is nil for a group that is not there.
func (g *Group) share(dir string) *share {
	name, weight := g.files().weight, g.files().usual
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	low, high, ofAll := weight, hurried*weight, dir == g.folder()
	if ofAll {
		low, high = weight/behindHost, weight
	}
	return &share{f, filepath.Join(dir, name), strconv.Itoa(low), strconv.Itoa(high), ofAll}
}

// behindHost is by how much all groups together weigh less than one group, or one process, of the host's, as long as one of them keeps
// processors busy and so yields. It isn't about fairness alone:
// from Linux 6.13 on (seen on 6.18) a group whose threads sleep and wake up on several processors can be given all of the time, for
// seconds, since each change of its parts' load gives it time that it had already had. Ten runs that only sent datagrams kept everything
// else on the host waiting for up to seven seconds. With a sixteenth of the weight there is little to give. Figures in docs/cgroups.md.
const behindHost = 16

// weighAll gives the folder of all groups its weight after one group has begun to yield, or has ended it. An operator's own is left alone.
func (g *Group) weighAll(yields bool) {
	if g.dir("cpu") == "" {
		return
	}
	s := g.share(g.folder())
	if s == nil {
		return
	}
	defer s.release()
	// A lock that isn't to be had: somebody is in a hurry, and weighs when that is over.
	if (yields && s.is(s.high) || !yields && s.is(s.low)) && s.lock(unix.LOCK_EX) {
		s.weigh()
	}
}

// weigh gives a group the weight that it has when nobody is in a hurry.
func (s *share) weigh() {
	switch {
	case s.ofAll && !s.yielding():
		if s.is(s.low) {
			_ = writeFile(s.path, s.high)
		}
	case s.is(s.high):
		_ = writeFile(s.path, s.low)
	}
}

// yielding says whether one of the groups in the folder yields.
func (s *share) yielding() bool {
	groups, _ := os.ReadDir(filepath.Dir(s.path))
	return slices.ContainsFunc(groups, func(e os.DirEntry) bool {
		if !e.IsDir() {
			return false
		}
		idle, err := readFile(filepath.Join(filepath.Dir(s.path), e.Name(), "cpu.idle"))
		return err == nil && idle == "1"
	})
}

// raise says whether the weight is up, and then settle must follow.
func (s *share) raise() bool {
	// A lock that isn't to be had: somebody is just taking the weight back, which takes some microseconds of its own but on a busy
	// machine waits for a turn. Nobody in a hurry waits long for that.
	locked := s.lock(unix.LOCK_SH)
	for try := 0; !locked && try < 20; try++ {
		time.Sleep(time.Millisecond)
		locked = s.lock(unix.LOCK_SH)
	}
	if locked && (s.is(s.high) || s.is(s.low) && writeFile(s.path, s.high) == nil) {
		return true
	}
	s.release()
	return false
}

// settle takes the weight back, unless others still need it.
func (s *share) settle() {
	if s.lock(unix.LOCK_EX) {
		s.weigh()
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
	for range strings.Count(g.own, "/") {
		dir = filepath.Dir(dir)
	}
	return dir
}
