// SPDX-License-Identifier: Apache-2.0

package supervisor

import "testing"

// A daemon's callers have an environment and a folder of their own, which are not this process's.
func TestCaller(t *testing.T) {
	t.Setenv("OTHERS", "1")
	by := &Caller{Dir: "/at", Environ: []string{"A=1", "A=2", "AB=3", "EMPTY=", "B", "C=x=y"}}
	for name, want := range map[string]string{"A": "1", "AB": "3", "C": "x=y", "B": "", "OTHERS": ""} {
		if got := by.Getenv(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, ok := by.LookupEnv("EMPTY"); !ok {
		t.Error("an empty variable counts as one that is not set")
	}
	if _, ok := by.LookupEnv("OTHERS"); ok {
		t.Error("a variable of this process is the caller's")
	}
	for name, want := range map[string]string{"": "", "a": "/at/a", "/a": "/a", "l/../a": "/at/l/../a"} {
		if got := by.Path(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
