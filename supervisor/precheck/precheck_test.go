// SPDX-License-Identifier: Apache-2.0

package precheck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// world is a gateway's program that counts how often it was asked, and what it is asked about.
type world struct {
	t      testing.TB
	dir    string
	q      Question
	warned []error
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.put("secret", "s")
	w.says("printf 'holds\\n'")
	w.q = Question{
		Program: w.path("gateway"), Folder: w.path("checked"), Named: []string{w.path("secret"), w.path("none"), w.dir},
		Env:  []string{"KEY=1"},
		Warn: func(err error) { w.warned = append(w.warned, err) },
		Start: link.Start{
			Ring: rings.Sandbox, Caller: link.Caller{Run: "r1", Agent: "a"}, Allow: []string{"a.example"},
			Config: link.Config{Path: "/g.yaml", Text: []byte("tools: {}\n")},
		},
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) put(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// says makes the program. The file that it counts in is no part of any answer.
func (w *world) says(do string) {
	w.t.Helper()
	script := "#!/bin/sh\necho >> " + w.path("asked") + "\ncat > " + w.path("question") + "\nenv > " + w.path("env") + "\n" + do + "\n"
	if err := errors.Join(os.RemoveAll(w.path("gateway")), os.WriteFile(w.path("gateway"), []byte(script), 0o700)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) asked() int {
	b, _ := os.ReadFile(w.path("asked"))
	return strings.Count(string(b), "\n")
}

func (w *world) ask() (link.Verdict, error) {
	w.t.Helper()
	return Ask(w.q)
}

func (w *world) yes() {
	w.t.Helper()
	if v, err := w.ask(); err != nil || !v.Allowed {
		w.t.Fatalf("got %+v, %v, want a yes", v, err)
	}
}

// entry is the one file that is kept.
func (w *world) entry() string {
	w.t.Helper()
	m, err := filepath.Glob(w.path("checked/*"))
	if err != nil || len(m) != 1 {
		w.t.Fatalf("kept: %v (%v), want one", m, err)
	}
	return m[0]
}

// A yes is kept for as long as all is the same that it follows from, and no longer.
func TestYesIsKept(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world) error
		want int // asked in all
	}{
		{"nothing changes", func(*world) error { return nil }, 1},
		{"another run, agent and ring", func(w *world) error {
			w.q.Start.Caller, w.q.Start.Ring = link.Caller{Run: "r2", Agent: "b", Role: "x"}, rings.Standard
			return nil
		}, 1},
		{"a file comes beside the named ones", func(w *world) error { w.put("other", "x"); return nil }, 1},
		{"a key, which is held to what it carries", func(w *world) error {
			w.q.Start.Caller.Key = &link.Key{ID: "k", May: []string{"agent.run.invoke"}}
			return nil
		}, 2},
		{"the text", func(w *world) error { w.q.Start.Config.Text = []byte("tools: {} \n"); return nil }, 2},
		{"the file's path", func(w *world) error { w.q.Start.Config.Path = "/h.yaml"; return nil }, 2},
		{"a flag", func(w *world) error { w.q.Start.Tools = []string{"math"}; return nil }, 2},
		{"a flag's value", func(w *world) error { w.q.Start.Allow = []string{"a.exampl", "e"}; return nil }, 2},
		{"the safety loop", func(w *world) error { w.q.Start.Safety = &link.SafetyStart{Mode: "enforcing"}; return nil }, 2},
		{"the version", func(w *world) error { w.q.Start.Version = "2"; return nil }, 2},
		{"a variable", func(w *world) error { w.q.Env = []string{"KEY=2"}; return nil }, 2},
		{"bytes that no text has", func(w *world) error { w.q.Env = []string{"KEY=\xff"}; return nil }, 2},
		{"one variable less", func(w *world) error { w.q.Env = nil; return nil }, 2},
		{"a named file's content", func(w *world) error { w.put("secret", "t"); return nil }, 2},
		{"its mode", func(w *world) error { return os.Chmod(w.path("secret"), 0o644) }, 2},
		{"its owner", func(w *world) error { return os.Chown(w.path("secret"), 65534, 65534) }, 2},
		{"another in its place", func(w *world) error {
			w.put("new", "s")
			return os.Rename(w.path("new"), w.path("secret"))
		}, 2},
		{"it is gone", func(w *world) error { return os.Remove(w.path("secret")) }, 2},
		{"one that was missing", func(w *world) error { w.put("none", "x"); return nil }, 2},
		{"a named folder's mode", func(w *world) error { return os.Chmod(w.dir, 0o755) }, 2},
		{"the program", func(w *world) error { w.says("printf 'holds\\n'"); return nil }, 2},
		{"no folder", func(w *world) error { w.q.Folder = ""; return nil }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if err := os.Chmod(w.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			w.yes()
			if err := tt.do(w); errors.Is(err, os.ErrPermission) {
				t.Skip("need: root, to give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			w.yes()
			if got := w.asked(); got != tt.want || len(w.warned) > 0 {
				t.Errorf("asked %d times, want %d; %v", got, tt.want, w.warned)
			}
		})
	}
}

func TestOnlyAYesThatHoldsIsKept(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		want       string // of verdict or error
		invalid    bool
	}{
		{"yes for this run", "exit 0", "allowed", false},
		{"yes in other words", "echo holds for now", "allowed", false},
		{"a policy's no", `echo '{"code":"rbac_denied","message":"not you"}'; exit 3`, "rbac_denied not you", false},
		{"a no that says yes", `echo '{"allowed":true,"code":"ok"}'; exit 3`, "ok", false},
		{"a mistake", "echo 'g.yaml:1: a: bad' >&2; echo 'g.yaml:2: b: bad' >&2; printf 'holds\\n'; exit 125", "g.yaml:1: a: bad\ng.yaml:2: b: bad", true},
		{"killed", "kill -9 $$", "killed", false},
		{"no verdict", "echo what >&2; echo nonsense; exit 3", "what", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.says(tt.says)
			for range 2 {
				v, err := w.ask()
				got := strings.TrimSpace(fmt.Sprint(v.Code, " ", v.Message))
				switch {
				case err != nil:
					got = err.Error()
				case v.Allowed:
					got = "allowed"
				}
				if _, invalid := errors.AsType[*read.InvalidError](err); !strings.Contains(got, tt.want) || invalid != tt.invalid || err != nil && v.Allowed {
					t.Errorf("got %+v, %v, want %q", v, err, tt.want)
				}
			}
			if got := w.asked(); got != 2 {
				t.Errorf("asked %d times, want 2", got)
			}
			if m, _ := filepath.Glob(w.path("checked/*")); len(m) > 0 {
				t.Errorf("kept %v", m)
			}
		})
	}
}

// The program has the text and the variables that the gateway will have, and nothing else of ours.
func TestWhatTheProgramIsAsked(t *testing.T) {
	t.Setenv("OPERATORS_OWN", "x")
	for _, env := range [][]string{nil, {"KEY=1"}} {
		w := newWorld(t)
		w.q.Env = env
		w.yes()
		question, _ := os.ReadFile(w.path("question"))
		environ, _ := os.ReadFile(w.path("env"))
		for _, want := range []string{`"run":"r1"`, `"text":"dG9vbHM6IHt9Cg=="`, `"allow":["a.example"]`} {
			if !strings.Contains(string(question), want) {
				t.Errorf("got %s, want %s in it", question, want)
			}
		}
		if strings.Contains(string(environ), "OPERATORS_OWN") || strings.Contains(string(environ), "KEY=1") != (env != nil) {
			t.Errorf("environment: got %s, want %v", environ, env)
		}
	}
}

// Whatever is in the folder that others could have put there, the program is asked; the next time the answer is kept again.
func TestThreatTakeoverForeignAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world, entry string) error
		want int // asked in all
	}{
		{"others may write it", func(_ *world, entry string) error { return os.Chmod(entry, 0o666) }, 2},
		{"another user's", func(_ *world, entry string) error { return os.Chown(entry, 65534, 65534) }, 2},
		{"a link", func(w *world, entry string) error {
			return errors.Join(os.Rename(entry, w.path("elsewhere")), os.Symlink(w.path("elsewhere"), entry))
		}, 2},
		{"another question's", func(w *world, entry string) error {
			w.q.Start.Tools = []string{"math"}
			other, err := w.q.key()
			return errors.Join(err, os.Rename(entry, filepath.Join(w.q.Folder, fmt.Sprintf("%x", other))))
		}, 2},
		{"with something in it", func(_ *world, entry string) error {
			f, err := os.OpenFile(entry, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("yes")
				err = errors.Join(err, f.Close())
			}
			return err
		}, 2},
		{"empty", func(_ *world, entry string) error { return os.Truncate(entry, 0) }, 2},
		{"a folder", func(_ *world, entry string) error { return errors.Join(os.Remove(entry), os.Mkdir(entry, 0o700)) }, 3},
		{"the folder is open to others", func(w *world, _ string) error { return os.Chmod(w.q.Folder, 0o711) }, 3},
		{"the folder is another's", func(w *world, _ string) error { return os.Chown(w.q.Folder, 65534, 65534) }, 3},
		{"the folder is a link", func(w *world, _ string) error {
			return errors.Join(os.Rename(w.q.Folder, w.path("moved")), os.Symlink("moved", w.q.Folder))
		}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.yes()
			if err := tt.do(w, w.entry()); errors.Is(err, os.ErrPermission) {
				t.Skip("need: root, to give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			w.yes()
			w.yes()
			if got := w.asked(); got != tt.want || len(w.warned) == 0 {
				t.Errorf("asked %d times, want %d; %v", got, tt.want, w.warned)
			}
		})
	}
}

// The program sees one state of a file, and the next one is there when it answers: that yes is of the first.
func TestThreatTakeoverFileReplacedDuringTheCheck(t *testing.T) {
	w := newWorld(t)
	w.says("cat " + w.path("secret") + " >/dev/null; echo other > " + w.path("secret") + "; printf 'holds\\n'")
	w.yes()
	if m, _ := filepath.Glob(w.path("checked/*")); len(m) > 0 {
		t.Errorf("kept %v", m)
	}
}

// What every run of a host with a gateway.yaml pays.
func BenchmarkKept(b *testing.B) {
	w := newWorld(b)
	w.yes()
	for b.Loop() {
		w.yes()
	}
	if w.asked() != 1 {
		b.Errorf("asked %d times", w.asked())
	}
}
