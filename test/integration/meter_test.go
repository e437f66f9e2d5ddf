// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// emptied calls a tool until it is refused, and says how many calls were answered, from when to when. It reads the wall clock, which
// all runs share; by the others a run begins at second 0.
const emptied = `
import os, time, urllib.error, urllib.request
def call():
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/math", b'{"args":{"expression":"6*7"}}', {"Content-Type": "application/json"})
    try: return urllib.request.urlopen(q).read().decode()
    except urllib.error.HTTPError as e: return e.read().decode()
begun, n = time.time(), 0
while "rate_limited" not in call(): n += 1
print("took", n, begun, time.time(), flush=True)
time.sleep(60)`

// H-16, H-17: the bucket is the agent's, not the run's. A run beside another, and one after a supervisor that was killed, find what
// is left.
func TestH16RunsShareABucket(t *testing.T) {
	needProgram(t, "python3")
	x := newExit(t)
	x.file("empty.py", emptied)
	x.n.must("agent", "score", "a", "0.3")
	total, first, last := 0, 0.0, 0.0
	for i, killed := range []bool{true, false, false} {
		c := x.prepare(x.opts("ring3", "--agent", "a"), "python3", "empty.py")
		c.startUntil(t, "took")
		var n int
		var begun, ended float64
		if _, err := fmt.Sscanf(c.told, "took %d %g %g", &n, &begun, &ended); err != nil {
			t.Fatalf("%v: %q", err, c.told)
		}
		if total += n; i == 0 {
			first = begun
		}
		last = ended
		if killed {
			_ = c.Process.Kill()
			_ = c.Wait()
		} else {
			defer c.finish(t)
			defer func() { _ = c.Process.Signal(unix.SIGTERM) }()
		}
	}
	if most := 10 + 5*(last-first) + 1; float64(total) > most {
		t.Errorf("three runs were answered %d calls within %.2f s, want at most %.0f", total, last-first, most)
	}
}

// H-24: so is the window of what it was refused: no run of these is a breach by itself. A release empties it, also if nothing of the
// agent's lives at the time.
func TestH24RunsShareAWindow(t *testing.T) {
	n := newNode(t)
	n.must("agent", "score", "a", "0.8")
	try := func() result { return run(t, n.opts("--agent", "a"), probeArgs("mount tmpfs")...) }
	runs := 0
	for ; runs < 6 && try().exit == 0; runs++ {
	}
	if runs != 3 || kinds(n.audit("node")) == "" || !strings.Contains(kinds(n.audit("node")), "breach quarantine") {
		t.Fatalf("%d runs were refused a mount each: %s, want a breach in the third", runs, kinds(n.audit("node")))
	}
	home := t.TempDir()
	readable(t, home)
	key, file, operators := filepath.Join(home, "key"), filepath.Join(home, "release"), filepath.Join(home, "operators")
	write(t, operators, n.must("operator", "keygen", "--out", key, "--name", "alice").stdout, 0o644)
	write(t, file, n.must("operator", "sign", "--key", key, "--action", "release-quarantine", "--subject", "agent:a").stdout, 0o644)
	n.must("agent", "release", "a", "--witness", file, "--operators", operators)
	try().want(t, 0, "exited")
	if got := n.must("agent", "show", "a", "--json").stdout; strings.Contains(got, "ring_breach") {
		t.Errorf("one refused mount after the release, and it is held again:\n%s", got)
	}
}
