// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"agentrun/supervisor"
	"agentrun/supervisor/daemon"
)

// The flag library keeps state in variables; callers at the same time get each their own answer, paths and
// environment.
func TestManyCallersAtOnce(t *testing.T) {
	var all clients
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var out, errOut bytes.Buffer
			dir := fmt.Sprintf("/nosuch%d", i)
			by := &supervisor.Caller{
				Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Dir: dir, Environ: []string{"AGENTRUN_STATE_DIR=" + dir, "AGENTRUN_RUN_DIR=r"},
			}
			words, code, want := []string{"exec", "--help"}, 0, "--ring"
			switch i % 4 {
			case 1:
				words, code, want = []string{"exec", fmt.Sprintf("--nosuch%d", i), "x"}, 125, fmt.Sprintf("-nosuch%d", i)
			case 2:
				words, want = []string{"exec", "--gateway", "g.yaml", "--", "x"}, ""
			case 3:
				words, code, want = []string{"gc"}, 125, `"gc" is no command`
			}
			got := all.read(t.Context(), by, append([]string{"agentrun"}, words...))
			if said := out.String() + errOut.String(); got.Code != code || !strings.Contains(said, want) || (want == "") != (said == "") {
				t.Errorf("%v: got %d: %s", words, got.Code, said)
			}
			if (got.Request == nil) != (want != "") {
				t.Errorf("%v: got the request %+v", words, got.Request)
			}
			if r := got.Request; r != nil && (r.Gateway != dir+"/g.yaml" || got.Node.StateDir != dir || got.Node.RunDir != dir+"/r") {
				t.Errorf("%v in %s: got %+v on the node %+v", words, dir, r, got.Node)
			}
		})
	}
	wg.Wait()
}

// A number of a descriptor would be one of the daemon's: whoever said it could have the daemon's own closed, and all its runs ended.
func TestNoDescriptorsByNumber(t *testing.T) {
	for _, flags := range []string{"--hold-for 6", "--hold /x --hold-for=6", "--env-fd 6"} {
		var said bytes.Buffer
		by := &supervisor.Caller{Stdout: &said, Stderr: &said, Dir: "/"}
		asked := new(clients).read(t.Context(), by, append([]string{"agentrun", "exec"}, append(strings.Fields(flags), "--", "true")...))
		if asked.Request != nil || asked.Code == 0 || !strings.Contains(said.String(), "--no-daemon") {
			t.Errorf("%s: %+v, %d, %s", flags, asked.Request, asked.Code, said.String())
		}
	}
}

// Whoever says the same again gets what the library would make of it: from the folder, the environment and the files that there are now.
func TestLinesAreReadAnew(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := func(s string) func() {
		return func() {
			if err := os.WriteFile(config, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func() {}
	type call struct {
		before func()
		dir    string
		env    string
		words  string
		kept   int // lines known after it
	}
	var all clients
	for i, c := range []call{
		{nothing, "/a", "X=", "exec --ring 2 --workspace w --timeout 5s -- make all", 1},
		{nothing, "/a", "X=", "exec --ring 2 --workspace w --timeout 5s -- make none --ring 3 -- -x", 1},
		{nothing, "/b", "AGENTRUN_RUN_DIR=r", "exec --ring 2 --workspace w --timeout 5s -- make all", 2},
		{nothing, "/b", "AGENTRUN_RUN_DIR=other", "exec --ring 2 --workspace w --timeout 5s --", 2},
		{nothing, "/a", "X=", "exec --name -- -- true", 2}, // a value
		{nothing, "/a", "X=", "exec --workspace -- /bin/echo meant", 2},
		{nothing, "/a", "X=", "exec --workspace -- --ring 3 /bin/echo meant", 2}, // what looks like the command is flags
		{nothing, "/a", "X=", "-- exec --ring 2 -- true", 2},
		{nothing, "/a", "X=", "exec --ring 2 true -- false", 2},
		{nothing, "/a", "X=", "exec --env KEY=secret -- true", 2},
		{nothing, "/a", "X=", "exec --env-pass KEY -- true", 2},
		{nothing, "/a", "X=", "exec --ring 2 --bind /srv -- true", 2},
		{nothing, "/a", "X=", "exec --ro-bind /srv -- true", 2},
		{nothing, "/a", "X=", "exec --allow example.org -- true", 2},
		{nothing, "/a", "X=", "exec --tool search -- true", 2},
		{nothing, "/a", "X=", "exec --ring two -- true", 2},
		{nothing, "/a", "X=", "exec --memory much -- true", 2},
		{nothing, "/a", "X=", "exec --idle-pause 5s -- true", 2},
		{nothing, "/a", "X=", "exec --hold /x -- true", 2},
		{nothing, "/a", "X=", "exec --name " + strings.Repeat("n", maxLine) + " -- true", 2},
		{text("state_dir: /one\n"), "/a", "X=", "--config " + config + " exec -- true", 3},
		{text("state_dir: /two\n"), "/a", "X=", "--config " + config + " exec -- true", 3},
		{text("no_such: key\n"), "/a", "X=", "--config " + config + " exec -- true", 3},
	} {
		c.before()
		var said [2]bytes.Buffer
		var got [2]daemon.Asked
		for j, from := range []*clients{&all, new(clients)} {
			by := &supervisor.Caller{Stdout: &said[j], Stderr: &said[j], Dir: c.dir, Environ: []string{c.env}, Watched: true}
			got[j] = from.read(t.Context(), by, append([]string{"agentrun"}, strings.Fields(c.words)...))
			if n := got[j].Node; n != nil {
				n.Log = nil
			}
		}
		if !reflect.DeepEqual(got[0], got[1]) || said[0].String() != said[1].String() {
			t.Errorf("%d, %.80s: got %+v, %s\nwant %+v, %s", i, c.words, got[0].Request, said[0].String(), got[1].Request, said[1].String())
		}
		if len(all.known) != c.kept {
			t.Errorf("%d, %.80s: %d lines are known, want %d", i, c.words, len(all.known), c.kept)
		}
	}
	for n := range 3 * maxLines {
		all.read(t.Context(), &supervisor.Caller{Dir: fmt.Sprint("/", n)}, []string{"agentrun", "exec", "--", "true"})
	}
	if len(all.known) > maxLines {
		t.Errorf("%d lines are known", len(all.known))
	}
}
