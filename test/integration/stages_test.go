// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// M-2: runs of a daemon share the parts of their view that nobody can change. Each sees what the first one saw, which shared nothing, and
// the host's files as they are at its start; what one tries on them, the next doesn't find.
func TestM2StagedViews(t *testing.T) {
	n := newDaemon(t)
	n.start(t, "--pool-max", "0")
	src := filepath.Join(t.TempDir(), "conf")
	write(t, src, "first", 0o644)
	look := `cat /etc/conf; (cd / && find etc dev proc/sys sys -maxdepth 3 -printf '%p %M %U:%G %l\n' | sort; cat etc/passwd etc/hosts proc/sys/kernel/pid_max)`
	attack := `for f in /etc/passwd /etc/conf /etc/ssl/openssl.cnf /proc/sys/kernel/pid_max; do (echo x > $f) 2>/dev/null && echo wrote $f; rm -f $f 2>/dev/null && echo removed $f; done
		for d in /etc /dev /proc/sys /etc/ssl; do (: > $d/new) 2>/dev/null && echo made $d; chmod 777 $d 2>/dev/null && echo changed $d; done
		mount -o remount,rw /etc 2>/dev/null && echo mounted; umount /etc 2>/dev/null && echo unmounted; grep -c ' /etc ro,' /proc/self/mountinfo; true`
	run := func(script string) string {
		t.Helper()
		r := n.exec(t, opts{profile: "ring2", flags: []string{"--ro-bind", src + ":/etc/conf", "--on-breach", "record"}}, "sh", "-c", script)
		if r.exit != 0 {
			t.Fatalf("exit %d %s", r.exit, r.stderr)
		}
		return r.stdout
	}
	whole := run(look)
	for i := range 3 {
		want := "0\n"
		if staged(t) && i > 0 {
			want = "1\n"
		}
		if got := run(attack); got != want && i > 0 {
			t.Errorf("the attack, once more: %q, want %q", got, want)
		}
		if got := run(look); got != whole {
			t.Errorf("run %d sees\n%s\nnot\n%s", i, got, whole)
		}
	}
	write(t, src+".new", "second", 0o644)
	if err := os.Rename(src+".new", src); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := run(look); got != strings.Replace(whole, "first", "second", 1) {
			t.Errorf("after the file was replaced:\n%s", got)
		}
	}
	n.drain(t)
}

// M-2: what a run sees, and may do with it, doesn't go by the umask that agentrun was started with.
func TestM2ViewWhateverTheUmask(t *testing.T) {
	needSandbox(t)
	for _, ring := range []string{"ring1", "ring2"} {
		see := func(umask string) string {
			t.Helper()
			o := opts{profile: ring, under: []string{"/bin/sh", "-c", "umask " + umask + `; exec "$@"`, "sh"}, flags: []string{"--no-gateway"}}
			r := run(t, o, "sh", "-c", "cd /; umask; find . -maxdepth 3 -path ./proc/[0-9]\\* -prune -o -path ./usr -prune -o -printf '%p %M %U:%G\\n' | sort")
			if r.exit != 0 {
				t.Fatalf("exit %d %s", r.exit, r.stderr)
			}
			return r.stdout
		}
		if with, without := see("077"), see("022"); with != without {
			t.Errorf("%s, with umask 077\n%s\nwithout\n%s", ring, with, without)
		}
	}
}

// staged says whether this kernel copies detached mounts (Linux 6.15), of which stages are made.
func staged(t *testing.T) bool {
	t.Helper()
	var major, minor int
	if _, err := fmt.Sscanf(hostcaps.Release(), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}
