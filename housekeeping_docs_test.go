// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"go/ast"
	"go/token"
	"regexp"
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
