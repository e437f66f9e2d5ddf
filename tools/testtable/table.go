// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
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

// table holds every platform's word on every test, and on every package.
type table struct {
	platforms []string
	cells     map[id]map[string]*cell
	notes     []string // what is wrong with a package and not with one of its tests
}

func newTable() *table { return &table{cells: map[id]map[string]*cell{}} }

// where matches the place that testing puts before a message.
var where = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// read adds one stream. Streams of one platform add up.
func (t *table) read(platform string, in io.Reader) error {
	if !slices.Contains(t.platforms, platform) {
		t.platforms = append(t.platforms, platform)
	}
	return scanInto(t, platform, in, func(event) {})
}

// scanInto adds a stream, and shows each event.
func scanInto(t *table, platform string, in io.Reader, show func(event)) error {
	last := map[id]string{}
	events := 0
	err := scan(in, func(_ []byte, e event, ok bool) error {
		if !ok {
			return nil
		}
		events++
		show(e)
		if e.Action == "build-fail" {
			t.at(id{pkg: e.ImportPath}, platform).outcome = failed
			return nil
		}
		// Benchmarks are run to see that they run; they are no tests.
		if strings.HasPrefix(e.Test, "Benchmark") {
			return nil
		}
		where := id{e.Package, e.Test}
		switch e.Action {
		case "run", "start":
			t.at(where, platform)
		case "output":
			if reason := skipReason(e.Output); reason != "" {
				last[where] = reason
			}
		case "pass":
			t.settle(where, platform, cell{outcome: passed})
		case "skip":
			t.settle(where, platform, cell{skipped, last[where]})
		case "fail":
			t.settle(where, platform, cell{outcome: failed})
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

func (t *table) at(i id, platform string) *cell {
	if t.cells[i] == nil {
		t.cells[i] = map[string]*cell{}
	}
	if t.cells[i][platform] == nil {
		t.cells[i][platform] = &cell{}
	}
	return t.cells[i][platform]
}

// settle notes an outcome. A failure stays one whatever a later stream or event says.
func (t *table) settle(i id, platform string, now cell) {
	c := t.at(i, platform)
	if c.outcome != failed && (c.outcome != passed || now.outcome != skipped) {
		*c = now
	}
}

// failedOn are the platforms on which a test or a package failed, in order.
func (t *table) failedOn(i id) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.cells[i])),
		func(p string) bool { return t.cells[i][p].outcome > failed })
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
	for i := range t.cells {
		// A parent that failed by its own t.Error, all children passing, must not vanish.
		own := inner[i] && len(t.failedOn(i)) > 0 && !t.descendantFailed(i)
		if i.test != "" && (!inner[i] || own) {
			leaves = append(leaves, i)
		}
	}
	slices.SortFunc(leaves, func(a, b id) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
	return leaves
}

func (t *table) descendantFailed(i id) bool {
	for d := range t.cells {
		if d.pkg == i.pkg && strings.HasPrefix(d.test, i.test+"/") && len(t.failedOn(d)) > 0 {
			return true
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
	sums := map[string]*[passed + 1]int{}
	var pkgs []string
	var rows, wrong, never [][]string
	alike := map[int]int{} // by row: how many further leaves it stands for
	for _, i := range t.leaves() {
		if sums[i.pkg] == nil {
			sums[i.pkg] = new([passed + 1]int)
			pkgs = append(pkgs, i.pkg)
		}
		m := t.merged(i)
		sums[i.pkg][m]++
		row, plain := t.row(i)
		if m == failed {
			wrong = append(wrong, row)
		}
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
		n := sums[p]
		lines = append(lines, []string{short(p), fmt.Sprint(n[passed]), fmt.Sprint(n[failed]),
			fmt.Sprint(n[skipped])})
	}
	printRows(out, lines)
	fmt.Fprintln(out)

	counts[failed] += t.packageFailures()
	for _, s := range steps {
		t.notes = append(t.notes, "step failed: "+s)
	}
	counts[failed] += len(steps)
	// Once more at the end, which is all that some logs keep.
	for _, row := range wrong {
		note := "failed: " + row[0]
		for n, p := range t.platforms {
			note += fmt.Sprintf(", %s: %s", p, row[n+1])
		}
		t.notes = append(t.notes, note)
	}
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
	type place struct{ pkg, platform string }
	blamed := map[place]bool{}
	for i := range t.cells {
		for _, p := range t.failedOn(i) {
			blamed[place{i.pkg, p}] = blamed[place{i.pkg, p}] || i.test != ""
		}
	}
	n := 0
	for at, test := range blamed {
		if !test {
			n++
			how := t.cells[id{pkg: at.pkg}][at.platform].outcome
			t.notes = append(t.notes, fmt.Sprintf("%s on %s: %v, and no single test did", short(at.pkg),
				at.platform, how))
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
			why := cmp.Or(c.reason, "no reason given")
			reasons = append(reasons, p+": "+strings.TrimPrefix(why, "need: "))
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
