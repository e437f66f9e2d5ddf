// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"regexp"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// agrees compares the search in steps with the standard library's in one go.
func agrees(t *testing.T, pattern, text string) {
	t.Helper()
	if _, err := newFinder(pattern); err != nil {
		return
	}
	out, err := findText(t.Context(), textArgs{Op: "find", Pattern: pattern, Text: text, Limit: maxMatches})
	if err != nil {
		t.Fatalf("%q in %q: %v", pattern, text, err)
	}
	var got, want [][]int
	for _, m := range out.(found).Matches {
		got = append(got, []int{m.Start, m.End})
	}
	want = append(want, regexp.MustCompile(pattern).FindAllStringIndex(text, maxMatches)...)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%q in %q: %s", pattern, text, d)
	}
}

func TestM11FindAgreesWithTheStandardLibrary(t *testing.T) {
	for _, pattern := range []string{"a", "a*", "^a", "(?m)^a", `\ba`, "a|b*", "", ".", "(?i)A+", `\Qa`, "$", `\z`, "a.*b|a", "()|a", "é?"} {
		for _, text := range []string{"", "a", "aaa", "ba ab\na", "héé aé", "foobar\nabc"} {
			agrees(t, pattern, text)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("a|b*", "abba")
	f.Add(`(?m)^\b.*$`, "x\ny z")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(text) > 200 || !utf8.ValidString(text) || !utf8.ValidString(pattern) {
			return
		}
		agrees(t, pattern, text)
	})
}
