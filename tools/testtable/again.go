// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// mostAgain tests of one stream are run a second time. More that fail at once are no chance.
const mostAgain = 3

// again lists what is worth a second try of a stream: by package, a pattern of its top-level tests that failed. Nothing is where more failed
// than mostAgain, a test didn't end, something was left behind, or the race detector has spoken: those are no chance either.
func again(in io.Reader, out io.Writer) error {
	failing := map[string][]string{}
	n, hopeless := 0, false
	t := newTable()
	err := scanInto(t, "", in, func(e event) {
		hopeless = hopeless || e.Action == "build-fail" || strings.Contains(e.Output, "race detected during execution of test") ||
			strings.HasPrefix(e.Output, "WARNING: DATA RACE") || strings.Contains(e.Output, "leak check (M-5)")
		if e.Action == "fail" && e.Test != "" && !strings.Contains(e.Test, "/") {
			failing[e.Package] = append(failing[e.Package], e.Test)
			n++
		}
	})
	if err != nil {
		return err
	}
	for _, platforms := range t.cells {
		hopeless = hopeless || platforms[""].outcome == unfinished
	}
	if hopeless || n > mostAgain {
		return nil
	}
	for _, pkg := range slices.Sorted(maps.Keys(failing)) {
		fmt.Fprintf(out, "%s ^(%s)$\n", pkg, strings.Join(failing[pkg], "|"))
	}
	return nil
}

// reader is what reads a stream of a platform: again: before its name is said of a second try.
func (t *table) reader(of string) (platform string, read func(string, io.Reader) error) {
	if platform, ok := strings.CutPrefix(of, "again:"); ok {
		return platform, t.readAgain
	}
	return of, t.read
}

// readAgain adds a second try. A test that passes in it has passed, and is named at the end; what fails again has failed twice.
func (t *table) readAgain(platform string, in io.Reader) error {
	second := newTable()
	if err := second.read(platform, in); err != nil {
		return err
	}
	ran := slices.SortedFunc(maps.Keys(second.cells), func(a, b id) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test)) })
	for _, i := range ran {
		whole := second.cells[id{pkg: i.pkg}][platform]
		if i.test == "" || strings.Contains(i.test, "/") || second.cells[i][platform].outcome != passed || whole == nil || whole.outcome != passed {
			continue
		}
		for at, platforms := range t.cells {
			if c := platforms[platform]; at.pkg == i.pkg && c != nil && c.outcome == failed && (at.test == i.test || strings.HasPrefix(at.test, i.test+"/")) {
				c.outcome = passed
			}
		}
		t.notes = append(t.notes, fmt.Sprintf("passed at the second try: %s.%s on %s", short(i.pkg), i.test, platform))
		if c := t.cells[id{pkg: i.pkg}][platform]; c != nil && c.outcome == failed && !t.anyFailed(i.pkg, platform) {
			c.outcome = passed
		}
	}
	return nil
}

func (t *table) anyFailed(pkg, platform string) bool {
	for i, platforms := range t.cells {
		if c := platforms[platform]; i.pkg == pkg && i.test != "" && c != nil && c.outcome <= failed {
			return true
		}
	}
	return false
}
