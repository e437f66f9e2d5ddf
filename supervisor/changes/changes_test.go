// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/profiles"
)

// put makes the changes of a run from headers: a name that ends in / is a folder, a body that begins with -> a link.
func put(t *testing.T, ws string, names ...string) (Folder, string) {
	t.Helper()
	f := Folder{t.TempDir()}
	at, err := f.Begin("run", ws, os.Getuid(), os.Getgid(), []profiles.GuardEntry{{Path: ".vscode", Mode: profiles.GuardReadonly, Why: "w"}})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(at)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(file)
	for _, n := range names {
		name, body, _ := strings.Cut(n, "=")
		h := &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(body))}
		if to, link := strings.CutPrefix(body, "->"); link {
			h.Typeflag, h.Linkname, h.Size, body = tar.TypeSymlink, to, 0, ""
		} else if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return f, at
}

// A link in a repository is risky wherever it leads: the host's git writes through it.
func TestLinksInARepository(t *testing.T) {
	f, _ := put(t, t.TempDir(), ".git/logs/HEAD=->../../Makefile", "sub/.git/index=->x", "a=->b", ".gitx/a=->b", ".git/logs/x=x")
	s, err := f.Open("run")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		if c.Risky != "" {
			got = append(got, c.Path)
		}
	}
	if want := []string{".git/logs/HEAD", "sub/.git/index"}; !slices.Equal(got, want) {
		t.Errorf("risky: %q, want %q", got, want)
	}
}

// A tar that isn't ours any more brings nothing out of the workspace.
func TestHostileChanges(t *testing.T) {
	for _, name := range []string{"../x=x", "/etc/x=x", "a/../../x=x", ".=x", "a//b=x", ".wh...=", "d/.wh..wh..opq="} {
		f, _ := put(t, t.TempDir(), name)
		s, err := f.Open("run")
		if err != nil {
			continue
		}
		if _, err = s.Apply(nil, true); err == nil && name != ".wh...=" {
			t.Errorf("%s was applied", name)
		}
		s.Close()
	}
	// A link, and a file through it.
	ws, out := t.TempDir(), t.TempDir()
	f, _ := put(t, ws, "l=->"+out, "l/x=x")
	s, err := f.Open("run")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Apply(nil, true); err == nil {
		t.Error("a file was applied through a link")
	}
	if names, _ := os.ReadDir(out); len(names) > 0 {
		t.Errorf("outside: %v", names)
	}
}

// What changes between the look and the deed is a conflict, and never overwritten.
func TestApplyLooksAgain(t *testing.T) {
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "old"), []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * clockTick)
	f, _ := put(t, ws, "new=agent", "old=agent")
	s, err := f.Open("run")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].Conflict+list[1].Conflict != "" {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, n := range []string{"new", "old"} {
		if err := os.WriteFile(filepath.Join(ws, n), []byte("meanwhile"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range list {
		if err := s.apply(c); err == nil {
			t.Errorf("%s was overwritten", c.Path)
		}
	}
	if left, _ := os.ReadDir(ws); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

// Two who apply at once: the second waits, and finds nothing left.
func TestTakenSet(t *testing.T) {
	ws := t.TempDir()
	f, _ := put(t, ws, "a=1")
	first, err := f.Open("run")
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() {
		s, err := f.Open("ru")
		if err == nil {
			s.Close()
		}
		second <- err
	}()
	if _, err := first.Apply(nil, false); err != nil {
		t.Error(err)
	}
	first.Close()
	if err := <-second; !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
}

func TestChoose(t *testing.T) {
	list := []Change{{Path: "a", Kind: Added, Folder: true}, {Path: "a/b", Kind: Added}, {Path: "a/c", Kind: Added, Conflict: "x"}, {Path: ".vscode/t", Risky: "w"}}
	for _, tt := range []struct {
		paths []string
		risky bool
		want  []string
		err   string
	}{
		{[]string{"a/b"}, false, []string{"a", "a/b"}, ""},
		{[]string{"a"}, false, nil, "a/c"},
		{[]string{"a/b", "z"}, false, nil, `"z"`},
		{[]string{".vscode"}, false, nil, ".vscode/t"},
		{[]string{".vscode"}, true, []string{".vscode/t"}, ""},
		{nil, true, nil, "a/c"},
	} {
		chosen, err := (&Set{}).choose(list, tt.paths, tt.risky)
		var got []string
		for _, c := range chosen {
			got = append(got, c.Path)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) || !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q, %v", tt.paths, got, err)
		}
	}
}

func TestPrune(t *testing.T) {
	f, at := put(t, t.TempDir(), "a=1")
	if err := f.Prune(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
	if err := f.Prune(time.Now().Add(Keep + time.Hour)); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(f.dir()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
