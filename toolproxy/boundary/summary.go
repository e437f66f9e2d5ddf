// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentrun/telemetry/mask"
)

// What an agent of a confidential team gets in the place of a text (M-15): a summary that a model wrote and that repeats
// nothing of the text, or else what Metadata says of it. Nothing is ever cut out of the text.

// FlagQuoted: a summary repeated the text, so it was withheld too.
const FlagQuoted = "summary_quoted"

// Summary is text on one line, without secrets and personal data (telemetry/mask). It isn't given, "", if that has more
// than n characters: the beginning of a long text is plaintext, whatever it calls itself.
func Summary(text string, n int) string {
	if len(text) > 16*n {
		return ""
	}
	text = mask.Text(strings.Join(strings.Fields(text), " "))
	if utf8.RuneCountInString(text) > n {
		return ""
	}
	return text
}

// Metadata says of a text how long it is, in which script, and gives a digest that tells two texts apart. The digest is
// keyed: without the key nobody can try guesses of a short text.
func Metadata(text string, key []byte) string {
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte(text))
	return fmt.Sprintf("%d characters, %d words, %d lines, script %s, digest %x", utf8.RuneCountInString(text), len(strings.Fields(text)),
		strings.Count(strings.TrimRight(text, "\n"), "\n")+1, script(text), sum.Sum(nil)[:8])
}

// script is that of most letters: a guess at the language that says nothing else.
func script(text string) string {
	count := map[string]int{}
	best := "none"
	for _, r := range text {
		if !unicode.IsLetter(r) {
			continue
		}
		for _, name := range scripts {
			if unicode.Is(unicode.Scripts[name], r) {
				if count[name]++; count[name] > count[best] {
					best = name
				}
				break
			}
		}
	}
	return best
}

var scripts = []string{"Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Han", "Hiragana", "Katakana", "Hangul", "Devanagari", "Thai"}

// quoteLetters is the shortest run of letters and digits that counts as repeated: some four words.
const quoteLetters = 20

// Base64, hexadecimal and codes of characters are made of words that no language has: with digits, or with capitals where
// no word has them. A summary has few of them, and none that is longer than the compounds of German.
const (
	mostOdd     = 3
	longestWord = 48
)

var oddWord = regexp.MustCompile(`[0-9]|[a-z][A-Z]|[A-Z]{2}[a-z]`)

// Quotes tells whether summary repeats text: a run of its letters, whatever stands between them and however they are
// written, forwards or backwards; a word of it with a digit, as in numbers, names of accounts and passwords; or all of a
// short text. What looks encoded counts too: nobody here can read it.
func Quotes(summary, text string) bool {
	odd := 0
	for word := range strings.FieldsFuncSeq(summary, notOfWord) {
		if oddWord.MatchString(word) {
			odd++
		}
		if odd > mostOdd || utf8.RuneCountInString(word) > longestWord {
			return true
		}
		if len(word) >= 4 && strings.ContainsFunc(word, unicode.IsDigit) && strings.Contains(text, word) {
			return true
		}
	}
	whole, said := []rune(view(text).letters), []rune(view(summary).letters)
	n := min(quoteLetters, len(whole))
	if n == 0 || len(said) < n {
		return false
	}
	back := slices.Clone(said)
	slices.Reverse(back)
	runs := map[string]bool{}
	for _, s := range [][]rune{said, back} {
		for i := range len(s) - n + 1 {
			runs[string(s[i:i+n])] = true
		}
	}
	for i := range len(whole) - n + 1 {
		if runs[string(whole[i:i+n])] {
			return true
		}
	}
	return false
}

func notOfWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
