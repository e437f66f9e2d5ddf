// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	python = "/usr/bin/python3"
	node   = "/usr/bin/node"
)

// Ordinary programs do their ordinary work, and none of it looks like an attack:
// a refused call would be counted against the agent (M-4).
func TestPrograms(t *testing.T) {
	needSandbox(t)
	writable := []string{"1", "2"}
	every := []string{"1", "2", "3"}
	for _, tt := range []struct {
		file  string   // of testdata/programs; started by name, so the shebang or the extension decides
		needs string   // a program the root must show
		also  []string // files beside it
		rings []string
		flags []string
		want  string
	}{
		{file: "threads.py", needs: python, rings: every, want: "120 285 timer"},
		{file: "ssl_import.py", needs: python, rings: every, want: "f8b69025fe73 32 CERT_REQUIRED"},
		{file: "tempfiles.py", needs: python, rings: every, want: "['a', 'archive.tar.gz']\nmap False\n16"},
		{file: "loop.py", needs: python, rings: every, want: "LOOPBACK 6 [0, 1, 2, 3, 4]"},
		{file: "subprocesses.py", needs: python, rings: writable, want: "A B\n7\nthrough cat\nfork [4, 9]\nspawn [4, 9]\nforkserver [4, 9]\nTrue 0"},
		{file: "install.py", needs: python, rings: []string{"1"}, want: "installed 42"},
		{file: "node.js", needs: node, rings: every, flags: []string{"--memory", "1G"}, want: "hello packed f8b69025fe73 42 true"},
		{file: "node_server.js", needs: node, also: []string{"node_child.js"}, rings: writable, flags: []string{"--memory", "1G"},
			want: "from /here\nchild 2\nforked { pid: true }\nexit 3"},
		{file: "java.sh", needs: "/usr/bin/javac", also: []string{"Java.java"}, rings: writable, flags: []string{"--memory", "1G"}, want: "hello 42 2c Default agent"},
		{file: "shell.sh", needs: "/usr/bin/bash", rings: writable,
			want: "apple,fig,pear\n3a4\n> 4\ndiffer 1\nthrough-fifo\nkilled 143\nhere string\nshell.sh\nshell.sh\npiped\ntimeout 124\n700\ntrapped\n0"},
		{file: "shell_nofork.sh", needs: "/usr/bin/bash", rings: every, want: "a2 b1 tar.gz\nkept"},
		{file: "git.sh", needs: "/usr/bin/git", rings: writable, want: "4\none\ntwo\n1 file changed, 1 insertion(+)"},
		{file: "compile.sh", needs: "/usr/bin/cc", rings: writable, flags: []string{"--memory", "1G"}, want: "compiled"},
	} {
		for _, ring := range tt.rings {
			t.Run(tt.file+" ring "+ring, func(t *testing.T) {
				needFile(t, tt.needs, "needed by "+tt.file)
				ws := folder(t)
				for _, f := range append([]string{tt.file}, tt.also...) {
					copyFile(t, filepath.Join("testdata", "programs", f), filepath.Join(ws, f))
					// By extension a shell script is sh's, so bash needs its shebang to count.
					if strings.HasSuffix(f, ".sh") {
						if err := os.Chmod(filepath.Join(ws, f), 0o755); err != nil {
							t.Fatal(err)
						}
					}
				}
				r := sandbox(t, time.Minute, append([]string{"--ring", ring, "--workspace", ws}, tt.flags...), []string{tt.file})
				if r.exit != 0 || strings.TrimSpace(r.stdout) != tt.want {
					t.Errorf("exit %d (%s %s), got:\n%s\nwant:\n%s\nstderr: %s", r.exit, r.status.State, r.status.Reason, r.stdout, tt.want, tail(r.stderr))
				}
				if len(r.status.Refused) > 0 {
					t.Errorf("an ordinary program raises alarms:\n%s", r.status.refusals())
				}
			})
		}
	}
}

// What ring 1 installs is there for the run and gone after it: in the next run, and on the host.
func TestInstallIsGone(t *testing.T) {
	needSandbox(t)
	needFile(t, python, "Debian's python3")
	ws := folder(t)
	copyFile(t, "testdata/programs/install.py", filepath.Join(ws, "install.py"))
	for run := range 2 {
		// The program itself fails when it finds an earlier run's files.
		r := sandbox(t, time.Minute, []string{"--ring", "1", "--workspace", ws}, []string{"install.py"})
		if r.exit != 0 || strings.TrimSpace(r.stdout) != "installed 42" {
			t.Errorf("run %d: exit %d, got %q\nstderr: %s", run, r.exit, r.stdout, tail(r.stderr))
		}
	}
	for _, p := range []string{"/usr/local/bin/agentrun-compat", "/usr/local/lib/python3.11/dist-packages/agentrun_compat"} {
		if _, err := os.Lstat(p); !os.IsNotExist(err) {
			t.Errorf("%s on the host: got %v, want that it does not exist", p, err)
		}
	}
	// Ring 2 has no such root.
	r := sandbox(t, time.Minute, []string{"--ring", "2", "--workspace", ws}, []string{"install.py"})
	if r.exit == 0 || !strings.Contains(r.stderr, "Read-only file system") {
		t.Errorf("ring 2: exit %d, want a refusal by the read-only root; stderr: %s", r.exit, tail(r.stderr))
	}
}

// A Go program as a user has it: dynamically linked where cgo is on, started from the workspace.
func TestGoProgram(t *testing.T) {
	needSandbox(t)
	compiler, err := exec.LookPath("go")
	if err != nil {
		unmet(t, "the Go toolchain: "+err.Error())
	}
	ws := folder(t)
	bin := filepath.Join(ws, "goprogram")
	if out, err := exec.Command(compiler, "build", "-o", bin, "./testdata/goprogram").CombinedOutput(); err != nil {
		t.Fatalf("build testdata/goprogram: %v\n%s", err, out)
	}
	for _, ring := range []string{"1", "2"} {
		r := sandbox(t, time.Minute, []string{"--ring", ring, "--workspace", ws}, []string{"/workspace/goprogram"})
		const want = "sum 2016\nfile\nhttp /path\nchild\nuser defined signal 1"
		if r.exit != 0 || strings.TrimSpace(r.stdout) != want {
			t.Errorf("ring %s: exit %d, got:\n%s\nwant:\n%s\nstderr: %s", ring, r.exit, r.stdout, want, tail(r.stderr))
		}
		if len(r.status.Refused) > 0 {
			t.Errorf("ring %s: an ordinary program raises alarms:\n%s", ring, r.status.refusals())
		}
	}
}
