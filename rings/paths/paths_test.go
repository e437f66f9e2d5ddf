// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"agentrun/rings"
)

// tree makes a base with two sessions whose names are prefixes of each other, and what an agent might put there.
func tree(t testing.TB) (base string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"session-1/dir/deep", "session-10/dir", "outside"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"session-1/file", "session-10/secret", "outside/secret", "plain"} {
		if err := os.WriteFile(filepath.Join(base, file), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"session-1/inner": "dir/deep", "session-1/dir/up": "../file", "session-1/self": ".", "session-1/loop": "loop",
		"session-1/other": "../session-10", "session-1/out": "/etc/passwd", "session-1/outin": "../session-1/file",
		"session-1/absolute": base + "/session-1/file", "session-1/dangling": "nowhere", "session-1/danglingout": "../session-10/new",
		"session-1/proc": "/proc/self/root", "linked": "session-10",
	} {
		if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

func open(t testing.TB, base string) *Checker {
	t.Helper()
	c, err := Open(base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// lexicalCases need no file system beyond the two sessions; BASE stands for the base.
var lexicalCases = []struct {
	session, path string
	want          rings.Code
}{
	{"session-1", "BASE/session-1", rings.CodeOK},
	{"session-1", "BASE/session-1/", rings.CodeOK},
	{"session-1", "BASE/session-1/file", rings.CodeOK},
	{"session-1", "BASE//./session-1/./file", rings.CodeOK},
	{"session-1", "BASE/session-1/new", rings.CodeOK},
	{"session-1", "BASE/session-1/new/er/still", rings.CodeOK},
	{"session-1", "BASE/session-1/...", rings.CodeOK},
	{"session-1", "BASE/session-1/..x", rings.CodeOK},
	{"session-10", "BASE/session-10/dir", rings.CodeOK},

	{"session-1", "BASE/session-10", CodeOutside},
	{"session-1", "BASE/session-10/secret", CodeOutside},
	{"session-10", "BASE/session-1/file", CodeOutside},
	{"session-1", "BASE", CodeOutside},
	{"session-1", "BASE/", CodeOutside},
	{"session-1", "BASEsession-1/file", CodeOutside},
	{"session-1", "BASE/Session-1/file", CodeOutside},
	{"session-1", "/", CodeOutside},
	{"session-1", "/etc/passwd", CodeOutside},
	{"session-1", "BASE/session-1\\..\\session-10", CodeOutside},

	{"session-1", "BASE/session-1/../session-10/secret", CodeTraversal},
	{"session-1", "BASE/session-1/../session-1/file", CodeTraversal},
	{"session-1", "BASE/session-1/..", CodeTraversal},
	{"session-1", "BASE/session-1/dir/../file", CodeTraversal},
	{"session-1", "..", CodeTraversal},
	{"session-1", "../session-1/file", CodeTraversal},

	{"session-1", "", CodeEmpty},
	{"session-1", ".", CodeRelative},
	{"session-1", "file", CodeRelative},
	{"session-1", "session-1/file", CodeRelative},
	{"session-1", " BASE/session-1/file", CodeRelative},
	{"session-1", "~/file", CodeRelative},
	{"session-1", "BASE/session-1/file\x00", CodeMalformed},
	{"session-1", "BASE/session-1\x00/../session-10", CodeMalformed},

	{"session-2", "BASE/session-2/file", CodeUnknownSession},
	{"session-2", "BASE/session-2", CodeUnknownSession},
	{"", "BASE/file", CodeSession},
	{".", "BASE/./file", CodeSession},
	{"..", "BASE/session-1", CodeSession},
	{"session-1\n", "BASE/session-1\n/file", CodeSession},
	{"session-1/dir", "BASE/session-1/dir/deep", CodeSession},
	{strings.Repeat("s", 257), "BASE/x", CodeSession},
}

func judge(t *testing.T, d rings.Decision, want rings.Code, what string) {
	t.Helper()
	if d.Code != want || d.Allowed() != (want == rings.CodeOK) || d.Reason == "" || d.Rule != "H-30" {
		t.Errorf("%s: got %+v, want %s", what, d, want)
	}
}

func TestH30Lexical(t *testing.T) {
	base := tree(t)
	c := open(t, base)
	m := Model{Base: base, Exists: []string{"session-1", base + "/session-10/secret", base + "session-2", "/session-2", "", "session-1/x"}}
	for _, tt := range lexicalCases {
		path := strings.ReplaceAll(tt.path, "BASE", base)
		judge(t, c.Allowed(tt.session, path), tt.want, tt.session+" "+tt.path)
		judge(t, m.Allowed(tt.session, path), tt.want, "model: "+tt.session+" "+tt.path)
	}
	long := base + "/session-1/" + strings.Repeat("x/", 3000)
	judge(t, c.Allowed("session-1", long), CodeMalformed, "long")
	judge(t, m.Allowed("session-1", long), CodeMalformed, "model: long")
}

func TestH30Symlinks(t *testing.T) {
	base := tree(t)
	c := open(t, base)
	for path, want := range map[string]rings.Code{
		"inner": rings.CodeOK, "inner/new": rings.CodeOK, "dir/up": rings.CodeOK, "self/self/self/file": rings.CodeOK,
		"other": CodeEscapes, "other/secret": CodeEscapes, "other/new": CodeEscapes, "out": CodeEscapes, "self/other/dir": CodeEscapes,
		"outin": CodeEscapes, "absolute": CodeEscapes, "proc": CodeEscapes, "proc/etc/passwd": CodeEscapes,
		"dangling": CodeEscapes, "dangling/new": CodeEscapes, "danglingout": CodeEscapes,
		"loop": CodeUnresolvable, "file/new": CodeUnresolvable, strings.Repeat("x", 256): CodeUnresolvable,
		strings.Repeat("x/", maxMissing): rings.CodeOK, strings.Repeat("x/", maxMissing+1): CodeUnresolvable,
	} {
		judge(t, c.Allowed("session-1", base+"/session-1/"+path), want, path)
	}
	// A session may not be a link to another, nor a file.
	judge(t, c.Allowed("linked", base+"/linked/secret"), CodeUnresolvable, "linked")
	judge(t, c.Allowed("plain", base+"/plain"), CodeUnresolvable, "plain")
}

func TestH30BaseThroughASymlink(t *testing.T) {
	base := tree(t)
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(base, alias); err != nil {
		t.Fatal(err)
	}
	c := open(t, alias)
	judge(t, c.Allowed("session-1", alias+"/session-1/file"), rings.CodeOK, "by the name given")
	judge(t, c.Allowed("session-1", base+"/session-1/file"), rings.CodeOK, "by the real name")
	judge(t, c.Allowed("session-1", alias+"/session-10/secret"), CodeOutside, "another session")
}

func TestH30Base(t *testing.T) {
	for _, base := range []string{"", ".", "relative", "/a/../b", "/nowhere/at/all", "/etc/passwd", "/\x00"} {
		if c, err := Open(base); err == nil {
			c.Close()
			t.Errorf("opened %q", base)
		}
		if base == "" || base[0] != '/' || strings.Contains(base, "..") {
			judge(t, Model{Base: base, Exists: []string{"s"}}.Allowed("s", base+"/s/x"), CodeBase, "model: "+base)
		}
	}
	judge(t, Model{}.Allowed("s", "/s/x"), CodeBase, "zero model")
	judge(t, Model{Base: "/"}.Allowed("s", "/s/x"), CodeUnknownSession, "nothing exists")
	judge(t, Model{Base: "/", Exists: []string{"s"}}.Allowed("s", "/s/x"), rings.CodeOK, "base /")
	var zero Checker
	var none *Checker
	judge(t, zero.Allowed("s", "/s/x"), CodeBase, "zero")
	judge(t, none.Allowed("s", "/s/x"), CodeBase, "nil")
	c := open(t, tree(t))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	judge(t, c.Allowed("session-1", "/x"), CodeBase, "closed")
}

// What was judged is what is handed over, whatever becomes of the name.
func TestH30TargetIsWhatWasChecked(t *testing.T) {
	base := tree(t)
	c := open(t, base)
	target, d := c.Resolve("session-1", base+"/session-1/file")
	if !d.Allowed() {
		t.Fatal(d)
	}
	defer target.Close()
	must(t, os.Remove(base+"/session-1/file"))
	must(t, os.Symlink("../session-10/secret", base+"/session-1/file"))
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(target.File.Fd())))
	must(t, err)
	defer f.Close()
	b := make([]byte, 100)
	n, err := f.Read(b)
	must(t, err)
	if string(b[:n]) != "session-1/file" || target.Missing != "" {
		t.Errorf("read %q, missing %q", b[:n], target.Missing)
	}
	target, d = c.Resolve("session-1", base+"/session-1/dir/new/file")
	if !d.Allowed() {
		t.Fatal(d)
	}
	defer target.Close()
	var got, want unix.Stat_t
	must(t, unix.Fstat(int(target.File.Fd()), &got))
	must(t, unix.Stat(base+"/session-1/dir", &want))
	if target.Missing != "new/file" || got.Ino != want.Ino {
		t.Errorf("missing %q beneath inode %d, want new/file beneath %d", target.Missing, got.Ino, want.Ino)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An agent that swaps a folder for a link as fast as it can gets refusals, or its own files; never another's.
func TestH30Race(t *testing.T) {
	base := tree(t)
	c := open(t, base)
	s := base + "/session-1/"
	must(t, os.WriteFile(s+"dir/secret", []byte("own"), 0o600))
	var foreign unix.Stat_t
	must(t, unix.Stat(base+"/session-10/secret", &foreign))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, s+"dir", unix.AT_FDCWD, s+"other", unix.RENAME_EXCHANGE)
			}
		}
	})
	allowed := 0
	for range 3000 {
		target, d := c.Resolve("session-1", s+"dir/secret")
		if !d.Allowed() {
			continue
		}
		allowed++
		var st unix.Stat_t
		must(t, unix.Fstat(int(target.File.Fd()), &st))
		if st.Ino == foreign.Ino && st.Dev == foreign.Dev {
			t.Error("got another session's file")
		}
		target.Close()
	}
	close(stop)
	wg.Wait()
	t.Logf("%d of 3000 allowed", allowed)
}

// Model and Checker agree wherever there are no symlinks, and neither ever allows what isn't beneath the session.
func TestH30ModelAgrees(t *testing.T) {
	base := tree(t)
	c := open(t, base)
	m := Model{Base: base, Exists: []string{"session-1", "session-10"}}
	part := rapid.SampledFrom([]string{"", ".", "..", "session-1", "session-10", "session-2", "dir", "deep", "new", base, base[1:], "\x00", "a b", "ü"})
	rapid.Check(t, func(t *rapid.T) {
		session := rapid.SampledFrom([]string{"session-1", "session-10", "session-2", "", "..", "outside\n"}).Draw(t, "session")
		path := rapid.SampledFrom([]string{base + "/", base + "/" + session + "/", "/", ""}).Draw(t, "start") +
			strings.Join(rapid.SliceOfN(part, 0, 5).Draw(t, "parts"), "/")
		real, model := c.Allowed(session, path), m.Allowed(session, path)
		if real.Code != model.Code {
			t.Fatalf("%q %q: %+v, the model says %+v", session, path, real, model)
		}
		clean := filepath.Clean(path)
		if real.Allowed() && clean != base+"/"+session && !strings.HasPrefix(clean, base+"/"+session+"/") {
			t.Fatalf("%q may %q", session, path)
		}
	})
}

func FuzzModel(f *testing.F) {
	for _, tt := range lexicalCases {
		f.Add("/base", tt.session, strings.ReplaceAll(tt.path, "BASE", "/base"), "session-1")
	}
	f.Fuzz(func(t *testing.T, base, session, path, exists string) {
		d := Model{Base: base, Exists: []string{exists}}.Allowed(session, path)
		if !d.Allowed() {
			if d.Code == rings.CodeOK || d.Code == "" {
				t.Fatalf("denied with code %q", d.Code)
			}
			return
		}
		root := filepath.Join(base, session)
		clean := filepath.Clean(path)
		if clean != root && !strings.HasPrefix(clean, root+"/") || strings.Contains(path, "\x00") || rings.CheckSessionID(session) != nil {
			t.Fatalf("%q in %q may %q", session, base, path)
		}
	})
}

func FuzzChecker(f *testing.F) {
	base := tree(f)
	c := open(f, base)
	root, err := filepath.EvalSymlinks(base + "/session-1")
	must(f, err)
	for _, tt := range lexicalCases {
		f.Add(strings.TrimPrefix(tt.path, "BASE"))
	}
	f.Add("/session-1/other/secret")
	f.Fuzz(func(t *testing.T, path string) {
		target, d := c.Resolve("session-1", base+path)
		if (target != nil) != d.Allowed() {
			t.Fatalf("%q: %v with %+v", path, target, d)
		}
		if target == nil {
			return
		}
		defer target.Close()
		real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(target.File.Fd())))
		if err != nil || real != root && !strings.HasPrefix(real, root+"/") {
			t.Fatalf("%q is %q, %v", path, real, err)
		}
	})
}

func BenchmarkChecker(b *testing.B) {
	base := tree(b)
	c := open(b, base)
	for name, path := range map[string]string{"file": "file", "symlink": "inner", "missing": "dir/new", "escapes": "other/secret"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Allowed("session-1", base+"/session-1/"+path)
			}
		})
	}
	b.Run("model", func(b *testing.B) {
		m := Model{Base: base, Exists: []string{"session-1"}}
		b.ReportAllocs()
		for b.Loop() {
			m.Allowed("session-1", base+"/session-1/dir/deep")
		}
	})
}
