// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"agentrun/fsjail"
	"agentrun/profiles"
	"agentrun/seccomp"
)

func shapeOfChanged(t *testing.T, p *Plan, change func(*Plan)) string {
	t.Helper()
	change(p)
	s, err := p.Shape()
	if err != nil {
		t.Fatal(err)
	}
	return s.Key()
}

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
			Wayout: &PlanWayout{Tools: "a", Capture: []uint16{80, 443}},
		}
	}
	work := fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: "/home/x"}
	key := func(change func(*Plan)) string { return shapeOfChanged(t, base(), change) }
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
		"no way out": func(p *Plan) { p.Wayout = nil },
		"ports":      func(p *Plan) { p.Wayout.Capture = append(p.Wayout.Capture, 8443) },
		"socket":     func(p *Plan) { p.Wayout.Socket = toolsSocket },
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
		"CA":     func(p *Plan) { p.Wayout.CA = true },
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
	if now, err := s.Renewed(); err != nil || now.key == s.key || now.of != nil || now.holds() != nil {
		t.Errorf("renewed: got %+v, %v, want another key that holds, of no plan", now, err)
	}
	if _, err := (Shape{}).Renewed(); !errors.Is(err, errNoShape) {
		t.Errorf("the zero shape: got %v, want %v", err, errNoShape)
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

// A process that waits behind its walls suits a run with the same walls only.
func TestShapeOfAProcessThatWaits(t *testing.T) {
	key := func(change func(*Plan)) string { return shapeOfChanged(t, &Plan{}, change) }
	same := key(func(*Plan) {})
	waits := func(p *Plan) {
		p.profile.Syscalls = []profiles.SyscallRule{{Names: []string{"chdir", "landlock_restrict_self"}, Action: profiles.ActionAllow}}
		p.filterSum = seccomp.Filter{Unlisted: seccomp.Notify}.Digest()
		p.Landlock.Rules = []fsjail.LandlockRule{{Path: "/", Access: 1}, {Path: workspaceDir, Access: 2}}
		p.Rlimits = []PlanRlimit{{Name: "core", resource: 4}}
	}
	walls := map[string]string{same: "none"}
	for name, change := range map[string]func(*Plan){
		"none else": func(*Plan) {},
		"filter":    func(p *Plan) { p.filterSum = seccomp.Filter{Unlisted: seccomp.KillProcess}.Digest() },
		"rule":      func(p *Plan) { p.Landlock.Rules[0].Access = 3 },
		"rights":    func(p *Plan) { p.Landlock.FS = 7 },
		"scopes":    func(p *Plan) { p.Landlock.Scoped = 1 },
		"limit":     func(p *Plan) { p.Rlimits[0].Value = 1 },
		"resource":  func(p *Plan) { p.Rlimits[0].resource = 5 },
		"killable":  func(p *Plan) { p.Seccomp.WaitKillable = true },
	} {
		k := key(func(p *Plan) { waits(p); change(p) })
		if other, ok := walls[k]; ok {
			t.Errorf("%s: the shape of %s", name, other)
		}
		walls[k] = name
	}
	if walls[key(func(p *Plan) { waits(p); p.Landlock.Rules[1].Access = 4 })] != "none else" {
		t.Error("the workspace's rule, which is added when the sandbox is handed out, makes another shape")
	}
	for name, change := range map[string]func(*Plan){
		"no filter":     func(p *Plan) { p.filterSum = [32]byte{} },
		"terminal":      func(p *Plan) { p.TTY = true },
		"mode tools":    func(p *Plan) { p.profile.Subprocess.Mode = profiles.SubprocessTools },
		"no chdir":      func(p *Plan) { p.profile.Syscalls[0].Names = p.profile.Syscalls[0].Names[1:] },
		"asks at chdir": func(p *Plan) { p.profile.Syscalls[0].Action = profiles.ActionNotify },
		"some chdir":    func(p *Plan) { p.profile.Syscalls[0].Args = []profiles.ArgCond{{}} },
		"no restrict":   func(p *Plan) { p.profile.Syscalls[0].Names = p.profile.Syscalls[0].Names[:1] },
	} {
		p := &Plan{}
		waits(p)
		change(p)
		if s, err := p.Shape(); err != nil || s.waits {
			t.Errorf("%s: %v, waits %v, want a process that is made with its run", name, err, s.waits)
		}
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

// Whatever a plan or an entry gets for a field, it is in the key or it stands here with a reason.
func TestShapeKeyCountsEveryField(t *testing.T) {
	base := func() *Plan {
		return &Plan{Entries: []fsjail.Entry{{Kind: fsjail.Dir, Target: "/d", Owner: &fsjail.Owner{UID: 1, GID: 2}}}}
	}
	key := (*Plan).shapeKey
	seen := map[string]string{key(base()): "nothing"}
	count := func(name string, p *Plan) {
		k := key(p)
		if other, ok := seen[k]; ok {
			t.Errorf("%s: the key of %s", name, other)
		}
		seen[k] = name
	}
	for i := range reflect.TypeFor[fsjail.Entry]().NumField() {
		p := base()
		field := reflect.ValueOf(&p.Entries[0]).Elem().Field(i)
		if field.Kind() == reflect.Pointer {
			field.SetZero()
		} else {
			change(t, field)
		}
		count("entry."+reflect.TypeFor[fsjail.Entry]().Field(i).Name, p)
	}
	for i := range reflect.TypeFor[fsjail.Owner]().NumField() {
		p := base()
		change(t, reflect.ValueOf(p.Entries[0].Owner).Elem().Field(i))
		count("owner."+reflect.TypeFor[fsjail.Owner]().Field(i).Name, p)
	}
	// What is not exported is no part of a plan as it is digested, here and elsewhere (sum).
	for i := range reflect.TypeFor[Plan]().NumField() {
		about := reflect.TypeFor[Plan]().Field(i)
		switch about.Name {
		case "Rlimits", "Landlock", "Seccomp": // of the process that waits: TestShape
			continue
		}
		if !about.IsExported() {
			continue
		}
		p := base()
		field := reflect.ValueOf(p).Elem().Field(i)
		switch about.Name {
		case "Limits": // but for the scratch they are set when a sandbox is handed out
			p.Limits.ScratchSize++
		case "Entries":
			p.Entries = append(p.Entries, fsjail.Entry{})
		default:
			change(t, field)
		}
		count("plan."+about.Name, p)
	}
	// One value is not two.
	p, q := base(), base()
	p.Entries[0].Source, p.Entries[0].Content = "ab", "c"
	q.Entries[0].Source, q.Entries[0].Content = "a", "bc"
	count("ab, c", p)
	count("a, bc", q)
}

// change makes any value another one.
func change(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		change(t, v.Field(0))
	default:
		t.Fatalf("a field of kind %s: say here how it is changed", v.Kind())
	}
}

// H-27: what a run is on record by. Each value of a plan is in it, whatever a plan gets for fields, but for what differs between two runs
// of the same thing and for the text of files.
func TestPlanDigestCountsEveryField(t *testing.T) {
	full := func() *Plan {
		p := new(Plan)
		fill(t, reflect.ValueOf(p).Elem())
		return p
	}
	outside := map[string]bool{"Plan.ID": true, "Plan.Parent": true, "Plan.Cgroup": true, "Plan.Digest": true, "Plan.Entries.Content": true}
	want := full().sum()
	if again := full().sum(); again != want {
		t.Fatalf("the same plan: %s and %s", want, again)
	}
	seen := map[string]string{want: "nothing"}
	n := 0
	var each func(path string, at func(*Plan) reflect.Value)
	each = func(path string, at func(*Plan) reflect.Value) {
		v := at(full())
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					each(path+"."+f.Name, func(p *Plan) reflect.Value { return at(p).Field(i) })
				}
			}
			return
		case reflect.Pointer:
			each(path, func(p *Plan) reflect.Value { return at(p).Elem() })
		case reflect.Slice:
			each(path, func(p *Plan) reflect.Value { return at(p).Index(0) })
		}
		p := full()
		if v = at(p); v.Kind() == reflect.Pointer {
			v.SetZero()
		} else {
			change(t, v)
		}
		n++
		digest := p.sum()
		if other, ok := seen[digest]; ok != outside[path] {
			t.Errorf("%s: the digest of %q", path, other)
		} else if !ok {
			seen[digest] = path
		}
	}
	each("Plan", func(p *Plan) reflect.Value { return reflect.ValueOf(p).Elem() })
	if n < 100 {
		t.Errorf("%d values changed", n)
	}
}

// fill gives every exported field below v a value that isn't its zero.
func fill(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	default:
		change(t, v)
	}
}
