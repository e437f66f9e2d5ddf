// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/sagas"
	"agentrun/sagas/sagafile"
	"agentrun/store"
)

// sagaDesk is a state folder, and an API that notes who called and fails where told.
type sagaDesk struct {
	t     *testing.T
	dir   string
	calls []string
	fail  map[string]bool
	url   string
}

func newSagaDesk(t *testing.T) *sagaDesk {
	d := &sagaDesk{t: t, dir: t.TempDir(), fail: map[string]bool{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.calls = append(d.calls, r.URL.Path+" "+r.Header.Get("Idempotency-Key"))
		if d.fail[r.URL.Path] {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	t.Cleanup(s.Close)
	d.url = s.URL
	return d
}

func (d *sagaDesk) run(args ...string) int {
	all := []string{"agentrun", "--state-dir", filepath.Join(d.dir, "state"), "--run-dir", filepath.Join(d.dir, "run"), "saga"}
	return run(context.Background(), append(all, args...))
}

func (d *sagaDesk) file(undo bool) string {
	text := "name: trip\nsteps:\n"
	for _, id := range []string{"a", "b"} {
		text += fmt.Sprintf("  - id: %s\n    execute_api: %s/%s\n    max_retries: 0\n", id, d.url, id)
		if undo {
			text += fmt.Sprintf("    undo_api: %s/un%s\n", d.url, id)
		}
	}
	name := filepath.Join(d.dir, "trip.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return name
}

// Exit codes, and what was called.
func TestH18SagaRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		undo  bool
		fail  string
		code  int
		calls []string
	}{
		{"committed", true, "", 0, []string{"/a s/a", "/b s/b"}},
		{"aborted", true, "/b", exitAborted, []string{"/a s/a", "/b s/b", "/una s/a/undo"}},
		{"escalated", false, "/b", exitEscalated, []string{"/a s/a", "/b s/b"}},
	} {
		d := newSagaDesk(t)
		d.fail[c.fail] = true
		if code := d.run("run", "--id", "s", "--json", d.file(c.undo)); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		if diff := cmp.Diff(c.calls, d.calls); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
		for _, args := range [][]string{{"list"}, {"list", "--json"}, {"show", "s"}, {"show", "--json", "s"}, {"resume"}} {
			if code := d.run(args...); code != 0 {
				t.Errorf("%s: %v: exit code %d", c.name, args, code)
			}
		}
		if code := d.run("resume", "s"); code != c.code {
			t.Errorf("%s: resume: exit code %d, want %d", c.name, code, c.code)
		}
		if code := d.run("run", "--id", "s", d.file(c.undo)); code != 125 {
			t.Errorf("%s: run again: exit code %d", c.name, code)
		}
	}
}

func TestSagaMistakes(t *testing.T) {
	d := newSagaDesk(t)
	bad := filepath.Join(d.dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run"}, {"run", bad}, {"run", "/nowhere"}, {"run", "--id", "a b", d.file(true)}, {"show"}, {"show", "nobody"},
		{"resume", "nobody"}, {"resume", "a", "b"}, {"resume", "--undo"}, {"list", "x"}, {"list", "--nosuch"}} {
		if code := d.run(args...); code != 125 {
			t.Errorf("%v: exit code %d, want 125", args, code)
		}
	}
	if len(d.calls) > 0 {
		t.Errorf("called %v", d.calls)
	}
}

// A saga whose agentrun died in a call: resume without a name finds it.
func TestH20SagaResume(t *testing.T) {
	for _, undo := range []bool{false, true} {
		d := newSagaDesk(t)
		data, err := os.ReadFile(d.file(true))
		if err != nil {
			t.Fatal(err)
		}
		f, err := sagafile.Parse("trip", []byte(strings.Replace(string(data), "- id: b\n", "- id: b\n    idempotent: true\n", 1)), "/")
		if err != nil {
			t.Fatal(err)
		}
		def, err := f.Definition()
		if err != nil {
			t.Fatal(err)
		}
		db, err := store.Open(filepath.Join(d.dir, "state"), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		rec := sagas.Record{ID: "s", State: sagas.Executing, CreatedAt: time.Unix(1, 0), Steps: []sagas.StepRecord{
			{ID: "a", State: sagas.StepCommitted, Attempts: 1}, {ID: "b", State: sagas.StepExecuting, Attempts: 1, Running: true, Idempotent: true},
		}}
		if err := sagas.NewDurable(db).Create(t.Context(), &rec, def); err != nil {
			t.Fatal(err)
		}
		db.Close()
		args, code, calls := []string{"resume"}, 0, []string{"/b s/b"}
		if undo {
			args, code, calls = []string{"resume", "--undo", "s"}, exitAborted, []string{"/unb s/b/undo", "/una s/a/undo"}
		}
		if got := d.run(args...); got != code {
			t.Errorf("%v: exit code %d, want %d", args, got, code)
		}
		if diff := cmp.Diff(calls, d.calls); diff != "" {
			t.Errorf("%v (-want +got)\n%s", args, diff)
		}
	}
}
