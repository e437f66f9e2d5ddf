// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Many runs: M-1 (nobody shares a uid), M-5 (nothing is left), issue 2's
// numbers.

func count(t *testing.T, env string, def int) int {
	t.Helper()
	v := os.Getenv(env)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 2 {
		t.Fatalf("%s=%q: want a number from 2", env, v)
	}
	return n
}

// All at once, all alive at the same time: each has a uid, a network namespace
// and a process tree of its own, a supervisor under 20 MB, and goes without a
// trace.
func TestCrowd(t *testing.T) {
	needSandbox(t)
	n := count(t, "AGENTRUN_TEST_CROWD", 100)
	before := takeStock()
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	calls := make([]*call, n)
	start := time.Now()
	for i := range calls {
		calls[i] = prepare(t, opts{profile: "ring3", stdin: stdin}, "/probe", "id", ",", "ns", ",", "wait")
	}
	// The default time of a run would be up before the last of a hundred has
	// started on a small machine; what is tested is their number.
	for _, c := range calls {
		at := slices.Index(c.Args, "--")
		c.Args = slices.Insert(c.Args, at, "--timeout", "300s")
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i, c := range calls {
		wg.Go(func() { errs[i] = c.until("ready") })
		t.Cleanup(c.release)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		hold.Close()
		t.Fatal(err)
	}
	t.Logf("%d sandboxes alive after %v", n, time.Since(start))

	uids, nets := map[uint32]int{}, map[string]int{}
	for i, c := range calls {
		for _, p := range descendants(c.Process.Pid) {
			if other, ok := uids[p.uid]; ok && other != i {
				t.Errorf("runs %d and %d share uid %d (M-1)", other, i, p.uid)
			}
			uids[p.uid] = i
			if other, ok := nets[p.netns]; ok && other != i {
				t.Errorf("runs %d and %d share %s (M-1)", other, i, p.netns)
			}
			nets[p.netns] = i
		}
	}
	if len(uids) != n || len(nets) != n {
		t.Errorf("%d runs have %d uids and %d network namespaces", n, len(uids), len(nets))
	}
	// Each gives back what only the launch needed, a moment after it, once it gets its turn among the others. Pages of the program that they
	// share count in parts: Linux 6.18 maps whole folios of the page cache, up to 2 MiB for a byte, and VmRSS has them for everybody in full.
	memory, resident := make([]int, n), make([]int, n)
	eventually(t, hang()/2, "supervisors under 20 MiB in the median", func() bool {
		for i, c := range calls {
			memory[i], resident[i] = inKiB(c.Process.Pid, "smaps_rollup", "Pss:"), inKiB(c.Process.Pid, "status", "VmRSS:")
		}
		slices.Sort(memory)
		slices.Sort(resident)
		return memory[n/2] < 20<<10
	})
	t.Logf("a supervisor has: median %d KiB, max %d KiB, resident %d KiB in the median, n=%d", memory[n/2], memory[n-1], resident[n/2], n)

	hold.Close()
	for _, c := range calls {
		c.finish(t).want(t, 0, "exited")
	}
	if left := before.leftAfter(10 * time.Second); len(left) > 0 {
		t.Errorf("left behind by %d runs at once:\n%s", n, strings.Join(left, "\n"))
	}
}

// inKiB is a line of a file of /proc about a process.
func inKiB(pid int, file, line string) int {
	for _, l := range lines(fmt.Sprintf("/proc/%d/%s", pid, file)) {
		if rest, ok := strings.CutPrefix(l, line); ok {
			var n int
			fmt.Sscan(rest, &n)
			return n
		}
	}
	return 0
}

// In sequence: the thousandth run finds the host as the first did.
func TestSequence(t *testing.T) {
	needSandbox(t)
	n := count(t, "AGENTRUN_TEST_SEQUENCE", 1000)
	before := takeStock()
	var took []time.Duration
	for i := range n {
		r := run(t, opts{profile: "ring3"}, "/probe", "ok")
		took = append(took, r.wall)
		if r.exit != 3 {
			t.Fatalf("run %d: exit %d, %s %s\n%s", i, r.exit, r.status.State, r.status.Error, r.stderr)
		}
	}
	if left := before.leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("left behind by %d runs:\n%s", n, strings.Join(left, "\n"))
	}
	tenth := max(n/10, 1)
	first, last := medianOf(took[:tenth]), medianOf(took[n-tenth:])
	t.Logf("n=%d: median %v in the first tenth, %v in the last", n, first, last)
	// Something that piles up would show: doubled, with room for a busy machine.
	if last > 2*first+time.Duration(slow*float64(20*time.Millisecond)) {
		t.Errorf("runs get slower: %v at first, %v in the end", first, last)
	}
}

func medianOf(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[len(s)/2]
}

// One supervisor that lives long: neither descriptors nor memory grow while
// its agent does the same thing over and over.
func TestSupervisorDoesNotGrow(t *testing.T) {
	t.Parallel() // it mostly waits
	needSandbox(t)
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	measure := func(words ...string) (fds, kib int) {
		c := prepare(t, opts{profile: "ring2", stdin: stdin}, append(append([]string{"/probe"}, words...), ",", "wait")...)
		c.startUntil(t, "ready")
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Process.Pid))
		fds, kib = len(entries), inKiB(c.Process.Pid, "status", "VmRSS:")
		c.Process.Signal(os.Interrupt)
		c.finish(t)
		return fds, kib
	}
	fds0, kib0 := measure("id")
	fds1, kib1 := measure("flood", "5000")
	t.Logf("quiet: %d fds, %d KiB; after 5000 refusals: %d fds, %d KiB", fds0, kib0, fds1, kib1)
	if fds1 > fds0+2 || kib1 > kib0+8<<10 {
		t.Errorf("the supervisor grew from %d fds, %d KiB to %d fds, %d KiB", fds0, kib0, fds1, kib1)
	}
	hold.Close()
}
