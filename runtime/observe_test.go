// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/rings"
	"agentrun/seccomp"
)

type told struct {
	nobody
	refusals []Refusal
	err      error
}

func (o *told) Refused(r Refusal) error {
	o.refusals = append(o.refusals, r)
	return o.err
}

// M-4, H-28: every attempt is told, in order.
func TestM4EveryRefusalIsTold(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rec := &seccomp.Recorder{Clock: func() time.Time { return at }}
	o := &told{}
	r := refusals{observer: o}
	for _, c := range []seccomp.Call{{NR: unix.SYS_MOUNT, Name: "mount"}, {NR: unix.SYS_MOUNT, Name: "mount"}, {NR: unix.SYS_FORK, Name: "fork"}} {
		if err := r.seen(c, seccomp.Deny(unix.EPERM), rec.Record(c, seccomp.Deny(unix.EPERM)), byProfile); err != nil {
			t.Fatal(err)
		}
	}
	for i := range o.refusals {
		o.refusals[i].Detail = "" // seccomp's words
	}
	mount := Refusal{At: at, Syscall: "mount", Called: rings.Root, Never: true, Verdict: "EPERM"}
	want := []Refusal{mount, mount, {At: at, Syscall: "fork", Called: rings.Standard, Verdict: "EPERM"}}
	if d := cmp.Diff(want, o.refusals); d != "" {
		t.Errorf("reports (-want +got):\n%s", d)
	}
}

func TestM4RefusalErrorIsPassedOn(t *testing.T) {
	o := &told{err: errors.New("disk full")}
	r := refusals{observer: o}
	rec := &seccomp.Recorder{}
	c := seccomp.Call{NR: unix.SYS_MOUNT, Name: "mount"}
	if err := r.seen(c, seccomp.Deny(unix.EPERM), rec.Record(c, seccomp.Deny(unix.EPERM)), byProfile); !errors.Is(err, o.err) {
		t.Errorf("got %v, want the observer's error", err)
	}
}

// H-24: how far above its ring an attempt reaches decides its weight.
func TestH24CalledRing(t *testing.T) {
	for _, tt := range []struct {
		call seccomp.Call
		want rings.Ring
	}{
		{seccomp.Call{Name: "mount"}, rings.Root},
		{seccomp.Call{Name: "no such call"}, rings.Root},
		{seccomp.Call{Name: "fork"}, rings.Standard},
		{seccomp.Call{Name: "clone", Args: [6]uint64{uint64(unix.SIGCHLD)}}, rings.Standard},
		{seccomp.Call{Name: "clone", Args: [6]uint64{unix.CLONE_NEWUSER}}, rings.Root},
		{seccomp.Call{Name: "execve"}, rings.Standard},
		{seccomp.Call{Name: "socket", Args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}}, rings.Standard},
		{seccomp.Call{Name: "socket", Args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}}, rings.Root},
		{seccomp.Call{Name: "sync"}, rings.Standard},
		{seccomp.Call{Name: "mount", Foreign: "x32"}, rings.Root},
		{seccomp.Call{Name: "read", Foreign: "i386"}, rings.Privileged},
		{seccomp.Call{Name: seccomp.Unknown, Foreign: "i386"}, rings.Root},
	} {
		if got := calledRing(tt.call); got != tt.want {
			t.Errorf("%s(%d): got %v, want %v", tt.call.Name, tt.call.Args[0], got, tt.want)
		}
	}
}
