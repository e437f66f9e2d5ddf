// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A-L7: whoever makes the folder first, and whatever it is, this user has one, and always the same.
func TestClaimPlace(t *testing.T) {
	foreign := map[string]func(string) error{
		"nothing":          func(string) error { return nil },
		"somebody's":       func(at string) error { return os.Mkdir(at, 0o777) }, // as foreign as a test without root can have it: others may write it
		"a link":           func(at string) error { return os.Symlink("/", at) },
		"a file":           func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"somebody else's":  func(at string) error { return asOther(at) },
		"a dangling link":  func(at string) error { return os.Symlink("nowhere", at) },
		"a link to itself": func(at string) error { return os.Symlink(filepath.Base(at), at) },
	}
	for name, make := range foreign {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			at := filepath.Join(tmp, "agentrun-7")
			if err := make(at); err != nil {
				t.Fatal(err)
			}
			if name == "somebody's" {
				if err := os.Chmod(at, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]bool{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					dir := claimPlace(tmp, "agentrun-7")
					mu.Lock()
					defer mu.Unlock()
					got[dir] = true
				})
			}
			wg.Wait()
			if len(got) != 1 {
				t.Fatalf("got %v, want one for all", got)
			}
			for dir := range got {
				if (dir == at) != (name == "nothing") {
					t.Errorf("got %s", dir)
				}
				// The squatter goes, or comes back: nothing changes.
				if dir != at {
					if err := os.RemoveAll(at); err != nil {
						t.Fatal(err)
					}
				}
				if again := claimPlace(tmp, "agentrun-7"); again != dir {
					t.Errorf("afterwards got %s, want %s", again, dir)
				}
			}
			if other := claimPlace(tmp, "agentrun-77"); filepath.Base(other) != "agentrun-77" {
				t.Errorf("another user got %s", other)
			}
		})
	}
}

func asOther(at string) error {
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		return os.Chown(at, 4321, 4321)
	}
	return os.Chmod(at, 0o777) //nolint:gosec // it is to be no good
}
