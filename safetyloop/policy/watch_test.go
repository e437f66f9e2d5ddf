// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// desk is a policy file, a clock, and what a Watcher told.
type desk struct {
	t       *testing.T
	path    string
	now     time.Time
	changed int
	failed  []string
	w       *Watcher
}

func newDesk(t *testing.T, text string) *desk {
	t.Helper()
	d := &desk{t: t, path: filepath.Join(t.TempDir(), "p.yaml"), now: time.Now()}
	d.write(text)
	w, err := Watch(d.path, WatchOptions{Now: func() time.Time { return d.now }, Changed: func(*Policy) { d.changed++ }, Failed: func(err error) { d.failed = append(d.failed, err.Error()) }})
	if err != nil {
		t.Fatal(err)
	}
	d.w = w
	return d
}

func (d *desk) write(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// look passes a second and returns the first deny pattern.
func (d *desk) look() string {
	d.now = d.now.Add(time.Second)
	return d.w.Current().rules.deny[0].source
}

func TestWatchKeepsTheLastValid(t *testing.T) {
	d := newDesk(t, "deny: [a]")
	if got := d.look(); got != "a" || d.changed != 0 {
		t.Errorf("got %q, %d changes", got, d.changed)
	}
	d.write("deny: [b]") // same size, perhaps the same time stamp
	if got := d.w.Current().rules.deny[0].source; got != "a" {
		t.Errorf("got %q before the second is over", got)
	}
	if got := d.look(); got != "b" || d.changed != 1 {
		t.Errorf("got %q, %d changes, want b", got, d.changed)
	}
	d.write("deny: [b\n")
	for range 3 {
		if got := d.look(); got != "b" {
			t.Errorf("got %q, want the last valid", got)
		}
	}
	if len(d.failed) != 1 || !strings.Contains(d.failed[0], "p.yaml") {
		t.Errorf("got %q, want the fault once", d.failed)
	}
	if err := os.Remove(d.path); err != nil {
		t.Fatal(err)
	}
	if got := d.look(); got != "b" || len(d.failed) != 2 {
		t.Errorf("got %q, %q", got, d.failed)
	}
	d.write("deny: [c]")
	if got := d.look(); got != "c" || d.changed != 2 {
		t.Errorf("got %q, %d changes, want c", got, d.changed)
	}
	d.write("deny: [c\n")
	d.look()
	d.write("deny: [c]") // back to what it was
	if got := d.look(); got != "c" || d.changed != 2 || len(d.failed) != 3 {
		t.Errorf("got %q, %d changes, %q", got, d.changed, d.failed)
	}
}

// A replacement by rename that keeps time and size is another inode.
func TestWatchSeesThroughStamps(t *testing.T) {
	d := newDesk(t, "deny: [a]")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(d.path, old, old); err != nil {
		t.Fatal(err)
	}
	d.look()
	next := d.path + ".new"
	if err := os.WriteFile(next, []byte("deny: [b]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(next, old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, d.path); err != nil {
		t.Fatal(err)
	}
	if got := d.look(); got != "b" {
		t.Errorf("got %q, want b", got)
	}
}

func TestWatchNeedsAValidStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p")
	if _, err := Watch(path, WatchOptions{Now: time.Now}); err == nil {
		t.Error("a file that isn't there was taken")
	}
	if err := os.WriteFile(path, []byte("deny: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Watch(path, WatchOptions{Now: time.Now}); err == nil {
		t.Error("a faulty file was taken")
	}
}

// The callbacks may ask the Watcher, from many goroutines.
func TestWatchConcurrently(t *testing.T) {
	d := newDesk(t, "deny: [a]")
	d.w.o.Now = time.Now
	d.w.o.Every = 1
	d.w.o.Changed = func(*Policy) { d.w.Current() }
	d.w.o.Failed = func(error) { d.w.Current() }
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if d.w.Current() == nil {
					t.Error("no policy")
				}
			}
		})
	}
	for i := range 20 {
		d.write([]string{"deny: [a]", "deny: 3", "deny: [b]"}[i%3])
	}
	wg.Wait()
}
