// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Many at once: one key, made by one of them, and no rests.
func TestH26KeyIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var wg sync.WaitGroup
	var made atomic.Int64
	publics := make([]string, 16)
	for i := range publics {
		wg.Go(func() {
			k, created, err := LoadOrCreateKey(dir)
			if err != nil {
				t.Error(err)
				return
			}
			if created {
				made.Add(1)
			}
			publics[i] = k.Public()
		})
	}
	wg.Wait()
	for _, p := range publics {
		if p != publics[0] {
			t.Errorf("keys %s and %s", p, publics[0])
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || made.Load() != 1 {
		t.Errorf("%d made, files %v, %v", made.Load(), entries, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "audit.key")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	k, err := LoadKey(dir)
	if err != nil || k.Public() != publics[0] || !strings.Contains(k.Public(), "+"+k.ID()+"+") {
		t.Errorf("loaded %v, %v", k, err)
	}
}

func TestH26KeyModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := LoadKey(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, _, err := LoadOrCreateKey(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "audit.key")
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		mode fs.FileMode
	}{{file, 0o640}, {file, 0o604}, {file, 0o620}, {dir, 0o750}, {dir, 0o701}} {
		good, _ := os.Stat(c.path)
		os.Chmod(c.path, c.mode)
		var mode *ModeError
		if _, err := LoadKey(dir); !errors.As(err, &mode) || mode.Path != c.path || mode.Mode != c.mode {
			t.Errorf("%s %v: %v", c.path, c.mode, err)
		}
		if _, created, err := LoadOrCreateKey(dir); !errors.As(err, &mode) || created {
			t.Errorf("%s %v: %v", c.path, c.mode, err)
		}
		os.Chmod(c.path, good.Mode())
	}
	// What is no key is an error that doesn't show the text: it may be most of one.
	for _, text := range []string{"", "x", string(secret[:len(secret)-5]), string(secret) + "x", strings.Replace(string(secret), "agentrun", "xgentrun", 1)} {
		os.WriteFile(file, []byte(text), 0o600)
		if _, err := LoadKey(dir); err == nil || len(text) > 30 && strings.Contains(err.Error(), text[30:40]) {
			t.Errorf("%q: %v", text, err)
		}
	}
	os.Remove(file)
	other := filepath.Join(t.TempDir(), "x")
	os.WriteFile(other, secret, 0o600)
	os.Symlink(other, file)
	if _, err := LoadKey(dir); err == nil {
		t.Error("a link is a key")
	}
}

func TestH26OwnNotesAreKnownAgain(t *testing.T) {
	key := func() *SigningKey {
		k, _, err := LoadOrCreateKey(filepath.Join(t.TempDir(), "keys"))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ours, theirs := key(), key()
	k := Checkpoints{Key: ours}
	signed, c, err := k.sign(Checkpoint{Chain: NodeChain, Size: 3, File: 1, Offset: 9})
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := ours.made(signed); !ok || text != c.text() {
		t.Errorf("made: %q, %t", text, ok)
	}
	if got, err := k.open(signed); err != nil || got != c {
		t.Errorf("opened: %+v, %v", got, err)
	}
	// What isn't what the key would sign is left to the signature's own check.
	other, _, err := (&Checkpoints{Key: theirs}).sign(c)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := bytes.Cut(other, []byte("\n\n"))
	both := append(bytes.Clone(signed), line...)
	if _, ok := ours.made(both); ok {
		t.Error("a note with another signature is taken for one of our making")
	}
	if got, err := k.open(both); err != nil || got != c {
		t.Errorf("with another signature: %+v, %v", got, err)
	}
	for i := range signed {
		bad := bytes.Clone(signed)
		bad[i] ^= 1
		if _, ok := ours.made(bad); ok {
			t.Errorf("byte %d changed: taken for ours", i)
		}
		// Of the last letter before "=" base64 has two bits that say nothing: it may be the same signature.
		if got, err := k.open(bad); !errors.Is(err, ErrBadSignature) && (i != len(bad)-3 || got != c) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for name, bad := range map[string][]byte{"another key": other, "nothing": nil, "no text": []byte("\n\n"), "text alone": []byte(c.text())} {
		if _, err := k.open(bad); !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
