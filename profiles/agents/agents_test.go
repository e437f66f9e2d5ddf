// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
)

// Each built-in description is whole: it is read strictly, has a key for a model, a home whose answers are the
// stand-in's, and limits that no node must widen but for the time.
func TestBuiltinDescriptions(t *testing.T) {
	if got := Builtin(); len(got) < 6 {
		t.Fatalf("got %v: a check of nothing is no check", got)
	}
	if len(usualPlaces()) == 0 {
		t.Error("no usual places")
	}
	for _, name := range Builtin() {
		t.Run(name, func(t *testing.T) {
			a, err := Load(nil, name)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Keys) == 0 || len(a.Home) == 0 || a.Package == "" || a.Ring != 2 || a.Origin != "" {
				t.Errorf("got %+v", a)
			}
			text, _ := builtin.ReadFile(name + ".yaml")
			for word := range strings.FieldsSeq(string(text)) {
				if strings.Contains(word, "puts-the-key-in") && !strings.Contains(StandIn, strings.Trim(word, `"[],}`)) {
					t.Errorf("%s is not of the stand-in %s", word, StandIn)
				}
			}
		})
	}
}

// A description of the operator's is read as strictly, counts only if nobody else could have written it, and takes no
// built-in one's place.
func TestDescriptionsOfTheOperators(t *testing.T) {
	const whole = "name: NAME\ndescription: d\nprogram: p\nring: 2\n"
	for _, tt := range []struct {
		name, text string
		mode       fs.FileMode
		want       string
		is         error
	}{
		{"mine", whole, 0o644, "", nil},
		{"mine", whole, 0o664, "mode 0664", fs.ErrPermission},
		{"claude", whole, 0o644, "a built-in description has this name", nil},
		{"mine", strings.Replace(whole, "NAME", "other", 1), 0o644, `mine.yaml:1: name: "other": want mine`, nil},
		{"mine", whole + "nosuch: 1\n", 0o644, "nosuch: unknown key", nil},
		{"mine", strings.Replace(whole, "ring: 2", "ring: 0", 1), 0o644, "ring: 0: agents run in 1, 2 or 3", nil},
		{"mine", strings.Replace(whole, "program: p", "program: ../p", 1), 0o644, "want the name of a file", nil},
		{"mine", whole + "places: [{path: bin, why: w}]\n", 0o644, "places[0].path", nil},
		{"mine", whole + "environment: [{name: A, value: b}]\n", 0o644, "environment[0].why: missing: say why", nil},
		{"mine", whole + "keys: [{env: 'A B', host: h, header: 'X: y', why: w}]\n", 0o644, "keys[0].env", nil},
		{"mine", whole + "keys: [{env: A, host: h, header: 'X: y', why: w}]\n", 0o644, "keys[0].header", nil},
		{"mine", whole + "way: window\n", 0o644, `way: "window" is none of egress, door`, nil},
		{"mine", whole + "way: door\nkeys: [{env: A, host: h, header: X, why: w}]\n", 0o644, "keys[0].door: missing", nil},
		{"mine", whole + "home: [{path: ../up, content: c, why: w}]\n", 0o644, "home[0].path", nil},
		{"mine", whole + "home: [{path: /etc/x, content: c, why: w}]\n", 0o644, "home[0].path", nil},
		{"mine", whole + "arguments: [{text: \"a\\eb\", why: w}]\n", 0o644, "arguments[0].text", nil},
		{"..", whole, 0o644, "nobody has described", ErrNotFound},
		{"places", whole, 0o644, "nobody has described", ErrNotFound},
	} {
		t.Run(tt.name+" "+tt.want, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, tt.name+".yaml")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(tt.text, "NAME", tt.name)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, tt.mode); err != nil {
				t.Fatal(err)
			}
			a, err := Load([]string{dir}, tt.name)
			if tt.want == "" {
				if err != nil || a.Origin != file {
					t.Errorf("got %+v, %v", a, err)
				}
				return
			}
			if err == nil || !strings.Contains(strings.Join(read.Lines(err), "\n"), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"mine.yaml", "claude.yaml", "note.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := append(Builtin(), "mine")
	slices.Sort(want)
	if d := cmp.Diff(want, Names([]string{"/nonexistent", dir})); d != "" {
		t.Error(d)
	}
}

// tree makes files, executable, and links, whose text begins with ->.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func nodeOf(version string) string { return "#!/bin/sh\necho " + version + "\n" }

// F16: what is shown is as little as works, wherever the program is.
func TestFind(t *testing.T) {
	const script, native = "#!/usr/bin/env node\n", "\x7fELF"
	for _, tt := range []struct {
		name  string
		files map[string]string
		path  string // of the caller; relative to the tree
		want  Found  // likewise
	}{
		{"nothing", nil, "bin", Found{Missing: []string{"program p: not in PATH, nor where npm, nvm and installers put programs; npm install -g pkg"}}},
		{"a native program by an installer", map[string]string{"home/.local/bin/p": "->../share/p/versions/1.2.3", "home/.local/share/p/versions/1.2.3": native}, "",
			Found{Program: "home/.local/share/p/versions/1.2.3", Shown: []string{"home/.local/share/p/versions/1.2.3"}}},
		{"a package whose program is native", map[string]string{"npm/bin/p": "->../lib/node_modules/pkg/bin/p.exe", "npm/lib/node_modules/pkg/bin/p.exe": native}, "npm/bin",
			Found{Program: "npm/lib/node_modules/pkg/bin/p.exe", Shown: []string{"npm/lib/node_modules"}}},
		{"a script, and a Node of its version manager", map[string]string{
			"home/.nvm/versions/node/v22.1.0/bin/p":    "->../lib/node_modules/@a/pkg/cli.js",
			"home/.nvm/versions/node/v22.1.0/bin/node": nodeOf("v22.1.0"), "home/.nvm/versions/node/v22.1.0/lib/node_modules/@a/pkg/cli.js": script,
		}, "", Found{Program: "home/.nvm/versions/node/v22.1.0/lib/node_modules/@a/pkg/cli.js", Node: "home/.nvm/versions/node/v22.1.0/bin/node",
			Shown: []string{"home/.nvm/versions/node/v22.1.0/lib/node_modules", "home/.nvm/versions/node/v22.1.0"}}},
		{"a Node in a folder of anything is shown alone", map[string]string{
			"home/.local/bin/p": "->../lib/node_modules/pkg/cli.js", "home/.local/lib/node_modules/pkg/cli.js": script, "home/.local/bin/node": nodeOf("v20.0.0"),
		}, "", Found{Program: "home/.local/lib/node_modules/pkg/cli.js", Node: "home/.local/bin/node", Shown: []string{"home/.local/lib/node_modules", "home/.local/bin/node"}}},
		{"a Node that is too old", map[string]string{"bin/p": script, "bin/node": nodeOf("v18.20.4")}, "bin",
			Found{Program: "bin/p", Shown: []string{"bin/p"}, Missing: []string{"node 20 or newer: ROOT/bin/node is v18.20.4; install it from the distribution, or: nvm install 20"}}},
		{"a Node that says no version", map[string]string{"bin/p": script, "bin/node": nodeOf("hello")}, "bin",
			Found{Program: "bin/p", Shown: []string{"bin/p"}, Missing: []string{"node 20 or newer: ROOT/bin/node --version: it says no version"}}},
		{"modules within modules", map[string]string{"bin/p": "->../a/node_modules/x/node_modules/p/c.js", "a/node_modules/x/node_modules/p/c.js": native}, "bin",
			Found{Program: "a/node_modules/x/node_modules/p/c.js", Shown: []string{"a/node_modules"}}},
		{"no relative PATH", map[string]string{"bin/p": native}, "./bin", Found{Missing: []string{"program p: not in PATH, nor where npm, nvm and installers put programs; npm install -g pkg"}}},
		{"no folder of that name", map[string]string{"bin/p/x": native}, "bin", Found{Missing: []string{"program p: not in PATH, nor where npm, nvm and installers put programs; npm install -g pkg"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t, tt.files)
			path := tt.path
			if path != "" && path[0] != '.' {
				path = filepath.Join(root, path)
			}
			a := Agent{Program: "p", Package: "pkg", Node: 20}
			got := a.Find(func(name string) string {
				return map[string]string{"PATH": path, "HOME": filepath.Join(root, "home")}[name]
			}, "")
			relative := func(s string) string { return strings.TrimPrefix(s, root+"/") }
			got.Program, got.Node, got.Path = relative(got.Program), relative(got.Node), nil
			for i := range got.Shown {
				got.Shown[i] = relative(got.Shown[i])
			}
			for i := range got.Missing {
				got.Missing[i] = strings.ReplaceAll(got.Missing[i], root, "ROOT")
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// THREATS, what the host runs later: a version manager's script runs the Node that a file of the current folder names, as asdf's does. An agent has written that file, and Find
// runs nothing of its choice: not for host, nor for host --list, which asks nobody.
func TestThreatTakeoverNodeOfTheWorkspace(t *testing.T) {
	root := tree(t, map[string]string{
		"bin/p": "#!/usr/bin/env node\n",
		"bin/node": `#!/bin/sh
named=$(sed -n 's/^nodejs path://p' .tool-versions 2>/dev/null)
[ -z "$named" ] || exec "$named/bin/node" "$@"
echo v22.1.0
`,
	})
	ws, mark := t.TempDir(), filepath.Join(root, "mark")
	for name, text := range map[string]string{".tool-versions": "nodejs path:" + ws + "/evil\n", "evil/bin/node": "#!/bin/sh\ntouch " + mark + "\necho v22.1.0\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(ws, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(ws, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(ws)
	a := Agent{Program: "p", Node: 20}
	got := a.Find(func(name string) string {
		return map[string]string{"PATH": filepath.Join(root, "bin"), "HOME": filepath.Join(root, "home")}[name]
	}, "")
	if got.Node != filepath.Join(root, "bin/node") {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the agent's program was run on the host")
	}
}

// Of several versions the one that was installed last counts; a variable that isn't set is no folder.
func TestPlaces(t *testing.T) {
	root := tree(t, map[string]string{"v9/bin/x": "", "v22/bin/x": "", "v10/bin/x": ""})
	now := time.Now()
	for i, v := range []string{"v9", "v10", "v22"} {
		at := now.Add(time.Duration(i) * time.Hour)
		if err := os.Chtimes(filepath.Join(root, v, "bin"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	f := finder{getenv: func(name string) string { return map[string]string{"ROOT": root}[name] }}
	if got := f.folders("$ROOT/*/bin"); len(got) != 3 || got[0] != filepath.Join(root, "v22/bin") {
		t.Errorf("got %v", got)
	}
	for _, place := range []string{"$NONE/*/bin", "~/bin", "relative"} {
		if got := f.folders(place); got != nil {
			t.Errorf("%s: got %v", place, got)
		}
	}
}
