// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// H-32: participants of a session whose runs live at the same time and write the same file are told so, whichever way they write it, and
// both versions are on record; what was written before a run began it has before it, and that is no conflict. Strong sessions have one
// writer at a time.
func TestH32FilesOfASession(t *testing.T) {
	for _, mode := range []string{"causal", "eventual"} {
		t.Run(mode, func(t *testing.T) {
			p := newPlace(t)
			p.must("session", "create", "s", "--mode", mode)
			for _, agent := range []string{"one", "two"} {
				p.must("agent", "score", agent, "0.7")
				p.must("session", "join", "s", "--agent", agent)
			}
			start := func(agent string) *told {
				return p.agent(agent, opts{profile: "ring2", flags: []string{"--agent", agent, "--session", "s"}})
			}
			one, two := start("one"), start("two")
			one.expect("ok", "create /workspace/both first!", "create /workspace/alone first", "create /workspace/tmp moved", "rename /workspace/tmp /workspace/moved")
			two.expect("ok", "create /workspace/other second", "create /workspace/same x")
			one.expect("ok", "create /workspace/same x")
			if r := one.quit(); len(r.status.FileConflicts) != 0 {
				t.Errorf("the first: %q", r.status.FileConflicts)
			}
			two.expect("ok", "create /workspace/both second", "create /workspace/tmp again", "rename /workspace/tmp /workspace/moved")
			r := two.quit()
			if want := []string{"both", "moved"}; !slices.Equal(sorted(r.status.FileConflicts), want) {
				t.Errorf("the second: %q, want %q", r.status.FileConflicts, want)
			}
			later := start("one")
			later.expect("ok", "create /workspace/both thirds")
			if r := later.quit(); len(r.status.FileConflicts) != 0 {
				t.Errorf("a later run: %q", r.status.FileConflicts)
			}
			sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
			found := false
			for _, e := range (node{t, p.state}).audit("session-s") {
				if e.Kind == "conflict" && e.Data["key"] == sum("both") {
					found = true
					if got := fmt.Sprint(e.Data["kept"], e.Data["kept_by"], e.Data["lost"], e.Data["lost_by"]); got != fmt.Sprint(sum("second"), "two", sum("first!"), "one") {
						t.Errorf("on record: %v", e.Data)
					}
				}
			}
			if !found {
				t.Error("no conflict is on record")
			}
			if got, err := os.ReadFile(filepath.Join(p.state, "sessions/s/workspace/both")); err == nil && string(got) != "thirds" {
				t.Errorf("left %q", got)
			}
		})
	}
}

// H-32: files of one name in different folders, and copies of one folder, are different files, whatever session their runs are of.
func TestH32FilesOfTwoFolders(t *testing.T) {
	p := newPlace(t)
	p.must("session", "create", "s", "--mode", "eventual")
	for _, agent := range []string{"one", "two"} {
		p.must("agent", "score", agent, "0.7")
		p.must("session", "join", "s", "--agent", agent)
	}
	folder := t.TempDir()
	for name, of := range map[string]struct {
		one, two []string
		want     []string
	}{
		"two folders": {[]string{"--workspace", t.TempDir()}, []string{"--workspace", t.TempDir()}, nil},
		"its own":     {[]string{"--workspace", t.TempDir()}, nil, nil},
		"two copies":  {[]string{"--workspace-mode", "overlay"}, []string{"--workspace-mode", "overlay"}, nil},
		"one folder":  {[]string{"--workspace", folder}, []string{"--workspace", folder}, []string{"both"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := place{t, p.run, p.state}
			start := func(agent string, flags []string) *told {
				return p.agent(agent, opts{profile: "ring2", flags: append([]string{"--agent", agent, "--session", "s"}, flags...)})
			}
			one, two := start("one", of.one), start("two", of.two)
			one.expect("ok", "create /workspace/both first!")
			if r := one.quit(); len(r.status.FileConflicts) != 0 { // what it wrote has been read
				t.Errorf("the first: %q", r.status.FileConflicts)
			}
			two.expect("ok", "create /workspace/both second")
			if r := two.quit(); !slices.Equal(r.status.FileConflicts, of.want) {
				t.Errorf("the second: %q, want %q", r.status.FileConflicts, of.want)
			}
		})
	}
}
