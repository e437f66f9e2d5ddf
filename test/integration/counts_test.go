// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
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
	v, ok := strings.CutPrefix(answers(c.told)[words], "value=")
	if !ok {
		t.Fatalf("probe %s gave no value: %s", words, c.told)
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

// A-H4: what a socket keeps of options is memory of the host's that no limit counts; a socket takes 20 KiB of it, which is some 150 keys.
func TestSocketOptionsAreBounded(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.SocketBuffers)
	for _, profile := range []string{"ring3", "ring2", "ring1"} {
		var n int
		var errno string
		if got := observe(t, opts{profile: profile}, "hold-keys"); !strings.HasSuffix(got, " ENOPROTOOPT") { // a kernel without TCP_MD5SIG
			if _, err := fmt.Sscan(got, &n, &errno); err != nil || n > 250 || errno != "ENOMEM" {
				t.Errorf("%s: a socket took keys and answered %q, want 250 at most and ENOMEM", profile, got)
			}
		}
	}
}

// A-H4: what the run's sockets hold is in its memory limit, or bounded by their number: connections to itself whose data nobody reads,
// those that nobody accepts, those closed with their data on the way, with buffers asked for, and datagrams. The host's own account
// (sockstat) is what counts. Other tests and programs on this machine have some of it too, a few MiB.
func TestSocketMemoryIsBounded(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.SocketMemory, hostcaps.SocketBuffers)
	for _, c := range []struct {
		profile, words string
		most           int64 // MiB held
	}{
		{"ring3", "hold-tcp 120 accept", 60},
		{"ring3", "hold-tcp 120 leave", 60},
		{"ring3", "hold-tcp 120 close", 60},
		{"ring3", "hold-tcp 120 leave 4000000", 60},
		{"ring3", "hold-udp 300", 64},
		{"ring2", "hold-tcp 120 accept", 64},
		{"ring2", "hold-tcp 120 leave", 64},
	} {
		t.Run(c.profile+" "+c.words, func(t *testing.T) {
			before := socketMemory(t)
			_, end := holding(t, c.profile, c.words)
			held := (socketMemory(t) - before) >> 20
			end()
			if held > c.most {
				t.Errorf("the run's sockets hold %d MiB, want %d at most", held, c.most)
			}
			t.Logf("%d MiB", held)
		})
	}
}

// socketMemory is what TCP and UDP hold on the whole machine.
func socketMemory(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	pages := int64(0)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		for i, word := range f[:max(len(f)-1, 0)] {
			if word == "mem" && (f[0] == "TCP:" || f[0] == "UDP:") {
				n, err := strconv.ParseInt(f[i+1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				pages += n
			}
		}
	}
	return pages * int64(os.Getpagesize())
}

// What no cgroup is charged for is counted: a run in rings 2 and 1 has 64 netlink sockets, one in ring 3 160 of all kinds; one too many
// is refused and on record, and is no attempt at a higher ring.
func TestSocketsAreCounted(t *testing.T) {
	needSandbox(t)
	for _, c := range []struct {
		profile, words string
		least, most    int
	}{
		{"ring2", "hold-netlink 300", 32, 64}, // the kernel's own of the namespace are among them
		{"ring1", "hold-netlink 300", 32, 64},
		{"ring3", "hold-udp 300", 160, 160},
		{"ring3", "hold-tcp 300 leave", 80, 80},
	} {
		t.Run(c.profile+" "+c.words, func(t *testing.T) {
			t.Parallel()
			got, r := try(t, opts{profile: c.profile, flags: []string{"--no-gateway"}}, c.words)
			r.want(t, r.exit, "exited")
			number, _, _ := strings.Cut(strings.TrimPrefix(got[c.words], "value="), " ")
			if n, err := strconv.Atoi(number); err != nil || n < c.least || n > c.most || !strings.HasSuffix(got[c.words], "ENOBUFS") {
				t.Errorf("got %q, want %d to %d, then ENOBUFS", got[c.words], c.least, c.most)
			}
			if r.status.Refused["socket"] == 0 {
				t.Errorf("the refusal isn't in the status: %v", r.status.Refused)
			}
		})
	}
}

// Connections that were closed are in nobody's memory for a minute, and in the hash table of all the host's.
func TestClosedConnectionsAreBounded(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.SocketBuffers)
	// 20 s of processor time are not enough under emulation, where what the host does beside it counts too.
	_, r := try(t, opts{profile: "ring3", flags: []string{"--no-gateway", "--timeout", "300s", "--cpu-time", "300s"}}, "hold-timewait 8000", "cat /proc/self/net/sockstat")
	if got := value(t, r, "hold-timewait 8000"); got != "8000" {
		t.Errorf("%s connections, want 8000", got)
	}
	text := value(t, r, "cat /proc/self/net/sockstat")
	_, rest, _ := strings.Cut(text, " tw ")
	if n, err := strconv.Atoi(strings.Fields(rest + " ?")[0]); err != nil || n > 4096 {
		t.Errorf("%d wait, %v, want 4096 at most: %s", n, err, text)
	}
}

// 20 runs of ring 3, each with all the TCP memory that it can get, don't bring the host's TCP under pressure: the measured run times 20 is
// below the mark at which the kernel begins to press all of the host's connections.
func TestTwentyRunsStayBelowTCPPressure(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.SocketMemory, hostcaps.SocketBuffers)
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_mem")
	if err != nil {
		t.Fatal(err)
	}
	mark, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	before := socketMemory(t)
	for n := range int64(4) {
		_, end := holding(t, "ring3", "hold-tcp 120 accept")
		defer end()
		if sum := 20 * (socketMemory(t) - before) / (n + 1); sum > mark*int64(os.Getpagesize()) {
			t.Fatalf("20 runs would hold %d MiB, and the pressure mark is %d MiB", sum>>20, mark*int64(os.Getpagesize())>>20)
		}
	}
}
