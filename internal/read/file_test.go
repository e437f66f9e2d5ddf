// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestThreatTakeoverForeignFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good, foreign, fifo, link := put("good", "12345678", 0o644), put("foreign", "x", 0o644), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Symlink(good, link)); err != nil {
		t.Fatal(err)
	}
	root := os.Chown(foreign, 65534, 65534) == nil
	for _, tt := range []struct {
		name, path string
		deny       uint32
		is         error
		want       string // of text or error
	}{
		{"as large as it may be", good, OthersMayWrite, nil, "12345678"},
		{"behind a link", link, OthersMayWrite, nil, "12345678"},
		{"larger", put("large", "123456789", 0o600), OthersMayWrite, nil, "longer than 8 bytes"},
		{"the group may write", put("group", "x", 0o664), OthersMayWrite, fs.ErrPermission, "mode 0664, want at most 0755"},
		{"others may write", put("others", "x", 0o602), OthersMayWrite, fs.ErrPermission, "mode 0602"},
		{"others may read", good, 0o077, fs.ErrPermission, "mode 0644, want at most 0700"},
		{"a FIFO", fifo, OthersMayWrite, fs.ErrPermission, "no regular file"},
		{"a folder", dir, OthersMayWrite, fs.ErrPermission, "no regular file"},
		{"nothing", filepath.Join(dir, "none"), OthersMayWrite, fs.ErrNotExist, "no such file"},
		{"another user's", foreign, OthersMayWrite, fs.ErrPermission, "belongs to user 65534"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.path == foreign && !root {
				t.Skip("need: root, to give files away")
			}
			text, err := File(tt.path, tt.deny, 8)
			if err != nil {
				text = []byte(err.Error())
			}
			if tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(string(text), tt.want) {
				t.Errorf("got %q, %v, want %q, %v", text, err, tt.want, tt.is)
			}
		})
	}
}

func TestTexts(t *testing.T) {
	n := YAML(Source{Max: 1 << 10, Partial: true}, []byte("a: /x\nb: [1, {c: \"\\x2fy\", d: [no, ~]}]\ne: >\n  folded\n  text\n"))
	got := slices.Collect(n.Texts())
	if diff := cmp.Diff([]string{"/x", "1", "/y", "no", "~", "folded text\n"}, got); diff != "" {
		t.Error(diff)
	}
	for range n.Texts() {
		break // whoever has enough may stop
	}
	if got := slices.Collect((*Node)(nil).Texts()); got != nil {
		t.Errorf("of nothing: got %q", got)
	}
}
