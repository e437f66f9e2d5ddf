// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// M-11: a run reaches its session's folder and no other; writes need ring 2, the turn of a strong session, a call and room, whatever a
// gateway that was taken over says; an agent in quarantine has none of it.
func TestM11FilesOfARun(t *testing.T) {
	n := newNode(t)
	for session, mode := range map[string]rings.ConsistencyMode{"mine": rings.Eventual, "strong": rings.Strong} {
		if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: session, MaxParticipants: 4, MinParticipants: 1, ConsistencyMode: mode}); err != nil {
			t.Fatal(err)
		}
		for _, agent := range []string{"low", "high"} {
			if _, err := n.JoinSession(t.Context(), session, agent); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.score("high", 0.7, false)
	low, high, alone := n.memoryRun("r1", "low", "mine"), n.memoryRun("r2", "high", "mine"), n.memoryRun("r3", "high", "")
	turn := n.memoryRun("r4", "high", "strong")
	write := link.FileRequest{Op: link.FileWrite, Path: "notes/a", Data: []byte("text")}
	read := link.FileRequest{Op: link.FileRead, Path: "notes/a"}
	want := func(what string, b *Broker, q link.FileRequest, refused string) link.FileAnswer {
		t.Helper()
		a, err := b.File(t.Context(), q)
		if err != nil || a.Refused != refused || a.Allowed != (refused == "") {
			t.Errorf("%s: got %+v, %v, want refused %q", what, a, err, refused)
		}
		return a
	}
	want("ring 3 writes", low, write, link.FileRing)
	want("ring 3 deletes", low, link.FileRequest{Op: link.FileDelete, Path: "notes"}, link.FileRing)
	want("nothing is there", low, read, link.FileMissing)
	want("ring 2 writes", high, write, "")
	if a := want("ring 3 reads", low, read, ""); string(a.Data) != "text" || a.Bytes != 4 {
		t.Errorf("got %+v", a)
	}
	if b, err := os.ReadFile(filepath.Join(n.Workspace("mine"), "notes", "a")); err != nil || string(b) != "text" {
		t.Errorf("the workspace has %q, %v", b, err)
	}
	if a := want("list", low, link.FileRequest{Op: link.FileList}, ""); len(a.Entries) != 1 || a.Entries[0] != (link.FileEntry{Name: "notes", Kind: "folder"}) {
		t.Errorf("got %+v", a)
	}
	want("who has the turn", turn, write, "")
	for _, path := range []string{".git/config", "a/.envrc", ".npmrc", ".GIT/hooks/x"} {
		want("write "+path, high, link.FileRequest{Op: link.FileWrite, Path: path}, link.FileGuarded)
	}
	want("outside", high, link.FileRequest{Op: link.FileRead, Path: "../strong/notes/a"}, link.FilePath)
	if _, err := alone.File(t.Context(), link.FileRequest{Op: link.FileList}); err == nil {
		t.Error("a run without session lists")
	}
	large := link.FileRequest{Op: link.FileWrite, Path: "large", Data: []byte(strings.Repeat("x", link.MaxFilePiece))}
	for range MaxFileBytes / (link.MaxFilePiece + fileCosts) {
		want("room", high, large, "")
	}
	want("no room", high, large, link.FileQuota)
	high.written = high.taken
	if _, err := high.File(t.Context(), link.FileRequest{Op: link.FileDelete, Path: "large"}); err == nil {
		t.Error("more changes than calls")
	}
	if _, err := n.Quarantine(t.Context(), "low", Cause{Code: "operator", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := low.File(t.Context(), read); err == nil {
		t.Error("an agent in quarantine reads")
	}
}

// H-32: a run of a strong session that began in ring 3 has no turn, and writes when an elevation has taken it.
func TestM11FilesWithoutTheTurn(t *testing.T) {
	n := newNode(t)
	if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: "s", MaxParticipants: 2, MinParticipants: 1, ConsistencyMode: rings.Strong}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.JoinSession(t.Context(), "s", "a"); err != nil {
		t.Fatal(err)
	}
	n.score("a", 0.7, false)
	b := n.memoryRun("r", "a", "s")
	taken := b.control.adm.lock
	b.control.adm.lock = nil
	for _, refused := range []string{link.FileRing, ""} {
		a, err := b.File(t.Context(), link.FileRequest{Op: link.FileWrite, Path: "x"})
		if err != nil || a.Refused != refused {
			t.Errorf("got %+v, %v, want %q", a, err, refused)
		}
		b.control.turn.Store(taken)
	}
}
