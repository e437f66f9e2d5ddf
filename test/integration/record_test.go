// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// copied is the node again, as somebody would have it who restores a backup.
func (n node) copied() node {
	n.t.Helper()
	dir := filepath.Join(n.t.TempDir(), "state")
	if out, err := exec.Command("cp", "-a", n.dir, dir).CombinedOutput(); err != nil {
		n.t.Fatalf("cp: %v\n%s", err, out)
	}
	return node{n.t, dir}
}

// H-26 (A-M9): somebody takes entries, notes or both away, or puts old ones in their place. The key is
// nowhere needed. Each row says what `audit verify` makes of it, and what the next run then does: go on with
// a record of the loss, or get no signature.
func TestH26RecordWithoutItsCheckpoint(t *testing.T) {
	n := newNode(t)
	n.must("agent", "score", "a", "0.7")
	n.must("session", "create", "s")
	n.must("session", "join", "s", "--agent", "a")
	run(t, n.opts(), "/probe", "exit", "0")
	run(t, n.opts("--agent", "a", "--session", "s"), "/probe", "exit", "0")
	early := n.copied()
	run(t, n.opts(), "/probe", "exit", "0")
	run(t, n.opts("--agent", "a", "--session", "s"), "/probe", "exit", "0")
	n.audit("node")
	const cut = "f=audit/node/000001.jsonl; head -n -2 $f > x; cat x > $f; rm x"
	for _, c := range []struct {
		name, deed string
		exit       int
		code       string // of the problem, "" if none is seen
		lost       string // cause of the record that the next run leaves; "-": it gets no signature
	}{
		{"note removed", "rm checkpoints/node", 1, "unsigned", "removed"},
		{"note of a session removed", "rm checkpoints/session-s", 1, "unsigned", "removed"},
		{"all notes removed", "rm -r checkpoints", 1, "unsigned", "removed"},
		{"end cut off", cut, 1, "truncated", "-"},
		{"end cut off, note removed", cut + "; rm checkpoints/node", 1, "truncated", "-"},
		{"log and note put back", "rm -r audit checkpoints; cp -a $EARLY/audit $EARLY/checkpoints .", 1, "truncated", "-"},
		{"one chain and its note put back", "rm -r audit/node; cp -a $EARLY/audit/node audit; cp $EARLY/checkpoints/node checkpoints", 1, "truncated", "-"},
		{"note put back, end cut off", "cp $EARLY/checkpoints/node checkpoints/node; " + cut, 1, "truncated", "-"},
		{"chain and note of a session removed", "rm -r audit/session-s checkpoints/session-s", 1, "truncated", "-"},
		{"all chains and notes removed", "rm -r audit checkpoints", 1, "truncated", "-"},
		{"note and state removed", "rm state.db checkpoints/node", 1, "unsigned", "removed"},
		{"note, state and key removed", "rm -r state.db checkpoints keys", 1, "unsigned", "removed"},
		// What must not be taken for an attack.
		{"nothing", "true", 0, "", ""},
		// So a crash leaves it; the state still holds the chain to all that was signed.
		{"note put back, log whole", "cp $EARLY/checkpoints/node checkpoints/node", 0, "", ""},
		{"state lost", "rm state.db", 0, "", ""},
		{"state from a backup", "cp $EARLY/state.db state.db", 0, "", ""},
		// Root with everything at hand: nothing here can tell it from the past itself. A note kept elsewhere
		// does.
		{"all put back", "rm -r audit checkpoints; cp -a $EARLY/audit $EARLY/checkpoints $EARLY/state.db .", 0, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := n.copied()
			m.t = t
			sh := exec.Command("sh", "-ec", c.deed)
			sh.Dir, sh.Env = m.dir, append(os.Environ(), "EARLY="+early.dir)
			if out, err := sh.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m.verifies(c.exit, c.code)
			if c.exit == 0 {
				return
			}
			session := strings.Contains(c.name, "session")
			o, chain := m.opts(), "node"
			if session {
				o, chain = m.opts("--agent", "a", "--session", "s"), "session-s"
			}
			run(t, o, "/probe", "exit", "0")
			if strings.Contains(c.name, "all notes") {
				run(t, m.opts("--agent", "a", "--session", "s"), "/probe", "exit", "0")
			}
			if c.lost == "-" {
				m.verifies(1, "") // nobody has signed over it
				if r := m.do("audit", "checkpoint", "--chain", chain); r.exit != 1 {
					t.Errorf("audit checkpoint: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
				}
				// An operator who knows why goes on, and says so.
				m.must("audit", "checkpoint", "--chain", chain, "--accept-loss")
				c.lost = "accepted by=uid:0"
				if strings.Contains(c.deed, "-r audit ") {
					m.must("audit", "checkpoint", "--session", "s", "--accept-loss")
				}
			}
			if strings.Contains(c.name, "key removed") {
				m.must("audit", "checkpoint", "--session", "s") // the same case, and the state no longer knows the session
			}
			m.verifies(0, "")
			r := m.must("audit", "show", "--chain", chain, "--kind", "checkpoint_lost")
			cause, by, _ := strings.Cut(c.lost, " ")
			if !strings.Contains(r.stdout, "cause="+cause) || !strings.Contains(r.stdout, by) {
				t.Errorf("record of the loss: got %q, want %s", r.stdout, c.lost)
			}
		})
	}
}

// verifies is what `audit verify --all` has to say.
func (n node) verifies(exit int, code string) {
	n.t.Helper()
	r := n.do("audit", "verify", "--all")
	if r.exit != exit || code != "" && !strings.Contains(r.stdout, ": "+code+": ") {
		n.t.Errorf("audit verify --all: exit %d, want %d %s\n%s%s", r.exit, exit, code, r.stdout, r.stderr)
	}
}

// H-26 (A-M9): what is young, or died before its first checkpoint, isn't accused.
func TestH26YoungRecordIsSound(t *testing.T) {
	n := newNode(t)
	n.verifies(0, "") // there is nothing
	n.must("audit", "key")
	n.verifies(0, "") // a key, and nothing signed by it yet
	c := prepare(t, n.opts(), "/probe", "stubborn")
	c.startUntil(t, "ready")
	_ = c.Process.Signal(unix.SIGKILL)
	_ = c.Wait()
	n.verifies(0, "")
	run(t, n.opts(), "/probe", "exit", "0")
	if k := kinds(n.audit("node")); k != "ring_check sandbox_start ring_check sandbox_start sandbox_end" {
		t.Errorf("audit: %s", k)
	}
}
