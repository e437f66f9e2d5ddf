// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Which files count, for which owner.
func TestLookForSetID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, to give files away")
	}
	const agent = 4321
	capability := "\x01\x00\x00\x02\x00\x00\x20\x00" + strings.Repeat("\x00", 12)
	for _, c := range []struct {
		name     string
		mode     uint32
		uid, gid int
		caps     bool
		found    bool
	}{
		{"plain", 0o755, agent, agent, false, false},
		{"set-uid", 0o4755, agent, agent, false, true},
		{"set-uid, not writable yet", 0o4555, agent, 0, false, true},
		{"set-gid", 0o2755, agent, agent, false, true},
		{"set-gid, not executable yet", 0o2644, agent, agent, false, true},
		{"capability", 0o755, agent, agent, true, true},
		{"capability, not executable yet", 0o600, agent, agent, true, true},
		{"root's", 0o4755, 0, 0, false, false}, // as Electron's sandbox helper in node_modules
		{"root's with capability", 0o755, 0, 0, true, false},
		{"root's, for all", 0o4757, 0, 0, false, true},
		{"root's, for the group or by a list", 0o4775, 0, agent, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "a", "b", "file")
			for _, err := range []error{
				os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("x"), 0o600), os.Chown(file, c.uid, c.gid), unix.Chmod(file, c.mode),
				os.Symlink("/usr/bin", filepath.Join(dir, "link")), os.Symlink("..", filepath.Join(dir, "a", "loop")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o6777),
				os.Mkdir(filepath.Join(dir, "folder"), 0o755), unix.Chmod(filepath.Join(dir, "folder"), 0o7777),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if c.caps {
				if err := unix.Setxattr(file, "security.capability", []byte(capability), 0); err != nil {
					t.Fatal(err)
				}
			}
			for _, at := range []string{dir, file} {
				err := LookForSetID(at, &Owner{agent, agent})
				found, ok := errors.AsType[*SetIDError](err)
				if ok != c.found || ok && (len(found.Files) != 1 || found.Files[0] != file || found.Hint() == "") {
					t.Errorf("%s: got %v, want found %v", at, err, c.found)
				}
			}
		})
	}
	if found, ok := errors.AsType[*SetIDError](LookForSetID(filepath.Join(t.TempDir(), "missing"), nil)); !ok || found.Why == "" || found.Hint() == "" {
		t.Errorf("a folder that isn't there: got %v", found)
	}
}

// Another run may be taking its guards away, or a build its folders: what goes while it is looked at is nothing to refuse a run for.
func TestLookForSetIDInWhatGoes(t *testing.T) {
	dir := t.TempDir()
	stop, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := filepath.Join(dir, string(rune('a'+i%26)))
			_, _ = os.Mkdir(name, 0o755), os.Remove(name)
		}
	}()
	for range 5000 {
		if err := LookForSetID(dir, nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-gone
}

func BenchmarkLookForSetID(b *testing.B) {
	dir := b.TempDir()
	for i := range 100 {
		sub := filepath.Join(dir, string(rune('a'+i%26)), string(rune('a'+i/26)))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(sub, strings.Repeat("n", j+1)), []byte("x"), 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if err := LookForSetID(dir, &Owner{}); err != nil {
			b.Fatal(err)
		}
	}
}
