// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"fmt"
	"strings"
)

// maxProblems bounds what is told of one file: more tell nothing new.
const maxProblems = 100

// Problem is one thing wrong with what was read. As an error that a check returns, Path is relative to the
// node that is Done.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // of the file, from 1; 0: it belongs to no line
	Path    string `json:"path,omitempty"` // such as rules[2].host
	Message string `json:"message"`
}

// Bad returns the problem of the value at path.
func Bad(path, format string, args ...any) error {
	return Problem{Path: path, Message: fmt.Sprintf(format, args...)}
}

// Under returns what a check of the part at path found, with the paths of the whole.
func Under(path string, err error) error {
	switch e := err.(type) { //nolint:errorlint // each error of a joined one is looked at by itself
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var all []error
		for _, each := range e.Unwrap() {
			all = append(all, Under(path, each))
		}
		return errors.Join(all...)
	case Problem:
		e.Path = below(path, e.Path)
		return e
	}
	return Bad(path, "%v", err)
}

// Error returns file:line: path: message, without what isn't known.
func (p Problem) Error() string {
	var b strings.Builder
	switch {
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", p.File, p.Line)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	case p.Line > 0:
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	return b.String() + p.Message
}

// Problems are what checks find.
type Problems []Problem

// Add appends a problem of the value at path.
func (ps *Problems) Add(path, format string, args ...any) {
	*ps = append(*ps, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Err returns nil, or an *InvalidError. It avoids the trap of a nil slice in an error that isn't nil.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return &InvalidError{ps}
}

// InvalidError is everything wrong with a file, or with the part of it that was asked about, by line.
type InvalidError struct{ Problems []Problem }

// Error returns a line for each problem.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Lines returns what there is to tell of an error, a line for each problem. A line may still hold a line
// end, of somebody's name.
func Lines(err error) []string {
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok || len(invalid.Problems) == 0 {
		return []string{err.Error()}
	}
	before, after, _ := strings.Cut(err.Error(), invalid.Error())
	var lines []string
	for _, p := range invalid.Problems {
		lines = append(lines, before+p.Error()+after)
	}
	return lines
}

// Nearest returns the known word that another was most likely meant to be; empty: none is near.
func Nearest(word string, known []string) string {
	best, most := "", max(1, len(word)/3)+1
	for _, k := range known {
		if d := distance(word, k); d < most {
			best, most = k, d
		}
	}
	return best
}

// distance counts the bytes to add, leave out or change (Levenshtein), and takes two that are swapped for
// one. Words that are much longer than any key are as far as they are long.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	var before, last, row [65]int
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
