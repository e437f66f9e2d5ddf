// SPDX-License-Identifier: Apache-2.0

package fold

import "strings"

// Skeleton makes one of the ASCII characters that read alike, or are used for each other in "leet": i, l, 1 and |; o and 0; e and
// 3; a, 4 and @; s, 5 and $; t and 7. The text must be folded. Two texts with one skeleton may still be different words:
// it serves to find what is forbidden, never to find what is allowed.
func Skeleton(folded string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case 'i', '1', '|', '!':
			return 'l'
		case '0':
			return 'o'
		case '3':
			return 'e'
		case '4', '@':
			return 'a'
		case '5', '$':
			return 's'
		case '7':
			return 't'
		}
		return r
	}, folded)
}
