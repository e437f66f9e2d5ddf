// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestH26CheckpointText(t *testing.T) {
	c := Checkpoint{Chain: "session-a_b", Size: 42, Hash: digestOf(1), File: 3, Offset: 4711, Time: at}
	want := "agentrun.audit/session-a_b\n" + // origin: what it is, and of which chain
		"42\n" + // entries
		base64.StdEncoding.EncodeToString(c.Hash[:]) + "\n" + // hash of entry 41
		"position 000003.jsonl 4711\n" + // where entry 41 ends
		"time 2026-11-21T07:02:51.012345670Z\n"
	if diff := cmp.Diff(want, c.text()); diff != "" {
		t.Error(diff)
	}
	if got, err := parseCheckpoint(want); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	for _, edit := range [][2]string{{"42", "042"}, {"42", "0"}, {"42", "-1"}, {"42", "99999999999999999999"}, {"agentrun.audit/", "other/"}, {"session-a_b", "../x"},
		{"position ", "position  "}, {"4711", "+4711"}, {"000003", "3"}, {"time ", ""}, {"Z\n", "Z\n\n"}, {"Z\n", "Z"}, {"AQID", "AQI"}} {
		if bad := strings.Replace(want, edit[0], edit[1], 1); bad == want {
			t.Errorf("%q isn't there", edit[0])
		} else if got, err := parseCheckpoint(bad); err == nil || got != (Checkpoint{}) {
			t.Errorf("%q accepted as %+v", bad, got)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(Checkpoint{Chain: "node", Size: 42, Hash: digestOf(1), File: 3, Offset: 4711, Time: at}.text())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCheckpoint(s)
		if (err == nil) == (c == Checkpoint{}) || err == nil && c.text() != s {
			t.Fatalf("%q: %+v, %v", s, c, err)
		}
	})
}

// Checkpoints while the chain grows over several files: each covers all, reads only what is new, and holds.
func TestH26CheckpointsGrow(t *testing.T) {
	dir := t.TempDir()
	k := &Checkpoints{Dir: filepath.Join(dir, "checkpoints"), Key: tempKey(t), Now: fixed(at)}
	l := openLog(t, dir, Options{RotateBytes: 1000})
	if _, _, err := k.Write(dir, NodeChain); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("empty chain: %v", err)
	}
	var notes [][]byte
	size := int64(0)
	for i := range 12 {
		appendN(t, l, i%3)
		note, c, err := k.Write(dir, NodeChain)
		if size == 0 && i == 0 {
			continue
		}
		if err != nil {
			t.Fatalf("checkpoint %d: %v", i, err)
		}
		if c.Size < size || i%3 == 0 && c.Size != size {
			t.Errorf("checkpoint %d covers %d entries after %d", i, c.Size, size)
		}
		size = c.Size
		stored, err := ReadCheckpoint(k.Dir, NodeChain)
		if err != nil || !bytes.Equal(stored, note) {
			t.Errorf("stored %q, %v", stored, err)
		}
		notes = append(notes, note)
	}
	r := verify(t, dir, VerifyOptions{Checkpoints: notes, Key: k.Key.Public()})
	if !r.Valid || r.SignedSize != size || r.Entries != size || r.Files < 3 || r.Checkpoints != len(notes) {
		t.Errorf("%+v %v", r, r.Problem)
	}
	slices.Reverse(notes)
	if r := verify(t, dir, VerifyOptions{Checkpoints: notes, Key: k.Key.Public()}); !r.Valid {
		t.Errorf("in another order: %v", r.Problem)
	}
	if fi, err := os.Stat(filepath.Join(k.Dir, NodeChain)); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

// A broken chain gets no signature, and the answer is Verify's.
func TestH26NoSignatureForABrokenChain(t *testing.T) {
	c := chainOf(t, 4)
	for name, tt := range map[string]struct {
		now  lines
		code Code
	}{
		"truncated":           {c[:1], Truncated},
		"truncated to none":   {nil, Truncated},
		"edited before":       {lines{bytes.Replace(c[0], []byte("mount"), []byte("chdir"), 1), c[1], c[2]}, ""},
		"signed entry edited": {lines{c[0], bytes.Replace(c[1], []byte("mount"), []byte("chdir"), 1), c[2]}, Edited},
		"edited behind":       {lines{c[0], c[1], bytes.Replace(c[2], []byte("mount"), []byte("chdir"), 1)}, Edited},
		"torn":                {lines{c[0], c[1], c[2][:9]}, Torn},
		"rewritten":           {rewritten(t, c), Rewritten},
	} {
		k := &Checkpoints{Dir: t.TempDir(), Key: tempKey(t), Now: fixed(at)}
		dir := write(t, c[:2])
		if _, _, err := k.Write(dir, NodeChain); err != nil {
			t.Fatal(err)
		}
		before, _ := ReadCheckpoint(k.Dir, NodeChain)
		os.WriteFile(filepath.Join(dir, NodeChain, fileName(1)), bytes.Join(tt.now, nil), 0o600)
		_, _, err := k.Write(dir, NodeChain)
		if tt.code == "" {
			// What the last checkpoint covers isn't read again for the next: the signature over its last entry's hash still
			// tells, whenever somebody verifies.
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			note, _ := ReadCheckpoint(k.Dir, NodeChain)
			if p := verify(t, dir, VerifyOptions{Checkpoints: [][]byte{note}, Key: k.Key.Public()}).Problem; p == nil || p.Code != Edited {
				t.Errorf("%s: %v", name, p)
			}
			continue
		}
		var broken *BrokenError
		if !errors.As(err, &broken) || broken.Problem.Code != tt.code {
			t.Errorf("%s: %v, want %s", name, err, tt.code)
		}
		if after, _ := ReadCheckpoint(k.Dir, NodeChain); !bytes.Equal(before, after) {
			t.Errorf("%s: the stored checkpoint changed", name)
		}
	}
	k := &Checkpoints{Dir: t.TempDir(), Key: tempKey(t)}
	dir := write(t, c)
	if _, _, err := k.Write(dir, NodeChain); err != nil {
		t.Fatal(err)
	}
	k.Key = tempKey(t)
	var broken *BrokenError
	if _, _, err := k.Write(dir, NodeChain); !errors.As(err, &broken) || broken.Problem.Code != BadSignature {
		t.Errorf("another key: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, NodeChain)); err != nil {
		t.Fatal(err)
	}
	k = &Checkpoints{Dir: t.TempDir(), Key: k.Key}
	if _, _, err := k.Write(dir, NodeChain); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no chain: %v", err)
	}
}

func rewritten(t *testing.T, c lines) lines {
	out, prev := slices.Clone(c), Hash{}
	for i := range out {
		out[i] = rehash(t, c[i], int64(i), prev, func(r *Refusal) { r.Count += 7 })
		prev = hashOf(t, out[i])
	}
	return out
}

// Checkpoints while others append and checkpoint: none is ever wrong, the stored one never goes back.
func TestH26ConcurrentCheckpoints(t *testing.T) {
	dir, key := t.TempDir(), tempKey(t)
	checkpoints := filepath.Join(dir, "checkpoints")
	var wg sync.WaitGroup
	for w := range 4 {
		l := openLog(t, dir, Options{RotateBytes: 4000})
		k := &Checkpoints{Dir: checkpoints, Key: key}
		wg.Go(func() {
			last := int64(0)
			for i := range 20 {
				if _, err := l.Append(&Refusal{RunID: fmt.Sprint(w), Count: int64(i), Syscall: "x", Verdict: "EPERM"}); err != nil {
					t.Error(err)
				}
				_, c, err := k.Write(dir, NodeChain)
				if err != nil || c.Size < last {
					t.Errorf("size %d after %d, %v", c.Size, last, err)
				}
				last = c.Size
			}
		})
	}
	wg.Wait()
	note, err := ReadCheckpoint(checkpoints, NodeChain)
	if err != nil {
		t.Fatal(err)
	}
	r := verify(t, dir, VerifyOptions{Checkpoints: [][]byte{note}, Key: key.Public()})
	if !r.Valid || r.SignedSize < 80 {
		t.Errorf("%+v %v", r, r.Problem)
	}
}

// A note that says of entries that they are there has its name only when they are on disk.
func TestH26NoteWaitsForItsEntries(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	key, _, err := LoadOrCreateKey(keys)
	if err != nil {
		t.Fatal(err)
	}
	k := Checkpoints{Dir: filepath.Join(t.TempDir(), "checkpoints"), Key: key}
	store := func(size int64, of replaces, synced func() error) ([]byte, error) {
		signed, c, err := k.sign(Checkpoint{Chain: NodeChain, Size: size, File: 1, Offset: 9})
		if err != nil {
			t.Fatal(err)
		}
		begun := false
		_, _, err = k.store(signed, c, of, func() { begun = true }, func() error {
			if now, _, err := k.last(NodeChain); err != nil || !bytes.Equal(now, of.note) || !begun {
				t.Errorf("before the sync: %q, %v; begun: %t", now, err, begun)
			}
			return synced()
		})
		return signed, err
	}
	first, err := store(3, replaces{}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	now, c, err := k.last(NodeChain)
	if err != nil || !bytes.Equal(now, first) || c.Size != 3 {
		t.Fatalf("stored: %q, %+v, %v", now, c, err)
	}
	if _, err := store(4, replaces{note: now, of: c}, func() error { return unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("entries that are not on disk: %v", err)
	}
	if again, _, err := k.last(NodeChain); err != nil || !bytes.Equal(again, first) {
		t.Errorf("after it: %q, %v", again, err)
	}
	if files, err := os.ReadDir(k.Dir); err != nil || len(files) != 1 {
		t.Errorf("left: %v, %v", files, err)
	}
	// What others have stored meanwhile is looked at, whatever this process has read.
	second, err := store(5, replaces{note: now, of: c}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if theirs, stored, err := k.store([]byte("late"), Checkpoint{Chain: NodeChain, Size: 4}, replaces{note: now, of: c}, func() {}, nil); err != nil || stored.Size != 5 || !bytes.Equal(theirs, second) {
		t.Errorf("a late one: %q, %+v, %v", theirs, stored, err)
	}
}
