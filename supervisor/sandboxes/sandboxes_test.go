// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/supervisor/homes"
)

// nobody hears of what is removed.
func nobody(Sandbox) error { return nil }

func folder(t *testing.T, names ...string) Folder {
	t.Helper()
	f := Folder{StateDir: t.TempDir()}
	for _, n := range names {
		if err := f.Create(t.Context(), Sandbox{Name: n, Restart: RestartNo, Words: []string{"--", "true"}}, whole); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func whole(*Sandbox) error { return nil }

// What turns out to be refused leaves nothing, and is none while it is being made.
func TestRefusedWhileItIsMade(t *testing.T) {
	f := folder(t)
	refused := errors.New("refused")
	err := f.Create(t.Context(), Sandbox{Name: "a", Restart: RestartNo}, func(s *Sandbox) error {
		if _, err := f.Load("a"); !errors.Is(err, ErrNone) {
			t.Errorf("half of one: %v", err)
		}
		if _, err := f.Sweep(time.Now(), nobody); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(f.Homes(*s).Files(Home)); err != nil {
			t.Errorf("gc took it away: %v", err)
		}
		if err := f.Create(t.Context(), Sandbox{Name: "a", Restart: RestartNo}, whole); !errors.Is(err, ErrBusy) {
			t.Errorf("another one meanwhile: %v", err)
		}
		return refused
	})
	if left, _ := filepath.Glob(f.StateDir + "/*/*"); !errors.Is(err, refused) || len(left) > 0 {
		t.Errorf("%v, left: %v", err, left)
	}
}

// M-23: a sandbox is one run's at a time, and nobody's who removes or renames it meanwhile.
func TestOneAtATime(t *testing.T) {
	f := folder(t, "a", "b")
	taken, err := f.Take("a")
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func() error{
		"take":   func() error { _, err := f.Take("a"); return err },
		"remove": func() error { return f.Remove("a") },
		"rename": func() error { return f.Rename("a", "c") },
	} {
		if err := try(); !errors.Is(err, ErrBusy) {
			t.Errorf("%s of one that runs: %v", what, err)
		}
	}
	if err := f.Create(t.Context(), Sandbox{Name: "a", Restart: RestartNo}, whole); !errors.Is(err, ErrExists) {
		t.Errorf("a second one: %v", err)
	}
	taken.Close()
	if err := f.Rename("a", "b"); !errors.Is(err, ErrExists) {
		t.Errorf("rename to one that there is: %v", err)
	}
	if err := f.Rename("a", "c"); err != nil {
		t.Error(err)
	}
	if s, err := f.Load("c"); err != nil || s.Name != "c" || s.Words[1] != "true" {
		t.Errorf("renamed: %+v, %v", s, err)
	}
	if _, err := f.Take("a"); !errors.Is(err, ErrNone) {
		t.Errorf("the old name: %v", err)
	}
	if err := errors.Join(f.Remove("c"), f.Remove("b")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(f.Of("*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// State of another version is refused by name; what isn't whole is none, and goes.
func TestStates(t *testing.T) {
	f := folder(t, "old", "cut", "half", "fits")
	for name, text := range map[string]string{
		"old": `{"version":0,"words":[]}`, "cut": `{"version":1,"wo`, "fits": `{"version":1,"created":"2026-01-02T03:04:05Z","surprise":true}`,
	} {
		if err := os.WriteFile(f.about(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(f.about("half")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"old": "has version 0", "cut": "unexpected", "fits": "surprise", "half": ErrNone.Error(), "../x": "no name"} {
		if _, err := f.Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if list, err := f.List(); len(list) != 0 || err == nil {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if removed, err := f.Sweep(time.Now(), nobody); len(removed) > 0 || err == nil {
		t.Errorf("swept %v, %v", removed, err)
	}
	if left, _ := filepath.Glob(f.Of("*")); len(left) != 3 {
		t.Errorf("left: %v, want all that somebody has to look at", left)
	}
}

func TestSweepRemovesWhatIsOver(t *testing.T) {
	f := folder(t, "over", "later", "busy", "good")
	now := time.Now()
	for name, until := range map[string]time.Time{"over": now.Add(-time.Second), "busy": now.Add(-time.Second), "later": now.Add(time.Minute)} {
		if _, err := f.Change(name, func(s *Sandbox) error { s.Until = until; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	busy, err := f.Take("busy")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if removed, err := f.Sweep(now, nobody); err != nil || len(removed) != 1 || removed[0] != "over" {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// THREATS "joining and keeping": what somebody says of a sandbox is said of that one, whoever removes or renames it meanwhile; and a sandbox that
// is to be kept longer isn't removed by a gc that has just read the opposite.
func TestChangeIsOfOneSandbox(t *testing.T) {
	for what, other := range map[string]func(t *testing.T, f Folder) error{
		"removed": func(_ *testing.T, f Folder) error { return f.Remove("a") },
		"renamed": func(t *testing.T, f Folder) error {
			return errors.Join(f.Rename("a", "b"), f.Create(t.Context(), Sandbox{Name: "a", Restart: RestartNo}, whole))
		},
		"swept": func(_ *testing.T, f Folder) error { _, err := f.Sweep(time.Now(), nobody); return err },
	} {
		t.Run(what, func(t *testing.T) {
			f := folder(t, "a")
			if _, err := f.Change("a", func(s *Sandbox) error { s.Until = time.Now().Add(-time.Second); return nil }); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			kept, err := f.Change("a", func(s *Sandbox) error {
				go func() { done <- other(t, f) }()
				select {
				case err := <-done: // it didn't wait
					done <- err
				case <-time.After(100 * time.Millisecond):
				}
				s.Until, s.Run = time.Time{}, "mine"
				return nil
			})
			if err := errors.Join(err, <-done); err != nil {
				t.Fatal(err)
			}
			has := func(name string) bool {
				s, err := f.Load(name)
				return err == nil && s.Layer == kept.Layer && s.Run == "mine"
			}
			want := map[string]string{"renamed": "b", "swept": "a"}[what]
			for _, name := range []string{"a", "b"} {
				if has(name) != (name == want) {
					t.Errorf("%s has what was said: %t", name, has(name))
				}
			}
		})
	}
}

func TestQuota(t *testing.T) {
	f := folder(t, "a")
	files := homeOf(t, f, "a")
	if _, err := f.Change("a", func(s *Sandbox) error { s.Quota = 1 << 20; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "big"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take("a"); err == nil {
		t.Error("taken over its quota")
	} else if _, ok := errors.AsType[*homes.OverQuotaError](err); !ok {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(files, "big")); err != nil {
		t.Fatal(err)
	}
	deep := files
	for range 300 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take("a"); !errors.Is(err, homes.ErrTooDeep) {
		t.Errorf("a deep tree: %v", err)
	}
	if err := f.Remove("a"); err != nil {
		t.Error(err)
	}
}

func homeOf(t *testing.T, f Folder, name string) string {
	t.Helper()
	s, err := f.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return f.Homes(s).Files(Home)
}
