// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// attackRow is a row of test/attack/classes.yaml, as tools/testtable reads it.
type attackRow struct {
	What, Wall, Alike, Not, Absent string
	Record                         bool
	Tests, Findings, Controls      []string
}

type attackClass struct {
	Class, Note string
	Attacks     []attackRow
}

type attackFinding struct {
	ID, What string
	Tests    []string
}

func attackLists(t *testing.T) (alike map[string]string, classes []attackClass, findings []attackFinding) {
	t.Helper()
	var c struct {
		Alike   map[string]string
		Classes []attackClass
	}
	var f struct{ Findings []attackFinding }
	for name, into := range map[string]any{"classes": &c, "findings": &f} {
		d := yaml.NewDecoder(strings.NewReader(read(t, "test/attack/"+name+".yaml")))
		d.KnownFields(true)
		if err := d.Decode(into); err != nil {
			t.Fatalf("test/attack/%s.yaml: %v", name, err)
		}
	}
	return c.Alike, c.Classes, f.Findings
}

var aTest = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]`)

// testsByFile are the tests of the tree: by file, and of a folder as a whole.
func testsByFile(t *testing.T) map[string][]string {
	t.Helper()
	m := map[string][]string{}
	for _, name := range files(t, ending("_test.go")) {
		_, f := parse(t, name)
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && aTest.MatchString(fn.Name.Name) {
				m[name] = append(m[name], fn.Name.Name)
				m[path.Dir(name)] = append(m[path.Dir(name)], fn.Name.Name)
			}
		}
	}
	return m
}

// missingTest says what is wrong with the name of a test in the lists of attacks; nothing: it exists.
func missingTest(exists map[string][]string, name string) string {
	where, test, two := strings.Cut(name, ": ")
	if !two || !strings.HasSuffix(where, "_test.go") {
		where, test = "test/integration", where
	}
	if test, _, _ = strings.Cut(test, "/"); !slices.Contains(exists[where], test) {
		return "there is no " + test + " in " + where
	}
	return ""
}

// A row whose test is gone, or whose excuse nobody can look up, is a hole that looks like a wall.
func TestAttackLists(t *testing.T) {
	alike, classes, findings := attackLists(t)
	exists := testsByFile(t)
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	security := words(read(t, "SECURITY.md"))
	walls := strings.Fields(
		"filter mount Landlock namespace cgroup rlimit kernel launch gateway supervisor audit")
	named := map[string]bool{}
	for _, c := range classes {
		for _, r := range c.Attacks {
			at := c.Class + ": " + r.What
			if (len(r.Tests)+len(r.Findings) > 0) == (r.Absent != "") {
				t.Errorf("%s: want tests or findings, or else a reason why there is nothing to attack", at)
			}
			if r.Absent == "" && !slices.Contains(walls, r.Wall) {
				t.Errorf("%s: wall %q, want one of %v", at, r.Wall, walls)
			}
			if r.Alike != "" && alike[r.Alike] == "" {
				t.Errorf("%s: no reason %q in the list of them", at, r.Alike)
			}
			if r.Not != "" && !strings.Contains(security, words(r.Not)) {
				t.Errorf("%s: SECURITY.md doesn't say %q", at, r.Not)
			}
			for _, name := range r.Tests {
				if wrong := missingTest(exists, name); wrong != "" {
					t.Errorf("%s: %s", at, wrong)
				}
				_, script, _ := strings.Cut(name, ": ")
				named[script] = true
			}
			for _, id := range r.Findings {
				if !slices.ContainsFunc(findings, func(f attackFinding) bool { return f.ID == id }) {
					t.Errorf("%s: no finding %s", at, id)
				}
				named[id] = true
			}
		}
	}
	for _, f := range findings {
		if !named[f.ID] {
			t.Errorf("%s belongs to no row of test/attack/classes.yaml", f.ID)
		}
		if len(f.Tests) == 0 {
			t.Errorf("%s has no test: %s", f.ID, f.What)
		}
		for _, name := range f.Tests {
			if wrong := missingTest(exists, name); wrong != "" {
				t.Errorf("%s: %s", f.ID, wrong)
			}
		}
	}
	for _, name := range files(t, ending(".py")) {
		if !strings.HasPrefix(name, "test/attack/") {
			continue
		}
		script := strings.TrimSuffix(strings.TrimPrefix(name, "test/attack/"), ".py")
		if script != "run" && !named[script] {
			t.Errorf("%s belongs to no row of test/attack/classes.yaml", name)
		}
	}
}

// The page is written by a run of an hour ago or of last month; its rows must be those of today.
func TestAttackPageHasTheRowsOfTheLists(t *testing.T) {
	_, classes, findings := attackLists(t)
	var want []string
	for _, c := range classes {
		want = append(want, "## "+strings.ToUpper(c.Class[:1])+c.Class[1:])
		for _, r := range c.Attacks {
			want = append(want, strings.ReplaceAll(r.What, "|", `\|`))
		}
	}
	want = append(want, "## Findings")
	for _, f := range findings {
		want = append(want, f.ID)
	}
	var got []string
	head := regexp.MustCompile(`^\| (---|attack|finding) \|`)
	said := false // the table of what programs said is no list of rows
	for line := range strings.Lines(read(t, "docs/attacks.md")) {
		line = strings.TrimRight(line, "\n")
		cells := strings.Split(line, " | ")
		switch {
		case strings.HasPrefix(line, "## "):
			got, said = append(got, line), false
		case strings.HasPrefix(line, "| said |"):
			said = true
		case len(got) == 0, said, !strings.HasPrefix(line, "| "), head.MatchString(line):
		default:
			got = append(got, strings.TrimPrefix(cells[0], "| "))
		}
	}
	if !slices.Equal(got, want) {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("docs/attacks.md, entry %d: got %q, want %q: make attack writes it anew",
					i, got[min(i, len(got)-1)], want[min(i, len(want)-1)])
			}
		}
	}
}
