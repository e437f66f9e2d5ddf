// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
)

func write(t testing.TB, dir, name, src string) string {
	t.Helper()
	file := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestGoldenErrors: each broken file in testdata/errors says all that is wrong with it, with file:line and path (M-3).
func TestGoldenErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	s := compiledSchema(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			problems := ValidateFile(Sources{}, file)
			if len(problems) == 0 {
				t.Fatal("no problem found")
			}
			var b strings.Builder
			for _, p := range problems {
				fmt.Fprintln(&b, p)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// What the schema refuses the loader refuses; the reverse does not hold. Here the files of wrong shape:
			src, _ := os.ReadFile(file)
			shape := []string{"types", "text", "list", "orphan", "empty", "syntax"}
			if name := strings.TrimSuffix(filepath.Base(file), ".yaml"); slices.Contains(shape, name) && schemaAccepts(t, s, string(src)) == nil {
				t.Error("the schema accepts it")
			}
		})
	}
}

const web = `
name: web
description: a small web agent
extends: ring2
limits:
  memory: 768MB
  why: keeps an index in memory
files:
  etc:
    - {path: /etc/magic, why: mine}
    - {path: /etc/gnuplot, why: draws charts}
  why: charts
environment:
  set:
    - {name: LANG, value: de_DE.UTF-8, why: German}
syscalls:
  - {names: [shmget, shmat], action: notify, why: "nothing of ours shares memory"}
  - {names: [userfaultfd], floor: true, action: kill, why: "stricter than base; base's floor comes first"}
`

// TestExtends: scalars override, lists join by key, rules of the child come first, floors before all.
func TestExtends(t *testing.T) {
	dir := t.TempDir()
	src := strings.ReplaceAll(web, "  - {names: [userfaultfd], floor: true, action: kill, why: \"stricter than base; base's floor comes first\"}\n",
		"  - {names: [getpid], floor: true, action: notify, why: floor of ours}\n")
	write(t, dir, "web", src)
	p, err := Load(Sources{Dirs: []string{dir}}, "web")
	if err != nil {
		t.Fatal(err)
	}
	parent := builtinProfile(t, "ring2")
	if p.Limits.Memory != 768*MiB || p.Limits.CPU != parent.Limits.CPU || p.Network != parent.Network || p.Extends != "ring2" || p.Ring != 2 {
		t.Errorf("scalars: %+v %+v", p.Limits, p.Network)
	}
	if n := len(p.Files.Etc); n != len(parent.Files.Etc)+1 || p.Files.Etc[n-1].Path != "/etc/gnuplot" || p.Files.Workspace != WorkspaceRW {
		t.Errorf("etc: %+v", p.Files)
	}
	if i := slices.IndexFunc(p.Files.Etc, func(e EtcEntry) bool { return e.Path == "/etc/magic" }); p.Files.Etc[i].Why != "mine" {
		t.Errorf("the child's entry does not win: %+v", p.Files.Etc[i])
	}
	decide := func(name string) Action { return p.Syscalls[p.Match(name, [6]uint64{})].Action }
	if decide("shmget") != ActionNotify || decide("shmctl") != ActionAllow || decide("getpid") != ActionNotify || decide("getppid") != ActionAllow {
		t.Error("the child's rules do not come first")
	}
	floor := 0
	for floor < len(p.Syscalls) && p.Syscalls[floor].Floor {
		floor++
	}
	if slices.ContainsFunc(p.Syscalls[floor:], func(r SyscallRule) bool { return r.Floor }) {
		t.Error("a floor rule after another")
	}
	if again, _ := Load(Sources{Dirs: []string{dir}}, "web"); cmp.Diff(p, again) != "" || again.Digest() != p.Digest() {
		t.Error("two loads differ")
	}
	if parent2 := builtinProfile(t, "ring2"); cmp.Diff(parent, parent2) != "" {
		t.Error("loading a child changed its parent")
	}
}

// TestFloorCannotBeReplaced: not even by a stricter answer: what the supervisor must see, it sees.
func TestFloorCannotBeReplaced(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "web", web)
	_, err := Load(Sources{Dirs: []string{dir}}, "web")
	if err == nil || !strings.Contains(err.Error(), "userfaultfd: decided before by the floor rule of a parent") {
		t.Errorf("got %v", err)
	}
}

// TestLaterFolderWins: of /etc and the user's folder the user's counts.
func TestLaterFolderWins(t *testing.T) {
	etc, home := t.TempDir(), t.TempDir()
	write(t, etc, "own", "name: own\ndescription: of the machine\nextends: ring3\n")
	write(t, home, "own", "name: own\ndescription: of the user\nextends: ring3\n")
	s := Sources{Dirs: []string{etc, home}}
	p, err := Load(s, "own")
	if err != nil || p.Description != "of the user" {
		t.Errorf("got %q, %v", p.Description, err)
	}
	infos := List(s)
	i := slices.IndexFunc(infos, func(i Info) bool { return i.Name == "own" })
	if len(infos) != len(order)+1 || infos[i].Origin != filepath.Join(home, "own.yaml") || infos[i].Err != nil || infos[i].Ring != 3 {
		t.Errorf("list: %+v", infos)
	}
}

// TestErrorTypes: callers branch on them.
func TestErrorTypes(t *testing.T) {
	dir := t.TempDir()
	s := Sources{Dirs: []string{dir}}
	if _, err := Load(s, "nobody"); !is[*NotFoundError](err) || !strings.Contains(err.Error(), dir) {
		t.Errorf("missing: %v", err)
	}
	for _, name := range []string{"", "../etc/passwd", "a/b", "-x", "Ring3", "a.yaml", strings.Repeat("a", 65), "a\x00"} {
		if _, err := Load(s, name); !is[*read.InvalidError](err) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Load(s, "base"); !is[*read.InvalidError](err) {
		t.Errorf("abstract: %v", err)
	}
	file := write(t, dir, "ring3", "name: ring3\ndescription: mine\nextends: base\n")
	var shadow *ShadowError
	if _, err := Load(s, "ring3"); !errors.As(err, &shadow) || shadow.File != file {
		t.Errorf("shadow: %v", err)
	}
	if ps := ValidateFile(s, file); len(ps) != 1 || !strings.Contains(ps[0].Message, "name of a built-in") {
		t.Errorf("shadow: %v", ps)
	}
	write(t, dir, "kid", "name: kid\ndescription: x\nextends: ring3\n")
	if _, err := Load(s, "kid"); err == nil || !strings.Contains(err.Error(), "name of a built-in") {
		t.Errorf("child of a shadowed name: %v", err)
	}
	if ps := ValidateFile(s, filepath.Join(dir, "gone.yaml")); len(ps) != 1 {
		t.Errorf("missing file: %v", ps)
	}
	if ps := ValidateFile(s, filepath.Join(dir, "gone.yml")); len(ps) != 1 {
		t.Errorf("wrong ending: %v", ps)
	}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// TestNotARegularFile: a FIFO or a folder in the profile folder is an error, not a hang.
func TestNotARegularFile(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "folder"} {
		if _, err := Load(Sources{Dirs: []string{dir}}, name); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(Sources{Dirs: []string{dir}}, "dangling"); !errors.Is(err, fs.ErrNotExist) || is[*NotFoundError](err) {
		t.Errorf("dangling link: %v", err)
	}
	write(t, dir, "big", "name: big\ndescription: x\nextends: ring3\n#"+strings.Repeat("x", maxFileBytes))
	if _, err := Load(Sources{Dirs: []string{dir}}, "big"); err == nil || !strings.Contains(err.Error(), "longer than 262144 bytes") {
		t.Errorf("big: %v", err)
	}
}

// TestDepth: a chain of maxDepth profiles loads, one more does not.
func TestDepth(t *testing.T) {
	dir := t.TempDir()
	parent := "ring3"
	for i := range maxDepth {
		name := fmt.Sprintf("p%d", i)
		write(t, dir, name, fmt.Sprintf("name: %s\ndescription: x\nextends: %s\n", name, parent))
		parent = name
	}
	s := Sources{Dirs: []string{dir}}
	if _, err := Load(s, fmt.Sprintf("p%d", maxDepth-2)); err != nil {
		t.Errorf("%d deep: %v", maxDepth-1, err)
	}
	write(t, dir, "over", "name: over\ndescription: x\nextends: "+parent+"\n")
	if _, err := Load(s, "over"); err == nil || !strings.Contains(err.Error(), "profiles deep") {
		t.Errorf("%d deep: %v", maxDepth+1, err)
	}
}

// TestRanges: M-3 to the letter, at both ends and one step outside.
func TestRanges(t *testing.T) {
	good := builtinProfile(t, "ring3").Limits
	for _, tc := range []struct {
		change func(*Limits)
		bad    string
	}{
		{func(l *Limits) { l.CPU = 0.01 }, ""},
		{func(l *Limits) { l.CPU = 1 }, ""},
		{func(l *Limits) { l.CPU = 0.009 }, "limits.cpu"},
		{func(l *Limits) { l.CPU = 1.001 }, "limits.cpu"},
		{func(l *Limits) { l.CPU = math.NaN() }, "limits.cpu"},
		{func(l *Limits) { l.CPU = math.Inf(1) }, "limits.cpu"},
		{func(l *Limits) { l.CPU = -0.5 }, "limits.cpu"},
		{func(l *Limits) { l.Memory, l.ScratchSize = 64*MiB, MiB }, ""},
		{func(l *Limits) { l.Memory = 1 * GiB }, ""},
		{func(l *Limits) { l.Memory, l.ScratchSize = 4*MiB-1, MiB }, "limits.memory"},
		{func(l *Limits) { l.Memory = 1*GiB + 1 }, "limits.memory"},
		{func(l *Limits) { l.Timeout = Duration(time.Second) }, ""},
		{func(l *Limits) { l.Timeout = Duration(300 * time.Second) }, ""},
		{func(l *Limits) { l.Timeout = Duration(time.Millisecond - 1) }, "limits.timeout"},
		{func(l *Limits) { l.Timeout = Duration(300*time.Second + 1) }, "limits.timeout"},
		{func(l *Limits) { l.Timeout = -l.Timeout }, "limits.timeout"},
		{func(l *Limits) { l.PIDs = -1 }, "limits.pids"},
		{func(l *Limits) { l.ScratchSize = 257 * MiB }, "limits.scratch_size"},
	} {
		l := good
		tc.change(&l)
		ps := l.Check(SpecRanges())
		if tc.bad == "" && len(ps) != 0 || tc.bad != "" && (len(ps) != 1 || ps[0].Path != tc.bad) {
			t.Errorf("%+v: %v, want %q", l, ps, tc.bad)
		}
	}
	wide := good
	wide.Timeout, wide.CPU = Duration(time.Hour), 2
	if ps := wide.Check(TestOnlyUnsafeRanges()); len(ps) != 0 {
		t.Errorf("test ranges: %v", ps)
	}
}

// TestUnits: what sizes, durations, processors and values may look like.
func TestUnits(t *testing.T) {
	for s, want := range map[string]Size{"0": 0, "1": 1, "256MiB": 256 * MiB, "256M": 256 * MiB, "256MB": 256 * MiB, "256Mi": 256 * MiB,
		"1G": GiB, "1g": GiB, "4k": 4 * KiB, "4K": 4 * KiB, "4KB": 4 * KiB, "12B": 12, "8589934591GiB": 8589934591 * GiB} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
		if back, err := ParseSize(want.String()); err != nil || back != want {
			t.Errorf("%d prints as %v, which reads as %d, %v", want, want, back, err)
		}
	}
	for _, s := range []string{"", "M", "-1", "+1", "1.5G", "1e3", "256 MiB", "1T", "1mib", "0x10", "9223372036854775808", "8589934592GiB", "99999999999999999999", "1\n"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d", s, got)
		}
	}
	for s, want := range map[string]time.Duration{"60s": time.Minute, "1m30s": 90 * time.Second, "500ms": 500 * time.Millisecond, "0s": 0, "2h": 2 * time.Hour, "1.5s": 1500 * time.Millisecond} {
		got, err := ParseDuration(s)
		if err != nil || time.Duration(got) != want {
			t.Errorf("ParseDuration(%q) = %v, %v", s, got, err)
		}
		if back, err := ParseDuration(got.String()); err != nil || back != got {
			t.Errorf("%v reads as %v, %v", got, back, err)
		}
	}
	for _, s := range []string{"", "60", "0", "-1s", "+1s", "1 s", "inf", "1d", "99999999999h"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("ParseDuration(%q) = %v", s, got)
		}
	}
	for _, s := range []string{"", "NaN", "inf", "1e0", "0x1p-1", "-0.5", "+0.5", "0.5 ", ".", "1_0", "1.2.3"} {
		if got, err := ParseCPUs(s); err == nil {
			t.Errorf("ParseCPUs(%q) = %v", s, got)
		}
	}
	for s, want := range map[string]uint64{"0": 0, "0xffffffff": 0xffffffff, "0o6000": 0o6000, "18446744073709551615": math.MaxUint64,
		"AF_UNIX": 1, "CLONE_VM | CLONE_THREAD": 0x10100} {
		if got, err := ParseValue(s); err != nil || got.N != want {
			t.Errorf("ParseValue(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "-1", "06000", "1_000", "AF_NOPE", "AF_UNIX|", "1|2", "18446744073709551616", "af_unix"} {
		if got, err := ParseValue(s); err == nil {
			t.Errorf("ParseValue(%q) = %v", s, got)
		}
	}
}

// TestDefaultDirs: /etc first, then XDG or HOME; relative paths are ignored, so that a checkout can't bring profiles.
func TestDefaultDirs(t *testing.T) {
	for _, tc := range []struct {
		env  map[string]string
		want []string
	}{
		{nil, []string{"/etc/agentrun/profiles"}},
		{map[string]string{"HOME": "/home/a"}, []string{"/etc/agentrun/profiles", "/home/a/.config/agentrun/profiles"}},
		{map[string]string{"HOME": "/home/a", "XDG_CONFIG_HOME": "/x"}, []string{"/etc/agentrun/profiles", "/x/agentrun/profiles"}},
		{map[string]string{"HOME": "/home/a", "XDG_CONFIG_HOME": "x"}, []string{"/etc/agentrun/profiles", "/home/a/.config/agentrun/profiles"}},
		{map[string]string{"HOME": "."}, []string{"/etc/agentrun/profiles"}},
	} {
		got := DefaultDirs(func(k string) string { return tc.env[k] })
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.env, diff)
		}
	}
}

// FuzzLoad: any bytes give exactly one of a profile that holds every promise of the package comment, or problems.
func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/errors/*.yaml")
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte(web))
	f.Add([]byte("name: x\ndescription: x\nextends: ring1\n"))
	f.Add([]byte("? [a]\n: {<<: {a: b}}\n"))
	base, _ := Builtin("base")
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := Sources{}.fromYAML("x", "x.yaml", src, []string{"x"})
		if err != nil {
			invalid, ok := errors.AsType[*read.InvalidError](err)
			if !ok || len(invalid.Problems) == 0 || !cmp.Equal(p, Profile{}) {
				t.Fatalf("error %v, profile %+v", err, p)
			}
			return
		}
		n := 0
		checkResolved(p, SpecRanges(), func(at, format string, args ...any) { n++ })
		if n > 0 || p.Name != "x" {
			t.Fatalf("accepted but invalid: %s", src)
		}
		for i, r := range base.Syscalls {
			if r.Floor && !cmp.Equal(r, p.Syscalls[i]) {
				t.Fatalf("without base's floor: %s", src)
			}
		}
		p.Digest()
	})
}

// TestRing3HasStreamPairsOnly: no profile of ring 3 may give a unix socket that reaches a socket file, whichever way it is written.
func TestRing3HasStreamPairsOnly(t *testing.T) {
	const unixOnly = "{index: 0, op: masked_eq, mask: 0xffffffff, value: AF_UNIX}"
	for _, tc := range []struct{ what, extends, rule, want string }{
		{"as ring 3", "ring3", "", ""},
		{"base's sockets", "base", "", "allows socket for"},
		{"every socket", "ring3", "names: [socket], action: allow", "allows socket for"},
		{"with a flag", "ring3", "names: [socket], action: allow, args: [" + unixOnly + ", {index: 1, op: eq, value: SOCK_DGRAM | SOCK_CLOEXEC}]", "allows socket for"},
		{"pairs of every type", "ring3", "names: [socketpair], action: allow, args: [" + unixOnly + "]", "allows socketpair for"},
		{"raw pairs", "ring3", "names: [socketpair], action: allow, args: [{index: 1, op: masked_eq, mask: SOCK_TYPE_MASK, value: SOCK_RAW}]", "allows socketpair for"},
		{"stream pairs", "strict", "names: [socketpair], action: allow, args: [" + unixOnly + ", {index: 1, op: masked_eq, mask: SOCK_TYPE_MASK, value: SOCK_STREAM}]", ""},
		{"pairs of ring 2", "ring2", "names: [socketpair], action: allow", ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			dir := t.TempDir()
			src := "name: mine\ndescription: x\nextends: " + tc.extends + "\n"
			if tc.extends == "base" {
				src += "ring: 3\nnetwork: {mode: none, why: x}\nfiles: {root: readonly, workspace: ro, workspace_exec: true, why: x}\nsubprocess: {mode: deny, why: x}\n"
			}
			if tc.rule != "" {
				src += "syscalls:\n  - {" + tc.rule + ", why: x}\n"
			}
			write(t, dir, "mine", src)
			_, err := Load(Sources{Dirs: []string{dir}}, "mine")
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
