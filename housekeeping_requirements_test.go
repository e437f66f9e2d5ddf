// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
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
