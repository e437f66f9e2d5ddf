// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// requirementPages are the pages of docs/requirements and the letter of the ids that each of them holds.
var requirementPages = map[string]string{"hypervisor": "H", "isolation": "M", "safety-loop": "S"}

// requirements are the ids that have a text. Their numbers go on without a gap, so that a text that was lost shows.
func requirements(t *testing.T) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for page, letter := range requirementPages {
		text := read(t, "docs/requirements/"+page+".md")
		found := regexp.MustCompile(`(?m)^- \*\*([A-Z]-\d+)\*\* \S`).FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Fatalf("docs/requirements/%s.md: no requirement: a check of nothing is no check", page)
		}
		for n, m := range found {
			if want := letter + "-" + strconv.Itoa(n+1); m[1] != want {
				t.Errorf("docs/requirements/%s.md: got %s, want %s: each id once, in order", page, m[1], want)
			}
			ids[m[1]] = true
		}
	}
	return ids
}

var update = flag.Bool("update", false, "write docs/requirements/index.md")

// The index leads from each requirement to the code that cites it, in packages that the programs link, and to the tests that
// SPECIFICATION names for it. TestSpecificationsTestsReachPrograms holds that those use what the programs use.
func TestRequirementsIndex(t *testing.T) {
	code, tests := citedInPrograms(t), map[string][]string{}
	for _, p := range specification(t) {
		for id := range strings.SplitSeq(p.id, ", ") {
			if p.test != "" {
				tests[id] = append(tests[id], fmt.Sprintf("- [%s](../../%s)\n", p.test, p.file))
			}
		}
	}
	var b strings.Builder
	b.WriteString(indexHead)
	ids := slices.SortedFunc(maps.Keys(requirements(t)), byNumber)
	for _, id := range ids {
		if len(code[id]) == 0 || len(tests[id]) == 0 {
			t.Errorf("%s: %d files of the programs cite it, %d tests are promised: want one of each at least", id, len(code[id]), len(tests[id]))
		}
		slices.Sort(tests[id])
		fmt.Fprintf(&b, "\n## %s\n\nCode:\n%s\nTests:\n%s", id, strings.Join(code[id], ""), strings.Join(slices.Compact(tests[id]), ""))
	}
	const name = "docs/requirements/index.md"
	if *update {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, name) != b.String() {
		t.Errorf("%s isn't what code and SPECIFICATION say: go test -run TestRequirementsIndex -update .", name)
	}
}

const indexHead = `# Index of the requirements

Made from the tree by ` + "`go test -run TestRequirementsIndex -update .`" + `: for each id the files of the programs that cite it, and
the tests that [SPECIFICATION.md](../../SPECIFICATION.md) names for it. What the ids mean: [README.md](README.md).
`

// citedInPrograms are links to the files that cite an id, of the packages that the programs link.
func citedInPrograms(t *testing.T) map[string][]string {
	t.Helper()
	linked := map[string]bool{}
	for _, main := range mains {
		linked[main] = true
		for _, dep := range deps(t, main) {
			linked[strings.TrimPrefix(dep, "agentrun/")] = true
		}
	}
	id := regexp.MustCompile(`\b[HMS]-\d+\b`)
	cited := map[string][]string{}
	for _, name := range files(t, ending(".go", ".c", ".h", ".yaml", ".tsv")) {
		if strings.HasSuffix(name, "_test.go") || !linked[path.Dir(name)] {
			continue
		}
		found := id.FindAllString(read(t, name), -1)
		slices.Sort(found)
		for _, id := range slices.Compact(found) {
			cited[id] = append(cited[id], fmt.Sprintf("- [%s](../../%s)\n", name, name))
		}
	}
	return cited
}

// byNumber orders ids as their pages do: H, M, S, and by number.
func byNumber(a, b string) int {
	n := func(s string) int { i, _ := strconv.Atoi(s[2:]); return int(s[0])*1000 + i }
	return n(a) - n(b)
}

// An id that nobody can look up is no reason. Names of tests (TestM5…) cite as comments do.
func TestCitedRequirementsExist(t *testing.T) {
	ids := requirements(t)
	cited := regexp.MustCompile(`\b([HMS]-\d+)\b`)
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)([HMS])(\d+)[A-Z]`)
	for _, name := range sources(t) {
		for n, line := range strings.Split(read(t, name), "\n") {
			found := cited.FindAllString(line, -1)
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				found = append(found, m[1]+"-"+m[2])
			}
			for _, id := range found {
				if !ids[id] {
					t.Errorf("%s:%d: %s stands nowhere in docs/requirements", name, n+1, id)
				}
			}
		}
	}
}

// sources are the tree's texts that may cite something.
func sources(t *testing.T) []string {
	t.Helper()
	return files(t, ending(".go", ".md", ".yaml", ".c", ".h", ".py", ".sh", "Makefile"))
}

// Threats are cited as THREATS "class", THREATS, class: … or by the words of an attack. What is cited must stand on the
// page, and each class of it must have its rows in the list of attacks.
func TestCitedThreatsExist(t *testing.T) {
	page := read(t, "docs/requirements/threats.md")
	flat := strings.ToLower(strings.Join(strings.Fields(page), " "))
	cited := regexp.MustCompile(`// .*\bTHREATS(?:\.md)?[,:]? "?([^":;.)]+)`)
	found := 0
	for _, name := range files(t, ending(".go")) {
		for n, line := range strings.Split(read(t, name), "\n") {
			m := cited.FindStringSubmatch(line)
			if m == nil || strings.HasPrefix(name, "housekeeping_") {
				continue
			}
			found++
			parts := []string{m[1]}
			if !strings.Contains(flat, strings.ToLower(m[1])) {
				parts = regexp.MustCompile(`, | and `).Split(m[1], -1)
			}
			for _, part := range parts {
				if !strings.Contains(flat, strings.ToLower(part)) {
					t.Errorf("%s:%d: %q stands nowhere in docs/requirements/threats.md", name, n+1, part)
				}
			}
		}
	}
	_, classes, _ := attackLists(t)
	rows := regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*:`).FindAllStringSubmatch(page, -1)
	if found == 0 || len(rows) == 0 {
		t.Fatalf("got %d citations and %d classes: a check of nothing is no check", found, len(rows))
	}
	for _, m := range rows {
		if !slices.ContainsFunc(classes, func(c attackClass) bool { return c.Class == m[1] }) {
			t.Errorf("docs/requirements/threats.md: class %q has no rows in test/attack/classes.yaml", m[1])
		}
	}
}
