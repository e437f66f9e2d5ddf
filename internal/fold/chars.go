// SPDX-License-Identifier: Apache-2.0

package fold

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

//go:embed alikes.tsv
var alikeRows string

// alikes maps a character to the ASCII one that it is read as: alikes.tsv the other way round. It is read at the first character that
// isn't ASCII. A number that can't be read would be left out; TestAlikes holds that there is none.
var alikes = sync.OnceValue(func() map[rune]rune {
	all := map[rune]rune{}
	for row := range strings.Lines(alikeRows) {
		as, numbers, _ := strings.Cut(row, "\t")
		for _, number := range strings.Fields(numbers) {
			if r, err := strconv.ParseInt(number, 16, 32); err == nil {
				all[rune(r)] = rune(as[0])
			}
		}
	}
	return all
})

// lookAlike is the ASCII character that r is read as; 0 if none.
func lookAlike(r rune) rune { return alikes()[r] }

// control takes the controls that aren't white space.
func control(r rune) bool { return unicode.Is(unicode.Cc, r) && !space(r) }

// invisible takes what is drawn as nothing at all: format characters, variation selectors, the grapheme joiner and the
// letters that Unicode says to ignore by default. U+FFFD stands for what couldn't be read, and stays.
func invisible(r rune) bool {
	switch {
	case r < 0xad:
		return false
	case unicode.Is(unicode.Cf, r):
		return true
	case r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, 0x180b <= r && r <= 0x180f, 0xfe00 <= r && r <= 0xfe0f, 0xe0000 <= r && r <= 0xe0fff:
		return true
	}
	return false
}

// bidi takes the characters of UAX 9 that turn the order of what follows, and the marks.
func bidi(r rune) bool {
	return 0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c
}

// space takes white space of any kind, and the two letters that are drawn as a blank.
func space(r rune) bool {
	return unicode.IsSpace(r) || r == 0x2800 || r == 0x3164 || r == 0xffa0 || 0x1c <= r && r <= 0x1f
}

func lineEnd(r rune) bool {
	return r == '\n' || r == '\r' || r == '\v' || r == '\f' || r == 0x85 || r == 0x2028 || r == 0x2029
}
