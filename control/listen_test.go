// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dead leaves a socket as a killed supervisor does.
func dead(t *testing.T, dir, name string) {
	t.Helper()
	l, err := Listen(dir, name, Access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.(*listener).Listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func mode(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	return info.Mode().String()
}

func TestListenModes(t *testing.T) {
	for _, c := range []struct {
		a                 Access
		run, folder, sock string
	}{
		{Access{}, "drwx------", "drwx--x--x", "Srw-------"},
		{Access{ReadGroup: -1, OperateGroup: -1}, "drwx------", "drwx--x--x", "Srw-------"},
		{Access{ReadGroup: 5}, "drwx--x--x", "drwxr-xr-x", "Srw-rw----"},
		{Access{OperateGroup: 5}, "drwx--x--x", "drwxr-xr-x", "Srw-rw----"},
		{Access{ReadGroup: 5, OperateGroup: 5}, "drwx--x--x", "drwxr-xr-x", "Srw-rw----"},
		{Access{ReadGroup: 5, OperateGroup: 6}, "drwx--x--x", "drwxr-xr-x", "Srw-rw-rw-"},
	} {
		dir := runDir(t)
		l, err := Listen(dir, "a", c.a)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(dir, "control")
		got := []string{mode(t, dir), mode(t, folder), mode(t, filepath.Join(folder, "a.sock"))}
		if diff := cmp.Diff([]string{c.run, c.folder, c.sock}, got); diff != "" {
			t.Errorf("%+v: %s", c.a, diff)
		}
		l.Close()
		if _, err := os.Lstat(filepath.Join(folder, "a.sock")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, want the socket gone", err)
		}
		// A second supervisor without groups takes nothing from the first.
		l, err = Listen(dir, "b", Access{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := mode(t, folder); got != c.folder {
			t.Errorf("got %s, want %s as before", got, c.folder)
		}
	}
}

func TestListenDeep(t *testing.T) {
	dir := filepath.Join(runDir(t), strings.Repeat("deep/", 40))
	name := strings.Repeat("n", maxName)
	s := startIn(t, dir, name, newFake(), Access{})
	if _, err := s.client.Sandboxes(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListenReplacesOnlyTheDead(t *testing.T) {
	dir := runDir(t)
	dead(t, dir, "a")
	l, err := Listen(dir, "a", Access{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(dir, "a", Access{}); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want %v", err, ErrInUse)
	}
	// The first, closed late, doesn't take the socket of who came after it.
	path := filepath.Join(dir, "control", "a.sock")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(dir, "a", Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	// Twenty at once: one has it.
	var won, wg = make(chan net.Listener, 20), sync.WaitGroup{}
	for range 20 {
		wg.Go(func() {
			if l, err := Listen(dir, "b", Access{}); err == nil {
				won <- l
			} else if !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("got %d listeners of one name, want 1", len(won))
	}
	(<-won).Close()
	if err := os.WriteFile(filepath.Join(dir, "control", "c.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(dir, "c", Access{}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("got %v, want a file left alone", err)
	}
}

func TestListenRefuses(t *testing.T) {
	dir := runDir(t)
	for _, name := range []string{"", ".", "..", ".new", "a/b", "a b", "é", "a\x00", strings.Repeat("a", maxName+1)} {
		if l, err := Listen(dir, name, Access{}); err == nil {
			l.Close()
			t.Errorf("%q: got none, want an error", name)
		}
		if _, err := Open(dir, name); err == nil {
			t.Errorf("open %q: got none, want an error", name)
		}
	}
	// A folder where others put sockets, or that leads elsewhere, is nobody's.
	open := runDir(t)
	if err := errors.Join(os.Mkdir(filepath.Join(open, "control"), 0o700), os.Chmod(filepath.Join(open, "control"), 0o777)); err != nil {
		t.Fatal(err)
	}
	theirs := runDir(t)
	if err := errors.Join(os.Mkdir(filepath.Join(theirs, "control"), 0o700), os.Lchown(filepath.Join(theirs, "control"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	linked := runDir(t)
	if err := os.Symlink(dir, filepath.Join(linked, "control")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, theirs, linked} {
		if l, err := Listen(dir, "a", Access{}); err == nil {
			l.Close()
			t.Errorf("got none, want an error")
		}
	}
}

func TestSweep(t *testing.T) {
	dir := runDir(t)
	if removed, err := Sweep(dir); err != nil || len(removed) != 0 {
		t.Errorf("got %v, %v, want nothing of nothing", removed, err)
	}
	dead(t, dir, "a")
	dead(t, dir, "b")
	live, err := Listen(dir, "live", Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := os.WriteFile(filepath.Join(dir, "control", "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := Sweep(dir)
	if diff := cmp.Diff([]string{"a", "b"}, removed); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	got, err := names(dir)
	if diff := cmp.Diff([]string{"live"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestAllAndFind(t *testing.T) {
	dir := runDir(t)
	if all, err := All(t.Context(), dir); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	for name, runs := range map[string][]Sandbox{
		"abc1":   {{ID: "abc1", Name: "planner", StartedAt: at(3)}},
		"abd2":   {{ID: "abd2", Name: "twin", StartedAt: at(2)}},
		"daemon": {{ID: "xyz", Name: "twin", StartedAt: at(1)}, {ID: "abc", StartedAt: at(4)}, {ID: "planner2", StartedAt: at(5)}},
		"empty":  nil,
	} {
		f := newFake()
		f.runs = runs
		startIn(t, dir, name, f, Access{})
	}
	dead(t, dir, "dead")
	all, err := All(t.Context(), dir)
	var got []string
	for _, f := range all {
		got = append(got, f.ID+"@"+f.Client.Name())
	}
	if diff := cmp.Diff([]string{"xyz@daemon", "abd2@abd2", "abc1@abc1", "abc@daemon", "planner2@daemon"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	find := func(ref string) string {
		f, err := Find(t.Context(), dir, ref)
		if e, ok := errors.AsType[*Error](err); ok {
			return e.Code + " " + e.Message + " " + e.Hint
		}
		if err != nil {
			return err.Error()
		}
		return f.ID
	}
	for ref, want := range map[string]string{
		"abc1": "abc1", "abc": "abc", "x": "xyz", "abd": "abd2", "planner": "abc1", "planner2": "planner2", "plan": "planner2",
		"twin":    `ambiguous "twin" fits 2 runs: xyz (twin), abd2 (twin) give more of the id`,
		"ab":      `ambiguous "ab" fits 3 runs: abd2 (twin), abc1 (planner), abc give more of the id`,
		"nobody":  `not_found no live run "nobody" agentrun ps --all`,
		"daemon":  `not_found no live run "daemon" agentrun ps --all`,
		"../abc1": `not_found no live run "../abc1" agentrun ps --all`,
		"":        `bad_request want a run's id, a prefix of one, or a name agentrun ps`,
	} {
		if got := find(ref); got != want {
			t.Errorf("%q: got %s, want %s", ref, got, want)
		}
	}
	// One that hangs is named, and hides no other; only a whole id is certain then.
	hung, err := Listen(dir, "hung", Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	var wg sync.WaitGroup // each of the three takes the two seconds that the hung one has
	wg.Go(func() {
		all, err := All(t.Context(), dir)
		if len(all) != 5 || err == nil || !strings.Contains(err.Error(), "hung") {
			t.Errorf("got %d runs, %v, want 5 and an error about hung", len(all), err)
		}
	})
	wg.Go(func() {
		if got := find("xyz"); got != "xyz" {
			t.Errorf("got %s, want xyz", got)
		}
	})
	wg.Go(func() {
		if got := find("planner"); !strings.HasPrefix(got, CodeUnreached) || !strings.Contains(got, "hung") {
			t.Errorf("got %s, want %s: another of that name may hang", got, CodeUnreached)
		}
	})
	wg.Wait()
}

// One that ends while it is asked has no runs; it doesn't keep others from being found. One that only answers badly does.
func TestM23FindBesideOneThatEnds(t *testing.T) {
	for name, ends := range map[string]bool{"ends": true, "lives": false} {
		dir := runDir(t)
		f := newFake()
		f.runs = []Sandbox{{ID: "abc1", Name: "planner"}}
		startIn(t, dir, "abc1", f, Access{})
		l, err := Listen(dir, "other", Access{})
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if asked++; ends && asked == 2 {
					l.Close()
				}
				c.Close()
			}
		}()
		found, err := Find(t.Context(), dir, "planner")
		l.Close()
		<-done
		if e, _ := errors.AsType[*Error](err); ends && (err != nil || found.ID != "abc1") || !ends && (e == nil || e.Code != CodeUnreached) {
			t.Errorf("one that %s: got %q, %v", name, found.ID, err)
		}
		if asked < 2 || asked > 3 {
			t.Errorf("one that %s was asked %d times", name, asked)
		}
	}
}

// TestM23ImpostorIsNotBelieved: who listens must be root or who asks.
func TestM23ImpostorIsNotBelieved(t *testing.T) {
	dir := runDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "control"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o711), os.Lchown(filepath.Join(dir, "control"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	as(t, 1000, 1000, nil, func() {
		var err error
		l, err = net.Listen("unix", filepath.Join(dir, "control", "fake.sock"))
		if err != nil {
			t.Error(err)
		}
	})
	defer l.Close()
	_, err := (&Client{dir, "fake"}).Sandboxes(t.Context())
	if err == nil || !strings.Contains(err.Error(), "user 1000 listens there") {
		t.Errorf("got %v, want the impostor named", err)
	}
}

func TestClientContext(t *testing.T) {
	s := startServer(t, Access{})
	ctx, cancel := context.WithCancel(t.Context())
	s.hook = func(verb string) {
		if verb == "wait r1" {
			cancel()
		}
	}
	if _, err := s.client.Wait(ctx, "r1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	if _, err := Open(s.dir, "nobody"); err == nil || !strings.Contains(fmt.Sprint(err), "no supervisor") {
		t.Errorf("got %v, want not_found", err)
	}
	if _, err := Open(filepath.Join(s.dir, "none"), "nobody"); err == nil {
		t.Error("got none, want an error")
	}
}

func TestClientEvents(t *testing.T) {
	s := startServer(t, Access{})
	s.bus.Publish(Event{Kind: EventStarted, ID: "r1"})
	s.bus.Publish(Event{Kind: EventEnded, ID: "r1", Data: map[string]string{"x": "a\nb\r: <"}})
	enough := errors.New("enough")
	var got []Event
	err := s.client.Events(t.Context(), 1, true, func(e Event) error { got = append(got, e); return enough })
	if !errors.Is(err, enough) || len(got) != 1 || got[0].Seq != 2 || got[0].Data["x"] != "a\nb\r: <" {
		t.Errorf("got %v, %v", got, err)
	}
	got = nil
	if err := s.client.Events(t.Context(), 0, false, func(e Event) error { got = append(got, e); return nil }); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v, want two", got, err)
	}
	if err := s.client.Events(t.Context(), 99, true, nil); err == nil || !strings.Contains(err.Error(), "after the newest") {
		t.Errorf("got %v, want a refusal", err)
	}
}
