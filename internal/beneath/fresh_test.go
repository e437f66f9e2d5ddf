// SPDX-License-Identifier: Apache-2.0

package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// M-2: whoever writes the folder above swaps what was made for something of this user's, which must not become theirs.
func TestFreshIsWhatWasMade(t *testing.T) {
	for name, swap := range map[string]func(t *testing.T, at string){
		"ours": func(*testing.T, string) {},
		"link": func(t *testing.T, at string) { swapped(t, at, func() error { return os.Symlink("/etc", at) }) },
		"file": func(t *testing.T, at string) { swapped(t, at, func() error { return os.WriteFile(at, nil, 0o600) }) },
		"wider": func(t *testing.T, at string) {
			swapped(t, at, func() error { return errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, 0o755)) })
		},
		"full": func(t *testing.T, at string) {
			swapped(t, at, func() error {
				return errors.Join(os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, "x"), nil, 0o600))
			})
		},
		"another's": func(t *testing.T, at string) {
			if os.Geteuid() != 0 {
				t.Skip("need: root, to give files away")
			}
			swapped(t, at, func() error { return errors.Join(os.Mkdir(at, 0o700), os.Chown(at, 1234, 1234)) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := unix.Mkdirat(int(dir.Fd()), "new", 0o700); err != nil {
				t.Fatal(err)
			}
			swap(t, filepath.Join(dir.Name(), "new"))
			f, err := Fresh(int(dir.Fd()), "new", 0o700)
			if err == nil {
				defer f.Close()
			}
			if name == "ours" && err != nil || name != "ours" && !errors.Is(err, ErrNotFresh) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func swapped(t *testing.T, at string, by func() error) {
	t.Helper()
	if err := errors.Join(os.Remove(at), by()); err != nil {
		t.Fatal(err)
	}
}

// As with folders.
func TestGivenLinkIsTheOneMade(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	at, uid, gid := filepath.Join(dir.Name(), "link"), os.Geteuid(), os.Getegid()
	if err := os.Symlink("made", at); err != nil {
		t.Fatal(err)
	}
	if err := GiveLink(int(dir.Fd()), "link", "made", uid, gid); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"mad", "made/", "other"} {
		if err := GiveLink(int(dir.Fd()), "link", other, uid, gid); !errors.Is(err, ErrNotFresh) {
			t.Errorf("%s: %v", other, err)
		}
	}
	swapped(t, at, func() error { return os.WriteFile(at, []byte("made"), 0o600) })
	if err := GiveLink(int(dir.Fd()), "link", "made", uid, gid); !errors.Is(err, ErrNotFresh) {
		t.Error(err)
	}
}
