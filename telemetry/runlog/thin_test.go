// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"path/filepath"
	"testing"
)

func TestM18ThinDeletesForAWriterWithoutRights(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	write := func(id string, how Outcome) *Log {
		t.Helper()
		l, err := Create(dir, id, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if how <= Succeeded {
			if err := l.Finish(how); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	write("good", Succeeded)
	write("bad", Failed)
	open := write("open", 99)
	defer func() { _ = open.Finish(Failed) }()
	for _, tt := range []struct {
		id     string
		sample float64
		want   bool
	}{{"good", 1, false}, {"good", 0, true}, {"good", 0, false}, {"bad", 0, false}, {"open", 0, false}, {"nowhere", 0, false}} {
		if got, err := Thin(dir, tt.id, sampling(tt.sample)); err != nil || got != tt.want {
			t.Errorf("%s, %v: got %v, %v, want %v", tt.id, tt.sample, got, err, tt.want)
		}
	}
	for _, id := range []string{"", "../x", "a/b"} {
		if _, err := Thin(dir, id, sampling(0)); err == nil {
			t.Errorf("%q was taken", id)
		}
	}
	if _, err := Thin(dir, "bad", sampling(2)); err == nil {
		t.Error("a sample of 2 was taken")
	}
}
