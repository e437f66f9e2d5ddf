// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
)

// TestExamples does in a copy of each folder of examples what its page says.
func TestExamples(t *testing.T) {
	const examples = "../../examples"
	index, err := os.ReadFile(filepath.Join(examples, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(examples)
	if err != nil {
		t.Fatal(err)
	}
	folders := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
	if len(folders) < 7 {
		t.Fatalf("got %d folders: a check of nothing is no check", len(folders))
	}
	for _, e := range folders {
		t.Run(e.Name(), func(t *testing.T) {
			if !strings.Contains(string(index), "("+e.Name()+"/README.md)") {
				t.Error("examples/README.md doesn't name it")
			}
			dir, start := workspace(t), (*exec.Cmd).Start
			if e.Name() == "systemd" {
				dir, start = onSystemd(t)
			}
			needSandbox(t)
			need(t, hostcaps.Landlock(1))
			needProgram(t, "python3", "curl")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(examples, e.Name()))); err != nil {
				t.Fatal(err)
			}
			doPage(t, filepath.Join("examples", e.Name(), "README.md"), 2, dir, start)
		})
	}
}

// onSystemd returns a folder of a machine with a service manager of its own, and what starts commands there.
func onSystemd(t *testing.T) (dir string, start func(*exec.Cmd) error) {
	t.Helper()
	needSystemd(t)
	m := bootSystemd(t, time.Minute)
	dir = filepath.Join(m.srv, "example")
	return dir, func(cmd *exec.Cmd) error {
		cmd.Args = append(m.enter("/srv/example"), cmd.Args...)
		cmd.Env, cmd.Dir = m.environ(), ""
		var err error
		if cmd.Path, err = exec.LookPath(cmd.Args[0]); err != nil {
			return err
		}
		return cmd.Start()
	}
}
