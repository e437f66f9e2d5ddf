// SPDX-License-Identifier: Apache-2.0

package images

import (
	"os"
	"path/filepath"
	"testing"
)

// Who the user is stands in the image's own files; where those lead out of it, there is nothing to read.
func TestWhoIs(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(user string, uid, gid int) {
		t.Helper()
		if u, g, err := WhoIs(root, user); err != nil || u != uid || g != gid {
			t.Errorf("%q: %d:%d %v, want %d:%d", user, u, g, err, uid, gid)
		}
	}
	check("", 0, 0)
	check("app", -1, 0)
	check("1000", 1000, 0)
	check("1000:2000", 1000, 2000)
	write("etc/passwd", "root:x:0:0\nbroken\napp:x:10:20:::\nbad:x:-1:x:\nhuge:x:99999999999:1:\n")
	write("etc/group", "wheel:x:30:\n:::\n")
	check("app", 10, 20)
	check("app:wheel", 10, 30)
	check("app:77", 10, 77)
	check("app:none", 10, -1)
	check("10", 10, 20)
	check("bad", -1, -1)
	check("huge", -1, 1)
	check("nobody", -1, 0)
	check("root", 0, 0)
	secret := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(secret, []byte("outside:x:1:2:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{secret, "../../../../../../.." + secret, "passwd"} {
		if err := os.Remove(filepath.Join(root, "etc/passwd")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, "etc/passwd")); err != nil {
			t.Fatal(err)
		}
		check("outside", -1, 0)
	}
}
