// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Messages that a page quotes are searched for by people who have just read them. The first cell of a row of
// docs/troubleshooting.md is what agentrun prints: each part of it between "…" and ": " must stand in the code.
func TestQuotedMessagesStandInTheCode(t *testing.T) {
	code := literals(t)
	quoted := regexp.MustCompile("`([^`]+)`")
	found := 0
	for n, line := range strings.Split(read(t, "docs/troubleshooting.md"), "\n") {
		cell, rest, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !isRow || !strings.HasPrefix(cell, "`") || strings.Count(rest, " | ") > 0 {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			found++
			checked := false
			for _, part := range regexp.MustCompile(`…|: `).Split(m[1], -1) {
				part = strings.TrimSpace(part)
				checked = checked || strings.Contains(part, " ")
				if part != "" && !strings.Contains(code, part) {
					t.Errorf("docs/troubleshooting.md:%d: %q of %q stands in no message of the code", n+1, part, m[1])
				}
			}
			if !checked {
				t.Errorf("docs/troubleshooting.md:%d: %q has no two words that could be looked for", n+1, m[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("got %d messages: a check of nothing is no check", found)
	}
}

// A word is found by its place, and stands once.
func TestGlossaryIsInOrder(t *testing.T) {
	words := regexp.MustCompile(`(?m)^\| ([a-z][^|]*) \|`).FindAllStringSubmatch(read(t, "docs/glossary.md"), -1)
	if len(words) < 30 {
		t.Fatalf("got %d words: a check of nothing is no check", len(words))
	}
	for n, m := range words[2:] {
		if before := words[n+1][1]; m[1] <= before {
			t.Errorf("docs/glossary.md: %q stands after %q", m[1], before)
		}
	}
}

// A path in CONTRIBUTING leads somewhere, and a word of the harness is one of its functions.
func TestContributingNamesWhatExists(t *testing.T) {
	page := read(t, "CONTRIBUTING.md")
	prose := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(page, "")
	quoted := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(prose, -1)
	if len(quoted) < 60 {
		t.Fatalf("got %d quotations: a check of nothing is no check", len(quoted))
	}
	var harness strings.Builder
	for _, name := range files(t, func(n string) bool { return path.Dir(n) == "test/integration" && strings.HasSuffix(n, ".go") }) {
		harness.WriteString(read(t, name))
	}
	isPath := regexp.MustCompile(`^[a-zA-Z][\w-]*(/[\w.-]+)+$|^\w+\.(md|go)$`)
	call := regexp.MustCompile(`^(?:[a-z]\.)?(\w+)(?:\[\w+\])?\((?:t|a|p|n|x|"|time|[0-9])`)
	test := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	_, section, _ := strings.Cut(page, "## The language of the integration harness")
	for _, m := range quoted {
		if isPath.MatchString(m[1]) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("CONTRIBUTING.md: %v", err)
			}
		}
		if c := call.FindStringSubmatch(m[1]); c != nil && strings.Contains(section, m[0]) &&
			!regexp.MustCompile(`(?m)^func (\([^)]*\) )?`+c[1]+`[\[(]`).MatchString(harness.String()) {
			t.Errorf("CONTRIBUTING.md: %s: test/integration has no function %s", m[0], c[1])
		}
	}
	tests := map[string]bool{}
	for _, names := range testsByFile(t) {
		for _, name := range names {
			tests[name] = true
		}
	}
	for _, name := range test.FindAllString(page, -1) {
		placeholder := slices.Contains([]string{"TestName", "TestMain", "TestH6"}, name)
		if strings.HasPrefix(name, "Test") && !placeholder && !tests[name] {
			t.Errorf("CONTRIBUTING.md: there is no %s", name)
		}
	}
}

// docs/dependencies.md says which release of each module is used: that of go.mod, a pseudo-version by its commit.
func TestDependencyVersionsAreOfToday(t *testing.T) {
	page := read(t, "docs/dependencies.md")
	used := regexp.MustCompile(`(?m)^\t(\S+) v(\S+)$`).FindAllStringSubmatch(read(t, "go.mod"), -1)
	found := 0
	for _, m := range used {
		row := regexp.MustCompile(`(?m)^\| .` + regexp.QuoteMeta(m[1]) + `. .*$`).FindString(page)
		if row == "" {
			continue
		}
		found++
		version := "v" + m[2]
		if n := strings.LastIndex(version, "-"); strings.HasPrefix(version, "v0.0.0-") {
			version = version[n+1:]
		}
		if !strings.Contains(row, " "+version+",") {
			t.Errorf("docs/dependencies.md: %s: go.mod has %s", m[1], version)
		}
	}
	if found < 20 {
		t.Errorf("got %d rows: a check of nothing is no check", found)
	}
}

// A page that the index leaves out is read by nobody.
func TestEveryPageIsInTheIndex(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, name := range files(t, func(n string) bool { return path.Dir(n) == "docs" && strings.HasSuffix(n, ".md") }) {
		if page := path.Base(name); page != "README.md" && strings.Count(index, "("+page+")") != 1 {
			t.Errorf("docs/README.md: %s stands there %d times, want once", page, strings.Count(index, "("+page+")"))
		}
	}
}

// literals are the texts of the code that is no test, one a line.
func literals(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range files(t, func(n string) bool {
		return strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go") && !strings.HasPrefix(n, "test/")
	}) {
		_, f := parse(t, name)
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					all.WriteString(text + "\n")
				}
			}
			return true
		})
	}
	return all.String()
}

// A kind of event is a word of control's, whoever says it: hypervisor and runtime are below control and can't name its constants. Each
// stands in the two pages that people write readers from.
func TestKindsOfEvents(t *testing.T) {
	kind := regexp.MustCompile(`(?m)^\t(?:Event|Live)\w+ +(?:LiveEventKind )?= "([a-z._]+)"`)
	kinds := func(name string) (all []string) {
		for _, m := range kind.FindAllStringSubmatch(read(t, name), -1) {
			all = append(all, m[1])
		}
		if len(all) < 5 {
			t.Fatalf("%s: got %d kinds: a check of nothing is no check", name, len(all))
		}
		return all
	}
	known := kinds("control/api.go")
	for _, name := range []string{"hypervisor/live.go", "runtime/live.go"} {
		for _, k := range kinds(name) {
			if k != "ring_failed" && !slices.Contains(known, k) { // the supervisor kills the run, and tells that
				t.Errorf("%s: control/api.go has no kind %s", name, k)
			}
		}
	}
	for _, k := range known {
		if !regexp.MustCompile("(?m)^\\| [^|]*`" + regexp.QuoteMeta(k) + "`").MatchString(read(t, "docs/control.md")) {
			t.Errorf("docs/control.md: kind %s has no row", k)
		}
		if !strings.Contains(read(t, "docs/control-api.md"), "`"+k+"`") {
			t.Errorf("docs/control-api.md: kind %s isn't named", k)
		}
	}
}
