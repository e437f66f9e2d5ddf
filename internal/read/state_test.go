// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestState(t *testing.T) {
	type state struct {
		Version int    `json:"version"`
		Name    string `json:"name"`
	}
	path := filepath.Join(t.TempDir(), "state.json")
	var got state
	if err := State(path, 100, 1, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if err := Replace(path, state{1, "old"}, nil); err != nil {
		t.Fatal(err)
	}
	// Nothing has the name before all of it is there.
	broken := errors.New("power cut")
	if err := Replace(path, state{1, "new"}, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("cut: %v", err)
	}
	if err := State(path, 100, 1, &got); err != nil || got.Name != "old" {
		t.Errorf("after a cut: %+v, %v", got, err)
	}
	// A link that lies where it writes isn't followed.
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Remove(path+".new"), os.Symlink(outside, path+".new")); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, state{1, "new"}, nil); err == nil {
		t.Error("written through a link")
	}
	if _, err := os.Lstat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("outside: %v", err)
	}
	for text, want := range map[string]string{
		`{"version":2,"other":{}}`: "has version 2, and this agentrun knows 1", `{}`: "has version 0", `{"version":1,"nam":"x"}`: "nam", `{"version":1`: path,
		`{"version":1,"name":"` + strings.Repeat("x", 100) + `"}`: path,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := State(path, 100, 1, &got); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
}
