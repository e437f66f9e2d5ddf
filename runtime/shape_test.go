// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"agentrun/fsjail"
)

// Only what the first half of a launch needs is in a shape; whatever else it reads must change the key.
func TestShape(t *testing.T) {
	shown := filepath.Join(t.TempDir(), "shown")
	if err := os.WriteFile(shown, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	base := func() *Plan {
		return &Plan{
			ID: newID(), Hostname: "sandbox", UID: agentID, Namespaces: []string{"user", "pid"}, ProcOptions: "subset=pid",
			Limits: PlanLimits{ScratchSize: 1 << 20, Memory: 1 << 28, PIDs: 64, CPU: 0.5},
			Entries: []fsjail.Entry{
				{Kind: fsjail.File, Target: "/etc/hosts", Content: "x"},
				{Kind: fsjail.Bind, Target: "/shown", Source: shown, IsFile: true},
			},
			Exit: &PlanExit{Tools: "a", Capture: []uint16{80, 443}},
		}
	}
	work := fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: "/home/x"}
	key := func(change func(*Plan)) string {
		t.Helper()
		p := base()
		change(p)
		s, err := p.Shape()
		if err != nil {
			t.Fatal(err)
		}
		return s.Key()
	}
	same := key(func(*Plan) {})
	for name, change := range map[string]func(*Plan){
		"command": func(p *Plan) { p.Command.Exe, p.Env, p.Cwd, p.TTY = "/x", []string{"A=b"}, "/y", true },
		"whose":   func(p *Plan) { p.Name, p.Agent, p.Session = "a", "b", "c" },
		"limits":  func(p *Plan) { p.Limits.Memory, p.Limits.CPU, p.Limits.PIDs, p.Limits.Timeout = 1, 1, 1, 1 },
		"rules":   func(p *Plan) { p.Landlock.FS, p.Profile, p.Subprocess = 1, "strict", true },
	} {
		if key(change) != same {
			t.Errorf("%s: another shape, want the same", name)
		}
	}
	seen := map[string]string{same: "none"}
	for name, change := range map[string]func(*Plan){
		"content":    func(p *Plan) { p.Entries[0].Content = "y" },
		"entry":      func(p *Plan) { p.Entries = append(p.Entries, fsjail.Entry{Kind: fsjail.Dir, Target: "/d"}) },
		"scratch":    func(p *Plan) { p.Limits.ScratchSize++ },
		"namespaces": func(p *Plan) { p.Namespaces = p.Namespaces[:1] },
		"hostname":   func(p *Plan) { p.Hostname = "other" },
		"proc":       func(p *Plan) { p.ProcOptions = "" },
		"root":       func(p *Plan) { p.WritableRoot = true },
		"no exit":    func(p *Plan) { p.Exit = nil },
		"ports":      func(p *Plan) { p.Exit.Capture = append(p.Exit.Capture, 8443) },
		"socket":     func(p *Plan) { p.Exit.Socket = toolsSocket },
		"workspace":  func(p *Plan) { p.Entries = append(p.Entries, work) },
	} {
		k := key(change)
		if other, ok := seen[k]; ok {
			t.Errorf("%s: the shape of %s", name, other)
		}
		seen[k] = name
	}
	// Which folder is the workspace is said at the hand-out, and so is the command in it.
	if key(func(p *Plan) {
		p.Entries = append(p.Entries, work, fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir + "/a", Source: "/b", IsFile: true, Exec: true})
	}) != key(func(p *Plan) { p.Entries = append(p.Entries, work) }) {
		t.Error("another folder is another shape")
	}
	for name, change := range map[string]func(*Plan){
		"custom": func(p *Plan) { p.custom = true },
		"keep":   func(p *Plan) { p.Keep = "x" },
		"CA":     func(p *Plan) { p.Exit.CA = true },
		"one file": func(p *Plan) {
			p.Entries = append(p.Entries, fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir + "/a", Source: "/b", IsFile: true})
		},
	} {
		p := base()
		change(p)
		if _, err := p.Shape(); !errors.Is(err, ErrOwnShape) {
			t.Errorf("%s: got %v, want %v", name, err, ErrOwnShape)
		}
	}
	// A file that was replaced is another one: the sandbox that waits shows the old one.
	p := base()
	s, err := p.Shape()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.holds(), os.Rename(shown, shown+".old"), os.WriteFile(shown, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.holds(); !errors.Is(err, ErrShapeChanged) {
		t.Errorf("a replaced file: got %v, want %v", err, ErrShapeChanged)
	}
	if _, err := Prepare(s, PrepareOptions{RunDir: t.TempDir()}); !errors.Is(err, ErrShapeChanged) {
		t.Errorf("prepare: got %v, want %v", err, ErrShapeChanged)
	}
	if _, err := Prepare(Shape{}, PrepareOptions{}); err == nil {
		t.Error("the zero shape was prepared")
	}
	// A plan that was made for a sandbox that is not there any more fails; it is not run elsewhere without a word.
	gone := &Prepared{shape: s.Kept(), id: newID(), l: &launch{}, pid1: -1, taken: true}
	if err := s.Use(gone); err != nil || p.ID != gone.id || p.Cgroup != cgroupParent+"/"+gone.id {
		t.Errorf("use: %v, id %s in %s", err, p.ID, p.Cgroup)
	}
	if err := s.Kept().Use(gone); err == nil {
		t.Error("a kept shape made no plan use a sandbox")
	}
	if gone.Alive() || gone.Close() != nil {
		t.Error("a sandbox that was taken is taken again")
	}
}

func TestShapeWithWorkspace(t *testing.T) {
	p := &Plan{Entries: []fsjail.Entry{{Kind: fsjail.Bind, Target: workspaceDir, Source: "/home"}}}
	s, err := p.Shape()
	if err != nil {
		t.Fatal(err)
	}
	without, err1 := s.WithWorkspace(false)
	with, err2 := without.WithWorkspace(true)
	if err := errors.Join(err1, err2); err != nil || with.Key() != s.Key() || without.Key() == s.Key() {
		t.Errorf("%v: %s, %s, %s", err, s.Key(), without.Key(), with.Key())
	}
}
