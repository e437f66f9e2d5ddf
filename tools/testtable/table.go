// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// outcome of a test on one platform. The zero value is a test that began and never
// ended, which counts as a failure.
type outcome int

const (
	unfinished outcome = iota
	failed
	skipped
	passed
)

func (o outcome) String() string {
	return [...]string{"did not end", "FAILED", "skipped", "ran"}[o]
}

// id names a test; an empty test is the package as a whole.
type id struct{ pkg, test string }

func (i id) parent() (id, bool) {
	at := strings.LastIndexByte(i.test, '/')
	if at < 0 {
		return id{}, false
	}
	return id{i.pkg, i.test[:at]}, true
}

type cell struct {
	outcome outcome
	reason  string
}

// table holds every platform's word on every test.
type table struct {
	platforms []string
	cells     map[id]map[string]*cell
	packages  map[id]map[string]*cell
	notes     []string // what is wrong with a package and not with one of its tests
}

func newTable() *table {
	return &table{cells: map[id]map[string]*cell{}, packages: map[id]map[string]*cell{}}
}

// where matches the place that testing puts before a message.
var where = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// read adds one stream. Streams of one platform add up.
func (t *table) read(platform string, in io.Reader) error {
	if !slices.Contains(t.platforms, platform) {
		t.platforms = append(t.platforms, platform)
	}
	last := map[id]string{}
	events := 0
	err := scan(in, func(_ []byte, e event, ok bool) error {
		if !ok {
			return nil
		}
		events++
		if e.Action == "build-fail" {
			t.at(t.packages, id{pkg: e.ImportPath}, platform).outcome = failed
			return nil
		}
		// Benchmarks are run to see that they run; they are no tests.
		if strings.HasPrefix(e.Test, "Benchmark") {
			return nil
		}
		where := id{e.Package, e.Test}
		cells := t.cells
		if e.Test == "" {
			cells = t.packages
		}
		switch e.Action {
		case "run", "start":
			t.at(cells, where, platform)
		case "output":
			if reason := skipReason(e.Output); reason != "" {
				last[where] = reason
			}
		case "pass":
			t.settle(cells, where, platform, passed, "")
		case "skip":
			t.settle(cells, where, platform, skipped, last[where])
		case "fail":
			t.settle(cells, where, platform, failed, "")
		}
		return nil
	})
	if err == nil && events == 0 {
		err = errors.New("no test event in it")
	}
	return err
}

// skipReason is the message of t.Skip in a line of output, without the place.
func skipReason(line string) string {
	if !where.MatchString(line) {
		return ""
	}
	return strings.TrimSpace(where.ReplaceAllString(line, ""))
}

func (t *table) at(cells map[id]map[string]*cell, i id, platform string) *cell {
	if cells[i] == nil {
		cells[i] = map[string]*cell{}
	}
	if cells[i][platform] == nil {
		cells[i][platform] = &cell{}
	}
	return cells[i][platform]
}

// settle notes an outcome. A failure stays one whatever a later stream or event says.
func (t *table) settle(cells map[id]map[string]*cell, i id, platform string, o outcome, reason string) {
	c := t.at(cells, i, platform)
	if c.outcome == failed {
		return
	}
	if c.outcome == passed && o == skipped {
		return
	}
	c.outcome, c.reason = o, reason
}

// leaves are the tests that have no subtest on any platform. A test with subtests is
// not counted beside them: its outcome is theirs.
func (t *table) leaves() []id {
	inner := map[id]bool{}
	for i := range t.cells {
		if p, ok := i.parent(); ok {
			inner[p] = true
		}
	}
	var leaves []id
	for i, on := range t.cells {
		ownFailure := false
		for _, c := range on {
			ownFailure = ownFailure || c.outcome <= failed
		}
		// A parent that failed by its own t.Error, all children passing, must not vanish.
		if !inner[i] || ownFailure && !t.descendantFailed(i) {
			leaves = append(leaves, i)
		}
	}
	slices.SortFunc(leaves, func(a, b id) int {
		if c := strings.Compare(a.pkg, b.pkg); c != 0 {
			return c
		}
		return strings.Compare(a.test, b.test)
	})
	return leaves
}

func (t *table) descendantFailed(i id) bool {
	for d, on := range t.cells {
		if d.pkg == i.pkg && strings.HasPrefix(d.test, i.test+"/") {
			for _, c := range on {
				if c.outcome <= failed {
					return true
				}
			}
		}
	}
	return false
}

// on is a platform's word on a test: its own, else that of the nearest ancestor which
// was skipped there and so never made the subtest.
func (t *table) on(i id, platform string) (cell, bool) {
	if c := t.cells[i][platform]; c != nil {
		return *c, true
	}
	for p, ok := i.parent(); ok; p, ok = p.parent() {
		if c := t.cells[p][platform]; c != nil && c.outcome == skipped {
			return *c, true
		}
	}
	return cell{}, false
}

// merged is the outcome over all platforms that met the test.
func (t *table) merged(i id) outcome {
	result := skipped
	for _, p := range t.platforms {
		c, met := t.on(i, p)
		switch {
		case !met:
		case c.outcome <= failed:
			return failed
		case c.outcome == passed:
			result = passed
		}
	}
	return result
}

// integration is the package whose every top-level test gets a line, with the number of
// its subtests that just ran; of the rest, and of others, only what is not plain success.
const integration = "agentrun/test/integration"

func (t *table) print(out io.Writer, mustRun bool, steps []string) error {
	var counts [passed + 1]int
	type sum struct{ passed, failed, skipped int }
	sums := map[string]*sum{}
	var pkgs []string
	var rows, never [][]string
	alike := map[int]int{} // by row: how many further leaves it stands for
	for _, i := range t.leaves() {
		s := sums[i.pkg]
		if s == nil {
			s = &sum{}
			sums[i.pkg] = s
			pkgs = append(pkgs, i.pkg)
		}
		m := t.merged(i)
		switch m {
		case failed:
			s.failed++
		case skipped:
			s.skipped++
		default:
			s.passed++
		}
		row, plain := t.row(i)
		if m == skipped && mustRun {
			m = failed
			never = append(never, row)
		}
		counts[m]++
		switch {
		case !plain:
			rows = append(rows, row)
		case i.pkg == integration:
			top, _, _ := strings.Cut(i.test, "/")
			// The leaves are sorted, so those of one test that look alike are neighbours.
			row[0] = top
			if n := len(rows) - 1; n >= 0 && slices.Equal(rows[n], row) {
				alike[n]++
			} else {
				rows = append(rows, row)
			}
		}
	}
	for n, more := range alike {
		rows[n][0] += fmt.Sprintf(" (%d)", more+1)
	}
	head := append([]string{"test"}, t.platforms...)
	printRows(out, append([][]string{append(head, "why skipped")}, rows...))

	fmt.Fprintln(out)
	lines := [][]string{{"package", "passed", "failed", "skipped everywhere"}}
	for _, p := range pkgs {
		s := sums[p]
		lines = append(lines, []string{short(p), fmt.Sprint(s.passed), fmt.Sprint(s.failed), fmt.Sprint(s.skipped)})
	}
	printRows(out, lines)
	fmt.Fprintln(out)

	counts[failed] += t.packageFailures()
	for _, s := range steps {
		t.notes = append(t.notes, "step failed: "+s)
	}
	counts[failed] += len(steps)
	for _, row := range never {
		t.notes = append(t.notes, "never ran on any platform: "+row[0]+": "+row[len(row)-1])
	}
	for _, n := range t.notes {
		fmt.Fprintln(out, n)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", counts[passed], counts[failed], counts[skipped])
	if counts[failed] > 0 || counts[passed] == 0 {
		return errFailed
	}
	return nil
}

// packageFailures counts packages that failed without a test that did: they did not
// build, panicked outside a test, left something behind, or were cut short.
func (t *table) packageFailures() int {
	blamed := map[string]map[string]bool{}
	for i, on := range t.cells {
		for p, c := range on {
			if c.outcome <= failed {
				if blamed[i.pkg] == nil {
					blamed[i.pkg] = map[string]bool{}
				}
				blamed[i.pkg][p] = true
			}
		}
	}
	n := 0
	for i, on := range t.packages {
		for p, c := range on {
			if c.outcome <= failed && !blamed[i.pkg][p] {
				n++
				t.notes = append(t.notes, fmt.Sprintf("%s on %s: %v, and no single test did", short(i.pkg), p, c.outcome))
			}
		}
	}
	slices.Sort(t.notes)
	return n
}

// row is a test's line, and whether it says nothing but success.
func (t *table) row(i id) (row []string, plain bool) {
	plain = true
	row = []string{i.test}
	if i.pkg != integration {
		row[0] = short(i.pkg) + "." + i.test
	}
	var reasons []string
	for _, p := range t.platforms {
		c, met := t.on(i, p)
		if !met {
			row = append(row, "-")
			continue
		}
		row = append(row, c.outcome.String())
		if c.outcome != passed {
			plain = false
		}
		if c.outcome == skipped {
			r := c.reason
			if r == "" {
				r = "no reason given"
			}
			reasons = append(reasons, p+": "+strings.TrimPrefix(r, "need: "))
		}
	}
	return append(row, strings.Join(reasons, "; ")), plain
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "agentrun/") }

func printRows(out io.Writer, rows [][]string) {
	var width []int
	for _, r := range rows {
		for n, c := range r {
			if n == len(width) {
				width = append(width, 0)
			}
			// One long name must not push the columns of all others out of sight.
			width[n] = max(width[n], min(len(c), 64))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for n, c := range r {
			fmt.Fprintf(&b, "%-*s  ", width[n], c)
		}
		fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
	}
}
