// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
	"agentrun/seccomp"
)

// Two processes of a run have chains of their own, and follow the same ring.
func TestM4JoinedWarden(t *testing.T) {
	silent := func(seccomp.Call, seccomp.Answer, seccomp.Event, rings.Ring) {}
	ring3 := builtin(t, "ring3")
	first := &warden{agentPID: 7, recorder: &seccomp.Recorder{}, refused: silent, profile: &ring3, live: &atomic.Pointer[rights]{}}
	second := first.joined(9)
	exec := func(w *warden, pid int) bool { return w.answer(seccomp.Call{Name: "execve", PID: pid}).Allowed() }
	for i := range chainTries {
		if !exec(first, 7) {
			t.Fatalf("exec %d of the first is refused", i)
		}
	}
	for _, tt := range []struct {
		w    *warden
		pid  int
		want bool
	}{{first, 7, false}, {first, 9, false}, {second, 7, false}, {second, 9, true}} {
		if got := exec(tt.w, tt.pid); got != tt.want {
			t.Errorf("exec of %d asked of the warden of %d: got %v, want %v", tt.pid, tt.w.agentPID, got, tt.want)
		}
	}
	fork := func(w *warden) bool { return w.answer(seccomp.Call{Name: "fork", PID: w.agentPID}).Allowed() }
	for _, subprocess := range []bool{false, true, false} {
		first.live.Store(&rights{ring: rings.Standard, subprocess: subprocess})
		if fork(first) != subprocess || fork(second) != subprocess {
			t.Errorf("a ring with subprocesses %v: got %v and %v", subprocess, fork(first), fork(second))
		}
	}
}

// A gate that comes in a hurry hurries, one that has gone holds nobody up.
func TestGates(t *testing.T) {
	var g gates
	a := g.add()
	g.Hurry(true)
	b := g.add()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := g.Barrier(ctx); err != nil {
		t.Error(err)
	}
	g.remove(a)
	g.remove(b)
	g.remove(b)
	if len(g.all) != 0 {
		t.Errorf("got %d gates, want none", len(g.all))
	}
}

// What a path of a live root leads to is inside, whatever the agent makes of it.
func TestJoinRootStaysInside(t *testing.T) {
	root := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(root, "bin"), 0o755), os.WriteFile(filepath.Join(root, "bin", "own"), nil, 0o755), //nolint:gosec // a program
		os.Symlink("/bin/own", filepath.Join(root, "absolute")), os.Symlink("../../../../../../bin/own", filepath.Join(root, "climbs")),
		os.Symlink("/etc/passwd", filepath.Join(root, "out")), os.Symlink("self", filepath.Join(root, "self")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &joinRoot{dir: dir}
	defer r.close()
	for path, want := range map[string]error{
		"/bin/own": nil, "/absolute": nil, "/climbs": nil, "/../bin/own": nil, "/": nil, "/bin/own/x": unix.ENOTDIR,
		"/out": fs.ErrNotExist, "/etc/passwd": fs.ErrNotExist, "/nosuch": fs.ErrNotExist, "/self": unix.ELOOP,
	} {
		if _, _, err := r.look(path); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	env := []string{"A=1", "AB=2"}
	setEnv(&env, "A=3")
	if !slices.Equal(env, []string{"AB=2", "A=3"}) || getEnv(env, "A") != "3" || getEnv(env, "B") != "" {
		t.Errorf("got %v", env)
	}
}

// The probe of one that joins: other namespaces or another root than pid 1's are a difference.
func TestVerifyJoined(t *testing.T) {
	l := &launch{plan: &Plan{Namespaces: []string{"mnt"}}, initPID: os.Getpid()}
	c := exec.Command("/bin/sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if err := c.Start(); errors.Is(err, unix.EPERM) {
		t.Skip("need: root")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	other := c.Process.Pid
	v := &verifier{l: l, pid: other, joined: true}
	if err := v.namespaces(); err != nil || len(v.errs) == 0 {
		t.Errorf("another mount namespace: got %v, %v, want a difference", v.errs, err)
	}
	l.initPID = other
	v = &verifier{l: l, pid: other, joined: true}
	if err := errors.Join(v.namespaces(), v.sameRoot()); err != nil || len(v.errs) != 0 {
		t.Errorf("the same: got %v, %v, want none", v.errs, err)
	}
	if err := (&verifier{l: l, pid: 1 << 30, joined: true}).sameRoot(); err == nil {
		t.Error("no such process: got no error")
	}
}

// A join that fails as the run's first process is dead has met a run that has ended, also before anybody has seen to its end.
func TestM4JoinOfARunThatDies(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	v := &Live{life: t.Context(), launch: &launch{initPID: cmd.Process.Pid}}
	failed := func() error {
		root, err := openJoinRoot(cmd.Process.Pid)
		if err == nil {
			root.close()
			err = fs.ErrPermission
		}
		return v.joinFailed(err)
	}
	if err := failed(); errors.Is(err, ErrEnded) {
		t.Errorf("it lives: %v", err)
	}
	in.Close()
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := failed(); !errors.Is(err, ErrEnded) {
		t.Errorf("it is dead: %v", err)
	}
}
