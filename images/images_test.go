// SPDX-License-Identifier: Apache-2.0

package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func id(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func made(t *testing.T, f Folder, i Image, names ...string) {
	t.Helper()
	n, err := f.Begin()
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(n.Dir, "rootfs", "file"), []byte(i.ID), 0o600), n.Commit(i, names), n.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	f := Folder{t.TempDir()}
	made(t, f, Image{ID: id("a"), Manifest: id("1")}, "python", "reg:5000/team/x:1")
	made(t, f, Image{ID: id("a")[:70] + "b"}, "python:3")
	for ref, want := range map[string]string{
		"python": id("a"), "python:latest": id("a"), "python:3": id("a")[:70] + "b", "reg:5000/team/x:1": id("a"),
		id("a"): id("a"), id("1"): id("a"), "x@" + id("a"): id("a"), "python@" + id("1"): id("a"), Pinned("python", id("a")): id("a"), Pinned(id("1"), id("a")): id("a"),
	} {
		if i, err := f.Resolve(ref); err != nil || i.ID != want {
			t.Errorf("%s: %s %v, want %s", ref, i.ID, err, want)
		}
	}
	for ref, want := range map[string]error{
		"nothing": ErrNone, "python:4": ErrNone, "reg:5000/team/x": ErrNone, "reg:5000/team/x:2": ErrNone, id("c"): ErrNone, "sha256:aaaaaaaaaaaa": ErrMany, "aaaaaaaaaaaaaaaa": ErrMany,
		"aaaa": ErrNone, "x@sha256:aaaaaaaaaaaaaaa": ErrNone, "python@" + id("d"): ErrNone,
	} {
		if i, err := f.Resolve(ref); !errors.Is(err, want) {
			t.Errorf("%s: %s %v, want %v", ref, i.ID, err, want)
		}
	}
	for _, ref := range []string{"", "a b", "-x", "x\n", "\x1b[1m", strings.Repeat("x", 600), `"`, "ü"} {
		if _, err := f.Resolve(ref); err == nil || errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	for _, bad := range []string{"sha256:../../../../etc", "../x", id("A"), "sha256-" + strings.Repeat("a", 64)} {
		if _, err := f.Load(bad); !errors.Is(err, ErrNone) {
			t.Errorf("load %q: %v", bad, err)
		}
	}
}

func TestNamesMove(t *testing.T) {
	f := Folder{t.TempDir()}
	made(t, f, Image{ID: id("a"), Created: time.Unix(1, 0)}, "x:1", "x:2")
	made(t, f, Image{ID: id("b"), Created: time.Unix(2, 0)}, "x:1")
	made(t, f, Image{ID: id("b"), Manifest: id("1"), SignedBy: id("9")}, "x:3") // the same content again
	list, err := f.List()
	if err != nil || len(list) != 2 || !slices.Equal(list[1].Names, []string{"x:2"}) && !slices.Equal(list[0].Names, []string{"x:2"}) {
		t.Errorf("%+v %v", list, err)
	}
	if i, err := f.Inspect("x:1"); err != nil || !slices.Equal(i.Names, []string{"x:1", "x:3"}) || i.SignedBy != id("9") || i.Manifest != id("1") {
		t.Errorf("%+v %v", i, err)
	}
	made(t, f, Image{ID: id("b")}, "x:3")
	if i, err := f.Resolve("x:3"); err != nil || i.SignedBy != id("9") || i.Manifest != id("1") {
		t.Errorf("what came without forgets: %+v %v", i, err)
	}
}

func TestInUse(t *testing.T) {
	f := Folder{t.TempDir()}
	made(t, f, Image{ID: id("a")}, "x")
	one, err := f.Use(id("a"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := f.Use(id("a"))
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(Image, bool) error { t.Error("asked about one in use"); return nil }
	for _, used := range []*os.File{one, two} {
		if _, err := f.Remove("x", nothing); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v", err)
		}
		if removed, err := f.Sweep(func(Info) bool { return true }, func(Image) error { return nil }); err != nil || len(removed) > 0 {
			t.Errorf("swept %v %v", removed, err)
		}
		used.Close()
	}
	refused := errors.New("no")
	if _, err := f.Remove("x", func(Image, bool) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if gone, err := f.Remove("x", func(Image, bool) error { return nil }); !gone || err != nil {
		t.Errorf("%v %v", gone, err)
	}
	if _, err := f.Use(id("a")); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(f.Of(id("a"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// What was given a name, or to a sandbox, since it was looked at is not removed for having none.
func TestSweepLooksAgain(t *testing.T) {
	f := Folder{t.TempDir()}
	made(t, f, Image{ID: id("a")}, "x")
	made(t, f, Image{ID: id("b")}, "x") // a has no name now
	removed, err := f.Sweep(func(i Info) bool {
		nameless := len(i.Names) == 0
		if nameless {
			made(t, f, Image{ID: id("a")}, "y") // a pull ends
		}
		return nameless
	}, func(Image) error { return nil })
	if i, rerr := f.Resolve("y"); err != nil || len(removed) > 0 || rerr != nil || i.ID != id("a") {
		t.Errorf("removed %v, %v; y is %q, %v", removed, err, i.ID, rerr)
	}
}

func TestHalvesAreNone(t *testing.T) {
	f := Folder{t.TempDir()}
	n, err := f.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := f.Sweep(nil, nil); err != nil || len(removed) > 0 {
		t.Errorf("one that is being made: %v %v", removed, err)
	}
	n.lock.Close() // as a kill
	if err := os.MkdirAll(filepath.Join(f.Of(id("a")), "rootfs", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if list, err := f.List(); err != nil || len(list) > 0 {
		t.Errorf("%+v %v", list, err)
	}
	if removed, err := f.Sweep(nil, nil); err != nil || len(removed) != 2 {
		t.Errorf("%v %v", removed, err)
	}
	if err := os.MkdirAll(f.Of(id("b")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.about(id("b")), []byte(`{"version":2,"new":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Load(id("b")); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("got %v", err)
	}
}

// A damaged index is told, and no image is taken for one without a name.
func TestDamagedNames(t *testing.T) {
	f := Folder{t.TempDir()}
	made(t, f, Image{ID: id("a")}, "x")
	if err := os.WriteFile(f.index(), []byte(`{"x:latest":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := f.Sweep(func(i Info) bool { return len(i.Names) == 0 }, func(Image) error { return nil }); err == nil || len(removed) > 0 {
		t.Errorf("swept %v %v", removed, err)
	}
	if _, err := f.Resolve("x"); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if list, err := f.List(); err == nil || len(list) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	if err := os.Remove(f.index()); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Resolve(id("a")); err != nil || i.ID != id("a") {
		t.Errorf("by its digest: %v", err)
	}
}

func TestPolicy(t *testing.T) {
	for pattern, c := range map[string]struct{ yes, no string }{
		"a/b": {"a/b", "a/bc"}, "*": {"", ""}, "reg/team/*": {"reg/team/x/y", "reg/teamx"}, "*/x": {"a/b/x", "a/xx"}, "a*b*c": {"a/b/c", "ab"}, "a*a": {"aa", "a"},
	} {
		p := Policy{Allow: []string{pattern}}
		if !p.Allows(c.yes) || c.no != "" && p.Allows(c.no) {
			t.Errorf("%s: %q %v, %q %v", pattern, c.yes, p.Allows(c.yes), c.no, p.Allows(c.no))
		}
	}
	if !(Policy{}).Allows("x") {
		t.Error("no patterns: want any")
	}
	path := filepath.Join(t.TempDir(), "key")
	for text, ok := range map[string]bool{
		"-----BEGIN PUBLIC KEY-----\nYWJj\n-----END PUBLIC KEY-----\n": true, "-----BEGIN PRIVATE KEY-----\nYWJj\n-----END PRIVATE KEY-----\n": false, "x": false, "": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if key, err := (Policy{SignedBy: path}).Key(); (err == nil) != ok || ok && key != text {
			t.Errorf("%q: %q %v", text, key, err)
		}
		if err := (Policy{SignedBy: path}).Runs(Image{SignedBy: Fingerprint(text)}); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if err := (Policy{SignedBy: path}).Runs(Image{}); err == nil {
			t.Errorf("%q: an unsigned one runs", text)
		}
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := (Policy{SignedBy: path}).Key(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("others may write it: %v", err)
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct{ entrypoint, cmd, argv, want []string }{
		{nil, []string{"python3"}, nil, []string{"python3"}},
		{nil, []string{"python3"}, []string{"a.py"}, []string{"a.py"}},
		{[]string{"run", "-v"}, []string{"x"}, nil, []string{"run", "-v", "x"}},
		{[]string{"run"}, []string{"x"}, []string{"y", "z"}, []string{"run", "y", "z"}},
		{nil, nil, nil, nil},
	} {
		if got := (&Config{Entrypoint: c.entrypoint, Cmd: c.cmd}).Command(c.argv); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A base is what is whole, of this user, and known by its layers.
func TestBases(t *testing.T) {
	f := Folder{t.TempDir()}
	with := func(chain string, i Image) {
		t.Helper()
		n, err := f.Begin()
		if err == nil && chain != "" {
			err = n.Layers(chain)
		}
		if err == nil {
			err = errors.Join(n.Commit(i, nil), n.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(chains ...string) {
		t.Helper()
		var got []string
		for _, b := range f.Bases("") {
			got = append(got, b.ID[len("sha256:"):][:1]+" "+b.Chain)
		}
		if slices.Sort(got); !slices.Equal(got, chains) {
			t.Errorf("got %q, want %q", got, chains)
		}
	}
	with("one", Image{ID: id("a")})
	with("", Image{ID: id("b")}) // as older ones
	with("three", Image{ID: id("c")})
	want("a one", "c three")
	with("two", Image{ID: id("b")}) // the same content again
	with("other", Image{ID: id("c")})
	want("a one", "b two", "c other")
	with("signed", Image{ID: id("d"), SignedBy: "sha256:one"})
	if got := f.Bases("sha256:one"); len(got) != 1 || got[0].Chain != "signed" || len(f.Bases("sha256:two")) != 0 {
		t.Errorf("below what is signed: %v", got)
	}
	if err := errors.Join(os.Remove(f.about(id("a"))), os.Remove(f.about(id("d"))), os.WriteFile(filepath.Join(f.Of(id("b")), layersFile), []byte(`{"version":9,"chain":"two"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	want("c other")
	if Chain([]string{"a", "b"}) == Chain([]string{"a"}) || Chain([]string{"a", "b"}) == Chain([]string{"b", "a"}) {
		t.Error("other layers have one chain")
	}
}
