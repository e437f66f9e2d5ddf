// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// unpackProbe runs it as root in a mount namespace of its own, or as another user, and returns what it could do.
func unpackProbe(t *testing.T, uid uint32, args ...string) (tried map[string]string, outside string) {
	t.Helper()
	top, err := os.MkdirTemp("", "confine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	bin, tree, outside, read := filepath.Join(top, "unpack"), filepath.Join(top, "tree"), filepath.Join(top, "outside"), filepath.Join(top, "read")
	build := exec.Command("go", "build", "-o", bin, "./testdata/unpack")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	err = errors.Join(os.Mkdir(tree, 0o755), os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "file"), []byte("secret"), 0o644), os.WriteFile(read, []byte("r"), 0o644), os.Chmod(top, 0o755))
	for _, path := range []string{tree, outside, filepath.Join(outside, "file")} {
		err = errors.Join(err, os.Chown(path, int(uid), int(uid)))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, append([]string{"-tree", tree, "-outside", outside, "-read", read}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := cmd.Output()
	tried = map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		tried[name] = result
	}
	if err != nil || tried["drop"] != "ok" {
		t.Fatalf("%v, %v", err, tried)
	}
	return tried, outside
}

// What unpacks for strangers can write its tree, and nothing else of the host, in any way; and reaches nobody where it needn't.
func TestThreatTakeoverUnpackGivesUp(t *testing.T) {
	need(t, hostcaps.Root, hostcaps.Seccomp, hostcaps.Landlock(2))
	for name, c := range map[string]struct {
		uid  uint32
		args []string
	}{"import by root": {}, "pull by root": {args: []string{"-network"}}, "import by a user": {uid: testUID}, "pull by a user": {uid: testUID, args: []string{"-network"}}} {
		t.Run(name, func(t *testing.T) {
			tried, outside := unpackProbe(t, c.uid, c.args...)
			works := 0
			for what, got := range tried {
				refused := []string{"EACCES", "EPERM", "EROFS", "EXDEV"}
				switch kind, _, _ := strings.Cut(what, " "); {
				case kind == "work" && got != "ok", kind == "try" && !slices.Contains(refused, got):
					t.Errorf("%s: %s", what, got)
				case kind == "work":
					works++
				}
			}
			if works < 8 || len(tried) < works+20 {
				t.Errorf("only %d lines, %d of what must work", len(tried), works)
			}
			list, err := os.ReadDir(outside)
			var st unix.Stat_t
			err = errors.Join(err, unix.Stat(filepath.Join(outside, "file"), &st))
			if err != nil || len(list) != 1 || st.Uid != c.uid || st.Mode&0o777 != 0o644 || st.Size != 6 || st.Nlink != 1 {
				t.Errorf("outside there is %v %+v, %v", list, st, err)
			}
		})
	}
}

// In the mount namespace of others it does nothing: what it makes read-only would be theirs.
func TestUnpackNeedsItsOwnMounts(t *testing.T) {
	need(t, hostcaps.Root)
	if err := closeMounts(t.TempDir()); err == nil || !strings.Contains(err.Error(), "mount namespace of this process's own") {
		t.Errorf("got %v", err)
	}
}
