// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentrun/fsjail"
	"agentrun/internal/beneath"
	"agentrun/runtime"
)

// start is one of a sandbox that leaves these files in its layer; it is over when it returns.
func start(t *testing.T, l Layer, ws string, files ...string) {
	t.Helper()
	if err := l.Begin(ws, os.Getuid(), os.Getgid(), nil); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		put := filepath.Join(runtime.OverlayChanges(l.Dir), f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(put), 0o755), os.WriteFile(put, []byte("agent"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func host(t *testing.T, ws string, files ...string) {
	t.Helper()
	time.Sleep(2 * clockTick)
	for _, f := range files {
		at := filepath.Join(ws, f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("host"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * clockTick)
}

func conflicts(t *testing.T, l Layer) string {
	t.Helper()
	s, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range list {
		if c.Conflict != "" {
			all = append(all, c.Path)
		}
	}
	return strings.Join(all, " ")
}

// M-2: since when a path is the sandbox's is known over any number of starts, also of names that no text can have, of files made anew, and
// when what was known is lost.
func TestLayerRemembers(t *testing.T) {
	ws, l := t.TempDir(), Layer{Sandbox: "dev", Dir: t.TempDir(), Most: 1 << 20}
	odd := []string{"a\xff", "a\xfe", "a\ufffd", "a\"\n"}
	host(t, ws, append(odd, "b", "d/x")...)
	start(t, l, ws, odd[0], odd[3])
	host(t, ws, append(odd, "b")...)
	start(t, l, ws, append(odd, "b", "d/x")...) // the first and the last are made anew
	if got := conflicts(t, l); got != odd[3]+" "+odd[0] {
		t.Errorf("in conflict: %q", got)
	}
	start(t, l, ws)
	if got := conflicts(t, l); got != odd[3]+" "+odd[0] {
		t.Errorf("a start later: %q", got)
	}
	// One that has gone from the layer for a while is no newer for that.
	if err := os.Remove(filepath.Join(runtime.OverlayChanges(l.Dir), odd[0])); err != nil {
		t.Fatal(err)
	}
	start(t, l, ws)
	start(t, l, ws, odd[0])
	if got := conflicts(t, l); got != odd[3]+" "+odd[0] {
		t.Errorf("away and back: %q", got)
	}
	if err := os.WriteFile(l.about(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(ws, 0, 0, nil); err == nil {
		t.Error("a start with what can't be read")
	}
	if _, err := l.Open(); err == nil {
		t.Error("a look with what can't be read")
	}
	if err := os.Remove(l.about()); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(ws, 0, 0, nil); err == nil || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("a start without what was known: %v", err)
	}
	if _, err := l.Open(); err == nil || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("a look without what was known: %v", err)
	}
}

// Nobody reads half a record, and none leads elsewhere.
func TestLayerFollowsNoLink(t *testing.T) {
	ws, l, secret := t.TempDir(), Layer{Sandbox: "dev", Dir: t.TempDir(), Most: 1 << 20}, filepath.Join(t.TempDir(), "secret")
	start(t, l, ws)
	if err := os.WriteFile(secret, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, l.about()+".new"); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(ws, 0, 0, nil); err == nil {
		t.Error("a record was written through a link")
	}
	if b, _ := os.ReadFile(secret); string(b) != "host" {
		t.Errorf("it holds %q", b)
	}
	link := filepath.Join(t.TempDir(), "ws")
	if err := os.Symlink(ws, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(l.about() + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(link, 0, 0, nil); err == nil {
		t.Error("a workspace that is a link by now was taken")
	}
}

// M-2: what is kept of the paths is bounded also where each byte is written down as five: 900 files in folders of such names took 2.1 GB of
// whoever started the sandbox, a daemon with all of its runs. Where they are short their number is (fsjail's TestPathsOfATreeAreCounted).
func TestLayerOfOddNames(t *testing.T) {
	ws, l := t.TempDir(), Layer{Sandbox: "dev", Dir: t.TempDir(), Most: 1 << 30}
	start(t, l, ws, "a")
	in, err := os.OpenRoot(runtime.OverlayChanges(l.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	const depth = 200
	at, odd := in, strings.Repeat("\x01", 255)
	for range depth {
		err := at.Mkdir(odd, 0o755)
		if err == nil {
			at, err = at.OpenRoot(odd)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
	}
	for i := range fsjail.MaxPaths/(4*depth*255) + 1 {
		if err := at.WriteFile(strconv.Itoa(i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(ws, 0, 0, nil); !errors.Is(err, fsjail.ErrTooManyNames) {
		t.Errorf("start: %v", err)
	}
	if err := beneath.RemoveAll(l.Dir); err != nil { // the test's own removal has a descriptor for each folder
		t.Error(err)
	}
}
