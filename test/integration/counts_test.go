// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// Threat class "the host's shared counters" (A-H3): what the kernel counts by user, a run takes until it is refused, and holds. Root on
// the host and another run must then still have theirs.
func TestCountsOfTheHost(t *testing.T) {
	needSandbox(t)
	t.Run("inotify instances", func(t *testing.T) {
		t.Parallel()
		end := holdInotify(t)
		defer end()
		if err := inotifyInstances(16); err != nil {
			t.Errorf("root on the host: %v", err)
		}
		other := observe(t, opts{profile: "ring2", flags: []string{"--no-gateway"}}, "hold-inotify")
		if n, _ := strconv.Atoi(strings.Fields(other)[0]); n < 16 {
			t.Errorf("another run has %s inotify instances, want 16 or more", other)
		}
	})
	for _, what := range []string{"hold-signals", "hold-timers"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before := pendingOfRoot(t)
			c, end := holding(t, "ring3", what)
			defer end()
			held, _ := strconv.Atoi(strings.Fields(heldOf(t, c, what))[0])
			if held != 256 {
				t.Errorf("ring 3 holds %d, want 256", held)
			}
			// Others on this machine have theirs too.
			if now := pendingOfRoot(t); now-before > held/2 {
				t.Errorf("root has %d pending signals more than before, while one run holds %d", now-before, held)
			}
		})
	}
}

// holdInotify starts a ring 2 run that has taken all the instances it gets; ring 3 has none.
func holdInotify(t *testing.T) (end func()) {
	t.Helper()
	c, end := holding(t, "ring2", "hold-inotify")
	if got := heldOf(t, c, "hold-inotify"); !strings.HasSuffix(got, "EMFILE") {
		t.Errorf("the attack ended otherwise: %s", got)
	}
	return end
}

// holding starts a run that has done what the words say and keeps it until end is called.
func holding(t *testing.T, profile, words string, flags ...string) (c *call, end func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c = prepare(t, opts{profile: profile, flags: append([]string{"--no-gateway"}, flags...), stdin: r}, probeArgs(words, "wait")...)
	c.startUntil(t, "ready")
	r.Close()
	return c, func() {
		w.Close()
		c.finish(t)
	}
}

// heldOf reads the answer of a try that came before "ready".
func heldOf(t *testing.T, c *call, words string) string {
	t.Helper()
	v, ok := strings.CutPrefix(answers(c.out.String())[words], "value=")
	if !ok {
		t.Fatalf("probe %s gave no value: %s", words, c.out.String())
	}
	return v
}

func inotifyInstances(n int) error {
	for range n {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("inotify_init1", err)
		}
		defer unix.Close(fd)
	}
	return nil
}

// pendingOfRoot is what the kernel counts of signals pending for root: those of this process's user in its namespace.
func pendingOfRoot(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "SigQ:"); ok {
			n, _, _ := strings.Cut(strings.TrimSpace(rest), "/")
			count, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatal("no SigQ in /proc/self/status")
	return 0
}

// An ordinary user's runs share what that user has with all their programs: each gets a small part of it.
func TestCountsOfAnOrdinaryUser(t *testing.T) {
	u := newUser(t)
	need(t, hostcaps.Root)
	_, stdout, stderr := u.run(t, "exec", "--ring", "2", "--no-gateway", "--best-effort", "--ro-bind", probeBin+":/probe", "--",
		"/probe", "hold-inotify")
	got := answers(stdout)
	if got["hold-inotify"] != "value=16 EMFILE" {
		t.Errorf("hold-inotify: %q, want 16 EMFILE\n%s%s", got["hold-inotify"], stdout, stderr)
	}
}
