// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// promise is a row of SPECIFICATION.md. A row without an id goes on with the one above it: with its words, or with one
// more test.
type promise struct {
	line       int
	id         string // of the row, or of the last one above it that has one
	file, test string // both empty where the third cell says "pending" or leads to figures
}

var (
	namedTest   = regexp.MustCompile("^`([^`: ]+_test\\.go): ((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`$")
	withoutTest = regexp.MustCompile(`^(?:|pending(?:: .+)?|\[[^\]]+\]\([^)]+\))$`)
	looksLike   = regexp.MustCompile(`^- \*\*[HMS]-|_test\.go: `)
)

// promises returns the rows of the tables of a text, and what is wrong with those that can't be read. Several people
// add rows at a time and git joins them, so a row that has left its table has to be found by a test.
func promises(text string) (rows []promise, wrong []string) {
	const width = 220
	table, owner, tested := false, "", true // the last row with an id; does it have a test?
	seen := map[string]int{}
	for n, line := range strings.Split(text, "\n") {
		say := func(what string, args ...any) {
			wrong = append(wrong, fmt.Sprintf("line %d: %s", n+1, fmt.Sprintf(what, args...)))
		}
		if utf8.RuneCountInString(line) > width {
			say("more than %d columns: the rest of a long row goes into the next, whose id is empty", width)
		}
		if !strings.HasPrefix(line, "|") {
			if table = false; looksLike.MatchString(line) {
				say("a promise stands in a table, as | id | promise | test |")
			}
			continue
		}
		cells := strings.Split(line, "|")
		if len(cells) != 5 || cells[4] != "" {
			say("want three cells")
			continue
		}
		id, words, test := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		m := namedTest.FindStringSubmatch(test)
		switch {
		case strings.HasPrefix(id, "---") && !table:
			table = true
			continue
		case test == "test" && !table:
			continue
		case !table:
			say("a row outside of its table")
		case m == nil && !withoutTest.MatchString(test):
			say("the third cell is no test, as `file_test.go: TestName`, nor pending, nor a link")
		case id+words+test == "":
			say("an empty row")
		case id != "" && words == "":
			say("%s promises nothing", id)
		}
		if id != "" {
			if !tested {
				say("the row above, %s, names no test and doesn't say \"pending\"", owner)
			}
			owner, tested = id, false
		}
		tested = tested || test != ""
		if words != "" {
			if before := seen[line]; before > 0 {
				say("stands in line %d too", before)
			}
			seen[line] = n + 1
		}
		if m == nil {
			m = make([]string, 3)
		}
		rows = append(rows, promise{n + 1, owner, m[1], m[2]})
	}
	if !tested {
		wrong = append(wrong, fmt.Sprintf("the last row, %s, names no test and doesn't say \"pending\"", owner))
	}
	return rows, wrong
}

// specification returns the promises of SPECIFICATION.md.
func specification(t *testing.T) []promise {
	t.Helper()
	rows, wrong := promises(read(t, "SPECIFICATION.md"))
	for _, w := range wrong {
		t.Errorf("SPECIFICATION.md: %s", w)
	}
	if len(rows) < 500 {
		t.Fatalf("got %d rows: a check of nothing is no check", len(rows))
	}
	return rows
}

// A promise without its test is only a sentence, and so is one whose test has been renamed.
func TestSpecificationNamesExistingTests(t *testing.T) {
	exists := testsByFile(t)
	for _, p := range specification(t) {
		if p.test != "" && !slices.Contains(exists[p.file], p.test) {
			t.Errorf("SPECIFICATION.md:%d: there is no %s in %s", p.line, p.test, p.file)
		}
	}
}

// What a hand or a merge does to the tables is found.
func TestPromisesFindMistakes(t *testing.T) {
	const head = "| id | promise | test |\n|---|---|---|\n"
	const good = "| H-1 | Rings. | `a/b_test.go: TestA` |\n"
	for _, row := range []struct{ name, text, want string }{
		{"right", head + good, ""},
		{"two tests", head + good + "| | | `a/b_test.go: FuzzB` |\n", ""},
		{"words go on", head + "| H-1 | Rings | |\n| | and more. | `a/b_test.go: TestA` |\n", ""},
		{"pending", head + "| H-1 | Rings. | pending: why |\n", ""},
		{"figures", head + "| – | Fast. | [figures](docs/benchmarks.md) |\n", ""},
		{"two tables", head + good + "\n" + head + "| H-2 | Scores. | pending |\n", ""},
		{"no test", head + "| H-1 | Rings. | |\n" + "| H-2 | Scores. | pending |\n", "H-1, names no test"},
		{"no test at the end", head + "| H-1 | Rings. | |\n", "H-1, names no test"},
		{"another word for pending", head + "| H-1 | Rings. | later |\n", "the third cell"},
		{"two in a cell", head + "| H-1 | Rings. | `a_test.go: TestA`, `a_test.go: TestB` |\n", "the third cell"},
		{"no file", head + "| H-1 | Rings. | `TestA` |\n", "the third cell"},
		{"four cells", head + "| H-1 | Rings | more | pending |\n", "three cells"},
		{"cut", head + "| H-1 | Rings. | pending\n", "three cells"},
		{"no head", good, "outside of its table"},
		{"a row that was left behind", head + good + "\n" + good, "outside of its table"},
		{"joined with lines of before", head + good + "- **H-1** Rings. `a_test.go: TestA`\n", "in a table"},
		{"twice", head + good + good, "stands in line 3 too"},
		{"empty", head + good + "| | | |\n", "an empty row"},
		{"no words", head + "| H-1 | | pending |\n", "promises nothing"},
		{"long", head + "| H-1 | " + strings.Repeat("x", 220) + " | pending |\n", "columns"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, wrong := promises(row.text)
			if got := strings.Join(wrong, "\n"); (got == "") != (row.want == "") || !strings.Contains(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
