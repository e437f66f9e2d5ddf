// SPDX-License-Identifier: Apache-2.0

// Package shown makes text fit for a terminal whoever wrote it: what a terminal would obey or not show (control characters,
// directions, what can't be seen) is written as JSON writes it. It changes nothing else, so JSON stays the same JSON.
package shown

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// Text keeps line ends.
func Text(unsafe string) string {
	var b strings.Builder
	for _, r := range unsafe {
		switch {
		case strconv.IsGraphic(r) || r == '\n':
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Line is one line: a name with a line end in it can't forge a line of ours.
func Line(unsafe string) string { return strings.ReplaceAll(Text(unsafe), "\n", `\n`) }

// Duration is d without the zeros that Duration.String appends: 10m and not 10m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
