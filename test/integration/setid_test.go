// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// rewrite stores into a shared mapping of the file: write(2) would take the bits away, this doesn't (A-M1).
const rewrite = `import mmap,os
f=os.open("/workspace/deep/program",os.O_RDWR)
m=mmap.mmap(f,0)
m[:5]=b"agent"
m.flush()
print("stored")`

// THREATS "paths the host follows": a program with a set-ID bit or capabilities in a folder that the run may write.
func TestSetIDFilesAreNotRewritten(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "python3")
	for _, c := range []struct {
		name    string
		flags   []string
		mode    uint32
		caps    bool
		owner   int
		refused bool
	}{
		{"workspace, set-uid", []string{"--ring", "2", "--workspace", "WS"}, 0o4755, false, owner, true},
		{"workspace, set-gid", []string{"--ring", "1", "--workspace", "WS"}, 0o2755, false, owner, true},
		{"workspace, capability", []string{"--ring", "2", "--workspace", "WS"}, 0o755, true, owner, true},
		{"bind", []string{"--ring", "2", "--bind", "WS:/workspace"}, 0o4755, false, owner, true},
		{"bind of the file", []string{"--ring", "2", "--bind", "WS/deep/program:/workspace/deep/program"}, 0o4755, false, owner, true},
		{"read-only", []string{"--ring", "3", "--workspace", "WS"}, 0o4755, false, owner, false},
		{"somebody else's", []string{"--ring", "2", "--workspace", "WS"}, 0o4755, false, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := workspace(t)
			file := write(t, filepath.Join(ws, "deep", "program"), "the host's program", 0o755)
			for _, at := range []string{filepath.Dir(file), file} {
				if err := os.Chown(at, c.owner, c.owner); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Chmod(file, c.mode); err != nil {
				t.Fatal(err)
			}
			if c.caps {
				if err := unix.Setxattr(file, "security.capability", []byte("\x01\x00\x00\x02\x00\x00\x20\x00"+strings.Repeat("\x00", 12)), 0); err != nil {
					t.Fatal(err)
				}
			}
			call := func(more ...string) result {
				args := []string{"exec"}
				for _, f := range append(more, c.flags...) {
					args = append(args, strings.Replace(f, "WS", ws, 1))
				}
				return tool(t, append(args, "--", "/usr/bin/python3", "-c", rewrite)...)
			}
			r := call()
			b, err := os.ReadFile(file)
			if string(b) != "the host's program" {
				t.Errorf("the program is rewritten, %v\n%s%s", err, r.stdout, r.stderr)
			}
			var st unix.Stat_t
			if err := unix.Lstat(file, &st); err != nil || st.Mode&0o7777 != c.mode {
				t.Errorf("mode %o, %v", st.Mode, err)
			}
			if !c.refused {
				if r.exit == 125 {
					t.Errorf("the run was refused, though it could not write the file\n%s", r.stderr)
				}
				return
			}
			if r.exit != 125 || !strings.Contains(r.stderr, file) || !strings.Contains(r.stderr, "hint: ") || !strings.Contains(r.stderr, "chmod") {
				t.Errorf("got exit %d, want 125, the file's name and the way out\n%s", r.exit, r.stderr)
			}
			// Somebody who insists is told.
			r = call("--best-effort")
			if r.exit != 0 || !strings.Contains(r.stdout, "stored") || !strings.Contains(r.stderr, "best effort: running without set-id-files") {
				t.Errorf("--best-effort: got exit %d\n%s%s", r.exit, r.stdout, r.stderr)
			}
			if log := tool(t, "audit", "show", "--json"); !strings.Contains(log.stdout, "set-id-files") {
				t.Error("the audit doesn't say that the run went on without")
			}
		})
	}
}

// The look goes through what an agent may have made: folders of long names make each one in the last of them a path of 4 KiB, which a daemon
// would keep for each.
func TestSetIDLookKeepsFewPaths(t *testing.T) {
	need(t, hostcaps.IDMappedMounts(base))
	ws := workspace(t)
	at := filepath.Join(ws, strings.Repeat(strings.Repeat("d", 250)+"/", 14))
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for i := range 64<<20/len(at) + 1000 {
		if err := unix.Mkdirat(int(dir.Fd()), fmt.Sprint(i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if r := tool(t, "exec", "--ring", "2", "--workspace", ws, "--no-gateway", "--", "/bin/true"); r.exit != 125 || !strings.Contains(r.stderr, "bytes of folders' paths") {
		t.Errorf("exit %d %.300s", r.exit, r.stderr)
	}
}

// A ring 3 run is looked at when its workspace would be opened for writing, not before.
func TestSetIDFilesStopAnElevation(t *testing.T) {
	p := newPlace(t)
	need(t, hostcaps.IDMappedMounts(base))
	p.must("agent", "score", "setid", "0.9")
	ws := workspace(t)
	file := write(t, filepath.Join(ws, "program"), "x", 0o755)
	if err := errors.Join(os.Chown(file, owner, owner), unix.Chmod(file, 0o4755)); err != nil {
		t.Fatal(err)
	}
	c := p.at(prepare(t, opts{profile: "ring3", flags: []string{"-d", "--name", "setid", "--agent", "setid", "--workspace", ws, "--no-gateway"}}, "/probe", "sleep", "200"))
	if out, err := c.output(); err != nil {
		t.Fatalf("%v: %s%s", err, out, c.errOut.String())
	}
	p.refused("not_elevatable", "elevate", "setid", "--to", "2", "--reason", "a test")
	if r := p.do("elevate", "setid", "--to", "2", "--reason", "a test"); !strings.Contains(r.stderr, file) {
		t.Errorf("the refusal doesn't name the file:\n%s", r.stderr)
	}
	if err := unix.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	p.must("elevate", "setid", "--to", "2", "--reason", "a test")
	p.must("kill", "setid")
	eventually(t, 10*time.Second, "the run ends", func() bool { return !bytes.Contains([]byte(p.do("ps").stdout), []byte("setid")) })
}
