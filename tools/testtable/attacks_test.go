// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// said is a stream in which tests have told how attacks ended: "TEST ring2 root filter", with an outcome
// before it.
func said(words ...string) string {
	var b strings.Builder
	top := map[string]string{}
	for _, w := range words {
		action, rest, _ := strings.Cut(w, " ")
		test, cell, _ := strings.Cut(rest, " ")
		key := "cell"
		if strings.Count(cell, " ") == 1 {
			key = "ring"
		}
		fmt.Fprintf(&b, `{"Action":"run","Package":%q,"Test":%q}`+"\n", integration, test)
		if cell != "" {
			fmt.Fprintf(&b, `{"Action":"attr","Package":%q,"Test":%q,"Key":%q,"Value":%q}`+"\n", integration, test, key, cell)
		}
		fmt.Fprintf(&b, `{"Action":%q,"Package":%q,"Test":%q}`+"\n", action, integration, test)
		name, _, _ := strings.Cut(test, "/")
		if top[name] != "fail" {
			top[name] = action
		}
	}
	for name, action := range top {
		fmt.Fprintf(&b, `{"Action":%q,"Package":%q,"Test":%q}`+"\n", action, integration, name)
	}
	return b.String()
}

func TestAttackCells(t *testing.T) {
	const head = "alike: {same: it is the same}\nclasses:\n- class: c\n  attacks:\n  - what: w\n"
	all := func(how string) (words []string) {
		for _, ring := range rootRings {
			words = append(words, "pass TestA/in/"+ring+"/x "+ring+" root "+how)
		}
		return words
	}
	for _, tc := range []struct {
		name, row string
		host, vm  []string
		want      [4]string // host and VM as root, host and VM as a user
		fails     bool
	}{
		{
			name: "all rings alike", row: "tests: [TestA], wall: mount",
			host: all("filter"), vm: all("refused"), want: [4]string{"filter ●", "mount", "**open**", "**open**"},
		},
		{
			name: "rings apart", row: "tests: [TestA], wall: mount, not: that is so",
			host: []string{"pass TestA/in/ring1/x ring1 root works", "pass TestA/in/ring3/x ring3 root filter", "pass TestA/rootless/ring3/x ring3 rootless refused"},
			want: [4]string{"1: works; 2 s: **open**; 3: filter ●", "**open**", "2 s: **open**; 3: mount", "**open**"},
		},
		{
			name: "some tries on record", row: "tests: [TestA], wall: filter",
			host: append(all("filter"), all("refused")...), want: [4]string{"filter ◐", "**open**", "**open**", "**open**"},
		},
		{
			name: "only the tries that are meant", row: `tests: ["TestA: y z"], wall: mount`,
			host: append(all("filter"), "pass TestA/in/ring2/y_z_1 ring2 root refused", "pass TestA/in/ring2/y_zz ring2 root works"),
			want: [4]string{"1 3 s: **open**; 2: mount", "**open**", "**open**", "**open**"},
		},
		{
			name: "controls are no attacks", row: "tests: [TestA], wall: mount, controls: [b c]",
			host: append(all("refused"), "pass TestA/in/ring1/b_c_d ring1 root works", "pass TestA/in/ring2/b ring2 root works"),
			want: [4]string{"1 3 s: mount; 2: **works**", "**open**", "**open**", "**open**"},
		},
		{
			name: "a failure", row: "tests: [TestA], wall: mount", fails: true,
			host: append(all("filter"), "fail TestA/in/ring2/z ring2 root filter"),
			want: [4]string{"1 3 s: filter ●; 2: **FAILED**", "**open**", "**open**", "**open**"},
		},
		{
			name: "a failure that belongs to no ring", row: "tests: [TestA], wall: mount, alike: same", fails: true,
			host: []string{"pass TestA/a ring1 root", "fail TestA/b"}, want: [4]string{"**FAILED**", "**open**", "**FAILED**", "**open**"},
		},
		{
			name: "a test that starts sandboxes stands for what it has started", row: "tests: [TestA], wall: gateway, record: true, alike: same",
			host: []string{"pass TestA/a ring2 root"}, want: [4]string{"1 3 s: =; 2: gateway ●", "**open**", "=", "**open**"},
		},
		{
			name: "a test without a sandbox", row: "tests: [TestA], wall: audit", host: []string{"pass TestA"},
			want: [4]string{"audit", "**open**", "**open**", "**open**"},
		},
		{
			name: "what the machine lacks", row: "tests: [TestA], wall: audit", host: []string{"skip TestA"}, vm: all("refused"),
			want: [4]string{"n/a", "audit", "n/a", "**open**"},
		},
		{
			name: "left to the host", row: "tests: [TestOnHost], wall: audit", host: []string{"pass TestOnHost/a ring2 root"},
			want: [4]string{"1 3 s: **open**; 2: audit", "=", "**open**", "="},
		},
		{name: "a reason alone shows nothing", row: "tests: [TestA], wall: audit, alike: same", want: [4]string{"**open**", "**open**", "**open**", "**open**"}},
		{name: "nothing to attack", row: "absent: there is none", want: [4]string{"–", "–", "–", "–"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range map[string]string{
				"test/attack/classes.yaml": head + "    " + strings.ReplaceAll(tc.row, ", ", "\n    ") + "\n", "test/attack/findings.yaml": "findings: []\n",
				"test/vm/suite.sh": "same=(TestOnHost)\n",
				"host.json":        said(append(tc.host, "pass TestOther")...), "vm.json": said(append(tc.vm, "pass TestOther")...),
			} {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := run([]string{"attacks", "-root", root, "host=" + root + "/host.json", "vm=" + root + "/vm.json"}, nil, &out)
			if errors.Is(err, errFailed) != tc.fails || err != nil && !tc.fails {
				t.Fatalf("error %v, want a failure: %v", err, tc.fails)
			}
			if want := "| w | " + strings.Join(tc.want[:], " | ") + " | "; !strings.Contains(out.String(), want) {
				_, class, _ := strings.Cut(out.String(), "## C")
				t.Errorf("no %q in %s", want, class)
			}
		})
	}
}

func TestAttackTestsAreNamed(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"attacks", "-root", "../..", "-tests"}, nil, &out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "./") || !strings.Contains(line, " ^(Test") {
			t.Errorf("got %q, want a package and a pattern", line)
		}
	}
	if !strings.Contains(out.String(), "./test/integration ^(") {
		t.Errorf("no line for the integration suite in %s", out.String())
	}
}
