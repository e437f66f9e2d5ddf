// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/mounts"
	"agentrun/internal/read"
)

// verify compares the waiting process with the plan: what was promised is read back from the kernel's
// own account in /proc, before any code of the agent has run. Everything is checked and every
// difference reported; one is enough to end the launch. It guards against our own mistakes and against
// a kernel or library that ignores what it was asked (a silent no-op is the worst kind of protection).
//
// A process that was made ahead is looked at when it is made, with all of this, and then waits: it runs
// nothing but our read(2), and its view, namespaces, descriptors and ids are those of the shape, which is the
// plan's. When it is handed out, what is new since is looked at (the workspace, other limits), and again what
// somebody on the host could have changed meanwhile.
//
// Landlock has no account in /proc; the integration tests try it from inside instead.
func (l *launch) verify() error {
	if err := l.mountsHeld(); err != nil {
		return err
	}
	v, mounts := &verifier{l: l, pid: l.agentPID}, &verifier{l: l, pid: l.agentPID}
	var looked sync.WaitGroup
	if !l.verified || !l.whole() {
		looked.Go(func() { mounts.check(mounts.mounts) }) // as long as all the others together
	}
	v.check(v.status, v.member)
	if limits := l.group.Limits(); !l.verified || limits != l.verifiedLimits {
		v.check(v.limits)
		l.verifiedLimits = limits
	}
	if !l.verified {
		v.check(v.namespaces, v.idMaps, v.descriptors, v.hidden)
	}
	looked.Wait()
	v.errs = append(v.errs, mounts.errs...)
	err := v.result(&l.process)
	l.verified = err == nil
	return err
}

// verifyJoined is verify of a process that joins the run. What is the same for both (id maps, mounts, the cgroup's limits) was compared
// for the first, and what the ring has changed of it since is the run's: so this one has to be in the very namespaces of pid 1, under
// the same root, and in the same cgroup, whose limits are read back. Nobody changes them meanwhile: whoever calls has the turn.
func (l *launch) verifyJoined(p *process) error {
	v := &verifier{l: l, pid: p.agentPID, joined: true}
	v.check(v.status, v.member, v.namespaces, v.idMaps, v.descriptors, v.hidden, v.sameRoot, l.group.Verify)
	return v.result(p)
}

// result is what was gathered about a process. Its pid could only have come to mean another one if it had died meanwhile.
func (v *verifier) result(p *process) error {
	if err := unix.PidfdSendSignal(int(p.agentFD.Fd()), 0, nil, 0); err != nil {
		v.errs = append(v.errs, fmt.Errorf("agent process: %w", err))
	}
	return errors.Join(v.errs...)
}

// verifier gathers what differs. A check's own error, of reading, counts as a difference: what can't be seen
// isn't so. Each verifier is one goroutine's.
type verifier struct {
	l      *launch
	pid    int
	joined bool // the run is there already
	errs   []error
}

func (v *verifier) check(list ...func() error) {
	for _, check := range list {
		if err := check(); err != nil {
			v.errs = append(v.errs, err)
		}
	}
}

func (v *verifier) differs(what string, got, want any) {
	v.errs = append(v.errs, fmt.Errorf("%s is %v, promised %v", what, got, want))
}

func (v *verifier) read(file string) (string, error) {
	return read.Kernel(fmt.Sprintf("/proc/%d/%s", v.pid, file))
}

// status: no capability in any set, no_new_privs, a filter, the promised ids, no groups (M-1, M-4).
func (v *verifier) status() error {
	text, err := v.read("status")
	if err != nil {
		return err
	}
	id := strconv.Itoa(v.l.ids.hostAgent())
	ids := strings.Join([]string{id, id, id, id}, "\t")
	want := map[string]string{
		"CapInh": zeroCaps, "CapPrm": zeroCaps, "CapEff": zeroCaps, "CapBnd": zeroCaps, "CapAmb": zeroCaps,
		"NoNewPrivs": "1", "Seccomp": "2", "Uid": ids, "Gid": ids, "Groups": "",
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if w, ok := want[key]; ok {
			if got := strings.TrimSpace(value); got != w {
				v.differs(key, got, w)
			}
			delete(want, key)
		}
	}
	for key := range want {
		v.differs(key, "absent", want[key])
	}
	text, err = v.read("oom_score_adj")
	if got, w := strings.TrimSpace(text), strconv.Itoa(v.l.plan.oomScore()); err == nil && got != w {
		v.differs("oom_score_adj", got, w)
	}
	return err
}

const zeroCaps = "0000000000000000"

// namespaces: each one promised is another one than ours, and the network one is the one we made.
func (v *verifier) namespaces() error {
	for _, ns := range v.l.plan.Namespaces {
		inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", v.pid, ns))
		if err != nil {
			return err
		}
		ours, err := ownNamespace(ns)
		if err != nil {
			return err
		}
		if inside == ours {
			v.differs(ns+" namespace", "the supervisor's", "its own")
		}
		if v.joined {
			if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", v.l.initPID, ns)); err != nil {
				return err
			} else if inside != theirs {
				v.differs(ns+" namespace", inside, theirs)
			}
		}
		if ns == "user" {
			if owner, err := ownerOf(v.pid); err != nil {
				return err
			} else if want := v.l.ids.hostOwner(); owner != want {
				v.differs("owner of the user namespace", owner, want) // or others would be charged for what the agent holds
			}
		}
		if ns == "net" {
			network, err := v.l.network()
			if err != nil {
				return err
			}
			ino, err := network.Inode()
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("net:[%d]", ino); inside != want {
				v.differs("net namespace", inside, want)
			}
		}
	}
	return nil
}

var ownNamespaces sync.Map // links by names

// ownNamespace is this process's: its main thread never changes one, and none gets its number while we are in it.
func ownNamespace(name string) (string, error) {
	if link, ok := ownNamespaces.Load(name); ok {
		return link.(string), nil
	}
	link, err := os.Readlink("/proc/self/ns/" + name)
	if err == nil {
		ownNamespaces.Store(name, link)
	}
	return link, err
}

func (v *verifier) idMaps() error {
	for _, file := range []string{"uid_map", "gid_map"} {
		text, err := v.read(file)
		if err != nil {
			return err
		}
		var lines []string
		for _, m := range v.l.ids.inside {
			lines = append(lines, fmt.Sprintf("%d %d %d", m.inside, m.outside, m.count))
		}
		want := strings.Join(lines, " ")
		if got := strings.Join(strings.Fields(text), " "); got != want {
			v.differs(file, got, want)
		}
	}
	return nil
}

// member: the process is in the run's group in every hierarchy that limits it.
func (v *verifier) member() error {
	text, err := v.read("cgroup")
	if err != nil {
		return err
	}
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for _, c := range strings.Split(f[1], ",") {
				paths[c] = f[2]
			}
		}
	}
	for c := range v.l.group.Paths() {
		if got, want := paths[c], v.l.group.Place(c); got != want {
			v.differs("cgroup of "+cmp.Or(c, "unified"), got, want)
		}
	}
	return nil
}

// limits: the group has the plan's, by the kernel's word.
func (v *verifier) limits() error {
	if got, want := v.l.group.Limits(), v.l.limits(); got != want {
		v.differs("cgroup limits", got, want)
	}
	return v.l.group.Verify()
}

// mounts: every mount of the plan is there with its flags, and nothing else is mounted.
func (v *verifier) mounts() error {
	table, err := mounts.ReadOf(strconv.Itoa(v.pid))
	if err != nil {
		return err
	}
	want, seen := v.l.plan.mountFlags(v.l.shown), map[string]bool{}
	if v.l.root != nil {
		for _, at := range v.l.root.Staged {
			want[at] = []string{"ro", "nosuid", "nodev", "noexec"}
		}
	}
	for _, m := range table.Mounts {
		flags, ok := want[m.At]
		if !ok {
			if !v.l.plan.submount(m.At) {
				v.differs("mount "+m.At, "there", "nothing")
				continue
			}
			flags = []string{"nosuid"}
			if v.l.plan.closed(m.At) {
				flags = append(flags, "ro")
			}
		}
		for _, flag := range flags {
			if !slices.Contains(m.Options, flag) {
				v.differs("mount "+m.At, m.Options, flag)
			}
		}
		// It was mounted without them; see fsjail.Facts.
		if super := m.Line[strings.LastIndexByte(m.Line, ' ')+1:]; m.At == "/proc" && v.l.plan.ProcOptions != "" && !slices.Contains(strings.Split(super, ","), v.l.plan.ProcOptions) {
			v.differs("mount /proc", super, v.l.plan.ProcOptions)
		}
		seen[m.At] = true
	}
	for at, flags := range want {
		if !seen[at] {
			v.differs("mount "+at, "absent", strings.Join(flags, ","))
		}
	}
	return nil
}

// mountFlags is what mountinfo must say of each mount point; more are those that have another source in each
// run.
func (p *Plan) mountFlags(more []fsjail.Entry) map[string][]string {
	root := []string{"nosuid", "nodev", "ro"}
	if p.WritableRoot {
		root[2] = "rw"
	}
	m := map[string][]string{"/": root, "/proc": {"ro", "nosuid", "nodev", "noexec"}}
	for _, e := range slices.Concat(p.Entries, more) {
		flags := []string{"nosuid"}
		switch e.Kind {
		case fsjail.Bind:
			if !e.Writable {
				flags = append(flags, "ro")
			}
			if !e.Exec {
				flags = append(flags, "noexec")
			}
			if !e.Device {
				flags = append(flags, "nodev")
			}
		case fsjail.Cover:
			flags = append(flags, "ro", "nodev")
		case fsjail.Fact:
			flags = append(flags, "ro", "nodev", "noexec")
		case fsjail.Tmpfs, fsjail.Again:
			flags = append(flags, "nodev")
			if !e.Exec {
				flags = append(flags, "noexec")
			}
		case fsjail.Devpts:
			flags = append(flags, "noexec")
		case fsjail.Overlay:
			flags = append(flags, "nodev")
		default:
			continue
		}
		m[e.Target] = flags
	}
	return m
}

// submount: binds bring along what the host has mounted below their source.
func (p *Plan) submount(at string) bool {
	return slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Kind == fsjail.Bind && !e.IsFile && strings.HasPrefix(at, e.Target+"/")
	})
}

// closed: below a folder that a change of ring may open, nothing is open before.
func (p *Plan) closed(at string) bool {
	return slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Live && strings.HasPrefix(at, e.Target+"/")
	})
}

// descriptors: nothing but stdio, and the connection to the tool gateway where the plan gives one, survives
// the exec (CVE-2024-21626), so anything else must be close-on-exec already.
func (v *verifier) descriptors() error {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo", v.pid))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		fd, err := strconv.Atoi(n)
		if err != nil || fd <= 2 || !v.joined && v.l.wayout != nil && v.l.plan.Wayout.FD == fd {
			continue
		}
		text, err := v.read("fdinfo/" + n)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(line, "flags:"); ok {
				flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
				if err != nil || flags&unix.O_CLOEXEC == 0 {
					v.differs("descriptor "+n, "inherited", "closed at exec")
				}
			}
		}
	}
	return nil
}

// sameRoot: the process sees what pid 1 sees, and starts in there.
func (v *verifier) sameRoot() error {
	var root, theirs unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/root", v.pid), &root)
	if err == nil {
		err = unix.Stat(fmt.Sprintf("/proc/%d/root", v.l.initPID), &theirs)
	}
	if err != nil {
		return os.NewSyscallError("stat", err)
	}
	if root.Dev != theirs.Dev || root.Ino != theirs.Ino {
		v.differs("root", []uint64{root.Dev, root.Ino}, []uint64{theirs.Dev, theirs.Ino})
	}
	return nil
}

// hidden: pid 1 and the waiting child belong to host root in /proc, as undumpable processes do
// (proc(5)): nobody inside can trace them or open their memory.
func (v *verifier) hidden() error {
	for _, pid := range []int{v.l.initPID, v.pid} {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/mem", pid), &st); err != nil {
			return os.NewSyscallError("stat", err)
		}
		if int(st.Uid) == v.l.ids.hostAgent() {
			v.differs(fmt.Sprintf("process %d", pid), "dumpable", "undumpable")
		}
	}
	return nil
}
