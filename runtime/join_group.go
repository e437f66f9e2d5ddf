// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/read"
	"agentrun/profiles"
)

// A command that joins with limits of its own is in a group within the run's, beside the leaf of the run's own processes: the kernel holds
// it to both, and what takes, freezes or kills the run reaches it there. It is moved when it is confined and compared, and before its first
// instruction. Whatever it has left in the group goes with it: nobody would count it any more.

// joinMost stands for the limits that nothing was said of: the run's hold all the same.
var joinMost = Limits{CPU: 8192, Memory: 1 << 50, PIDs: 4194304}

// errJoinMemory is why the rest of a joined command is killed on cgroup v1 when one of its processes was killed for memory.
var errJoinMemory = errors.New("over its memory limit")

// joinLimits are those of a command that asks for limits of its own.
func joinLimits(ask, run Limits) (Limits, error) {
	var ps read.Problems
	within := func(flag string, ok bool, run any) {
		if !ok {
			ps.Add(flag, "more than the run's limit of %v", run)
		}
	}
	within("--cpus", ask.CPU <= run.CPU, run.CPU)
	within("--memory", ask.Memory <= run.Memory, profiles.Size(run.Memory)) //nolint:gosec // it is positive
	within("--pids", ask.PIDs <= run.PIDs, run.PIDs)
	limits := over(joinMost, ask)
	if err := limits.Validate(); err != nil {
		ps.Add("limits", "%v", err)
	}
	if len(ps) > 0 {
		return limits, &InvalidSpec{ps}
	}
	return limits, nil
}

// joinGroups are those within a run's. Guarded by the runGroup's mu.
type joinGroups struct {
	made int
	all  map[*cgroups.Group]bool // false: it is being killed
}

// join makes one.
func (r *runGroup) join(l Limits) (*cgroups.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joined.made++
	g, err := cgroups.Create(fmt.Sprintf("%s/join-%d", r.Name(), r.joined.made), l)
	if err != nil {
		return nil, err
	}
	if r.joined.all == nil {
		r.joined.all = map[*cgroups.Group]bool{}
	}
	r.joined.all[g] = true
	return g, nil
}

// leaveJoin kills what is left in one and removes it.
func (r *runGroup) leaveJoin(ctx context.Context, g *cgroups.Group) error {
	r.mu.Lock()
	r.joined.all[g] = false
	r.mu.Unlock()
	_ = g.Unthrottle() // what has used up its quota would take its time to die
	_, err := g.Kill(ctx)
	if err == nil {
		err = g.Remove(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.joined.all, g)
	return err
}

// eachJoin does it to all of them that are there, or those that are not being killed.
func (r *runGroup) eachJoin(dying bool, do func(*cgroups.Group) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for g, lives := range r.joined.all {
		if !lives && !dying {
			continue
		}
		if err := do(g); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // its command has just ended
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Unthrottle lifts theirs, too: a process that has used up its own quota is as slow to be frozen as one that has used up the run's.
func (r *runGroup) Unthrottle() error {
	return errors.Join(r.Group.Unthrottle(), r.eachJoin(true, (*cgroups.Group).Unthrottle))
}

// Throttle begins with the run's, which on v1 none of theirs may be above.
func (r *runGroup) Throttle() error {
	return errors.Join(r.Group.Throttle(), r.eachJoin(false, (*cgroups.Group).Throttle))
}

// KillOthers ends those of the groups within, too: to a ring they are the run's own.
func (r *runGroup) KillOthers(ctx context.Context, keep ...int) (killed int, settled bool, err error) {
	killed, settled, err = r.Group.KillOthers(ctx, keep...)
	return killed, settled, errors.Join(err, r.eachJoin(true, func(g *cgroups.Group) error {
		n, done, err := g.KillOthers(ctx, keep...)
		killed, settled = killed+n, settled && done
		return err
	}))
}

// hold puts a command that asks for limits of its own into a group that has them.
func (j *joiner) hold() (err error) {
	if j.ask.Limits == (Limits{}) {
		return nil
	}
	run, ok := j.live.launch.group.(*runGroup)
	if !ok {
		return ErrNoCgroup
	}
	limits, err := joinLimits(j.ask.Limits, run.Limits())
	if err != nil {
		return err
	}
	if j.group, err = run.join(limits); err != nil {
		return err
	}
	if err := j.group.Add(j.agentPID); err != nil {
		return err
	}
	pids, err := j.group.Pids()
	if err == nil && !slices.Contains(pids, j.agentPID) {
		err = fmt.Errorf("it isn't in cgroup %s", j.group.Name())
	}
	if err == nil {
		j.oom, err = j.group.OOMEvents()
	}
	if err == nil && j.oom != nil {
		go func() {
			if diedOfMemory(j.oom, j.group) {
				j.kill(errJoinMemory)
			}
		}()
	}
	return err
}

// release ends what it has left in its group. What can't be done, as in a run that is frozen on v1, the end of the run does, and tells.
func (j *joiner) release() {
	if j.group == nil {
		return
	}
	if j.oom != nil {
		j.oom.Close()
	}
	if n, err := j.group.OOMKills(); err == nil {
		j.oomKills = n
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	_ = j.live.launch.group.(*runGroup).leaveJoin(ctx, j.group)
}

// overMemory says whose limit it was.
func (j *joiner) overMemory() string {
	if own := j.ask.Limits.Memory; own > 0 {
		return "over its memory limit of " + profiles.Size(own).String() //nolint:gosec // it is positive
	}
	return j.live.run.overMemory()
}

// diedOfMemory waits for a process that the kernel kills because the group is at its memory limit (v1); false: the group is gone.
func diedOfMemory(events *os.File, g interface{ OOMKills() (uint64, error) }) bool {
	var count [8]byte
	for {
		if _, err := events.Read(count[:]); err != nil {
			return false
		}
		// The event comes before the kernel has chosen its victim; the count tells when it has. A second
		// is ages for that, and an event without a victim leaves the group alone.
		for range 500 {
			kills, err := g.OOMKills()
			if err != nil {
				return false
			}
			if kills > 0 {
				return true
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
