// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"
)

// M-4, H-24: what the filter has answered with ENOSYS or a kill is seen: counted by name, on record, and weighed where it is an
// attempt.

// refusals gives the refused calls on record, "name class verdict" with their count, and how many breaches there are.
func (n node) refusals() (counts map[string]int, entries, breaches int) {
	n.t.Helper()
	counts = map[string]int{}
	for _, e := range n.audit("node") {
		switch e.Kind {
		case "refusal":
			class, _ := e.Data["class"].(string)
			count, _ := e.Data["count"].(float64)
			counts[strings.Join([]string{e.Data["syscall"].(string), class, e.Data["verdict"].(string)}, " ")] += int(count)
			entries++
		case "breach":
			breaches++
		}
	}
	return counts, entries, breaches
}

func TestM4ProbesLeaveATrace(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	n := newNode(t)
	var tries []string
	for range 50 {
		tries = append(tries, "sys 437", "sys 319", "sys 9999") // openat2, memfd_create, nothing
	}
	r := run(t, n.opts("--ring", "3"), probeArgs(tries...)...)
	r.want(t, 0, "exited")
	for _, call := range []string{"openat2", "memfd_create", "unknown"} {
		if got := r.status.Refused[call]; got != 50 {
			t.Errorf("%d refusals of %s in the status, want 50", got, call)
		}
	}
	counts, entries, breaches := n.refusals()
	for _, kind := range []string{"openat2  ENOSYS", "memfd_create  ENOSYS", "unknown number=9999 ENOSYS"} {
		if counts[kind] != 50 {
			t.Errorf("%d × %q on record, want 50: %v", counts[kind], kind, counts)
		}
	}
	if entries > 9 || breaches != 0 {
		t.Errorf("%d entries and %d breaches for programs that probe, want few and none", entries, breaches)
	}
}

func TestM4NamespacesByClone3AreABreach(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	n := newNode(t)
	r := run(t, n.opts("--ring", "3"), probeArgs(slices.Repeat([]string{"clone3 user"}, 5)...)...)
	counts, _, breaches := n.refusals()
	if got := r.status.Refused["clone3"]; got < 3 || counts["clone3 flags=CLONE_NEWUSER ENOSYS"] != int(got) || breaches == 0 {
		t.Errorf("%d refusals in the status, on record %v, %d breaches; want three or more, the same, one at least", got, counts, breaches)
	}
}

// The supervisor kills, so it knows for what; in children of the agent's process too, which goes on.
func TestM4KillsAreOnRecord(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	n := newNode(t)
	run(t, n.opts("--ring", "3"), "/probe", "x32", "165").want(t, 128+31, "signaled")
	if !takesInt80() {
		unmet(t, noInt80)
	}
	script := `/probe x32 165; a=$?; /probe int80 21; echo $a $?`
	r := run(t, n.opts("--ring", "2"), "sh", "-c", script)
	r.want(t, 0, "exited")
	if !strings.Contains(r.stdout, "137 137") || r.status.Refused["mount"] != 2 {
		t.Errorf("got %q and refusals %v, want two children killed for mount", r.stdout, r.status.Refused)
	}
	counts, _, _ := n.refusals()
	if counts["mount arch=x32 killed"] != 2 || counts["mount arch=i386 killed"] != 1 {
		t.Errorf("on record: %v, want mount twice by x32 and once by i386", counts)
	}
}

// Threads and children as glibc makes them, and what libraries try at their start, are no attempts: glibc asks for clone3 first.
func TestM4BusyProgramsAreNoBreach(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "python3")
	n := newNode(t)
	busy := `
import os, threading
for i in range(40):
    t = threading.Thread(target=int); t.start(); t.join()
    os.waitpid(os.posix_spawn("/probe", ["/probe", "sys", "437", ",", "sys", "319", ",", "sys", "9999", ",", "sys", "425", ",", "clone3", "0"], {}), 0)
`
	r := run(t, n.opts("--ring", "2"), "python3", "-c", busy)
	r.want(t, 0, "exited")
	if got := r.status.Refused; got["clone3"] != 0 || got["openat2"] != 40 || got["memfd_create"] != 40 || got["io_uring_setup"] != 40 || got["unknown"] != 40 {
		t.Errorf("refused: %v, want 40 of what was probed and no clone3", got)
	}
	if _, _, breaches := n.refusals(); breaches != 0 {
		t.Errorf("%d breaches", breaches)
	}
}

// An ordinary user's supervisor reads and kills as root's does.
func TestM4RootlessAttemptsLeaveATrace(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "python3")
	script := `/probe x32 165; a=$?; /probe clone3 user; python3 -c 'import threading; t = threading.Thread(target=int); t.start(); t.join()'; echo end $a $?`
	r := run(t, opts{user: someone(t), profile: "ring2"}, "sh", "-c", script)
	r.want(t, 0, "exited")
	if got := r.status.Refused; !strings.Contains(r.stdout, "end 137 0") || len(got) != 2 || got["mount"] != 1 || got["clone3"] != 1 {
		t.Errorf("got %q and refusals %v, want one killed for mount and one clone3", r.stdout, got)
	}
}
