// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("DIE_AT") != "" {
		_ = At(os.Getenv("DIE_AT"))
		os.Exit(3) // nothing happened there
	}
	os.Exit(m.Run())
}

func TestAt(t *testing.T) {
	for _, tt := range []struct {
		name, set string
		want      []error // of At("a"), one after the other
	}{
		{"nothing is set", "", []error{nil}},
		{"another point", "b=EIO", []error{nil}},
		{"each time", "a=ENOSPC", []error{unix.ENOSPC, unix.ENOSPC}},
		{"the second time", "a=EMFILE@2", []error{nil, unix.EMFILE, nil}},
		{"among others", "b=EIO,a=ENOMEM,c=kill", []error{unix.ENOMEM}},
		{"a delay is no error", "a=delay:1ms", []error{nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.set != "" {
				defer Set(tt.set)()
			}
			for i, want := range tt.want {
				if got := At("a"); !errors.Is(got, want) || (want == nil) != (got == nil) {
					t.Errorf("time %d: got %v, want %v", i+1, got, want)
				}
			}
		})
	}
	if err := At("a"); err != nil {
		t.Errorf("after the tests: %v", err)
	}
}

// A test that misspells its fault must not pass for one that found nothing.
func TestUnreadable(t *testing.T) {
	for _, set := range []string{"a", "a=", "a=EWHAT", "a=delay", "a=delay:x", "a=EIO@", "a=EIO@0", "a=EIO@x", "a=EIO,,b=EIO", "a=EIO,"} {
		t.Run(set, func(t *testing.T) {
			defer Set(set)()
			if At("another") == nil {
				t.Error("no error")
			}
		})
	}
}

func TestFromTheEnvironment(t *testing.T) {
	for _, tt := range []struct {
		set, at string
		killed  bool
	}{{"a=kill", "a", true}, {"a=kill", "b", false}} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{Variable + "=" + tt.set, "DIE_AT=" + tt.at}
		_ = cmd.Run()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if killed := ws.Signaled() && ws.Signal() == unix.SIGKILL; killed != tt.killed || !killed && ws.ExitStatus() != 3 {
			t.Errorf("%s at %s: got %v, want killed %v", tt.set, tt.at, cmd.ProcessState, tt.killed)
		}
	}
}

func TestHangs(t *testing.T) {
	defer Set("a=hang")()
	done := make(chan error)
	go func() { done <- At("a") }() // to the end of the process
	select {
	case err := <-done:
		t.Errorf("it came back: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
}

func BenchmarkAt(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := At("launch/cgroup"); err != nil {
			b.Fatal(err)
		}
	}
}
