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

const examples = "../../examples"

// TestExamples does in a copy of each folder of examples what its page says.
func TestExamples(t *testing.T) {
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
		if !strings.Contains(string(index), "("+e.Name()+"/README.md)") {
			t.Errorf("examples/README.md doesn't name %s", e.Name())
		}
		if e.Name() == "systemd" {
			continue // TestExampleOfSystemd
		}
		t.Run(e.Name(), func(t *testing.T) {
			needSandbox(t)
			need(t, hostcaps.Landlock(1))
			needProgram(t, "python3", "curl")
			doExample(t, e.Name(), workspace(t), (*exec.Cmd).Start)
		})
	}
}

// doExample does what the page of an example says, in a copy of its folder.
func doExample(t *testing.T, name, dir string, start func(*exec.Cmd) error) {
	t.Helper()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(examples, name))); err != nil {
		t.Fatal(err)
	}
	doPage(t, filepath.Join("examples", name, "README.md"), 2, dir, start)
}

// TestExampleOfSystemd does the same in a machine that has a service manager of its own.
func TestExampleOfSystemd(t *testing.T) {
	needSystemd(t)
	needProgram(t, "python3")
	m := bootSystemd(t, time.Minute)
	doExample(t, "systemd", filepath.Join(m.srv, "example"), func(cmd *exec.Cmd) error {
		cmd.Args = append(m.enter("/srv/example"), cmd.Args...)
		cmd.Env, cmd.Dir = m.environ(), ""
		var err error
		if cmd.Path, err = exec.LookPath(cmd.Args[0]); err != nil {
			return err
		}
		return cmd.Start()
	})
}
