// SPDX-License-Identifier: Apache-2.0

package outputs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestM18OutputIsSwept(t *testing.T) {
	o := Folder{StateDir: t.TempDir()}
	for name, age := range map[string]time.Duration{"old": 48 * time.Hour, "young": time.Hour} {
		f, err := o.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		at := time.Now().Add(-age)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Create(name); err == nil {
			t.Error("two runs write one file")
		}
	}
	other := filepath.Join(o.dir(), "not-ours")
	if err := os.Symlink("/etc/passwd", other); err != nil {
		t.Fatal(err)
	}
	if err := o.sweep(24*time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(o.dir())
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v, want not-ours and young.log", left, err)
	}
}
