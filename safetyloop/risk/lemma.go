// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"strings"

	"agentrun/internal/fold"
)

// lookup finds a base form.
func lookup(word string) (verb, bool) {
	v, ok := lexicon().verbs[word]
	return v, ok
}

// maxWord is longer than any verb in any form.
const maxWord = 24

// lemma finds the verb of a folded word, and whether the word is a form that only a verb or the name of its
// act has.
func lemma(word string) (v verb, inflected, ok bool) {
	if v, ok := lookup(word); ok {
		return v, false, true
	}
	if len(word) < 4 || len(word) > maxWord {
		v, ok := irregular(word)
		return v, true, ok
	}
	// The rules are tried in this order, and the first that gives a known verb is taken: "ing" before "ings", so
	// that no longer ending is cut from a word that a shorter one explains. A doubled consonant (dropping) counts
	// where nothing is appended.
	for _, s := range [...]struct{ suffix, with string }{
		{"ing", ""}, {"ing", "e"}, {"ed", ""}, {"ed", "e"}, {"s", ""}, {"es", ""}, {"ied", "y"}, {"ies", "y"}, {"ying", "y"}, {"ion", "e"}, {"ion", ""}, {"ation", "e"},
		{"ation", ""}, {"ment", ""}, {"al", "e"}, {"al", ""}, {"ure", "e"}, {"er", ""}, {"er", "e"}, {"ication", "y"}, {"ings", ""}, {"ings", "e"}, {"ions", "e"}, {"ions", ""}, {"ments", ""}, {"als", "e"},
	} {
		stem, ok := strings.CutSuffix(word, s.suffix)
		if !ok || len(stem) < 2 {
			continue
		}
		if v, ok := lookup(stem + s.with); ok {
			return v, s.suffix != "s" && s.suffix != "es" && s.suffix != "ies", true
		}
		if n := len(stem); s.with == "" && n > 3 && stem[n-1] == stem[n-2] {
			if v, ok := lookup(stem[:n-1]); ok {
				return v, true, true
			}
		}
	}
	v, ok = irregular(word)
	return v, true, ok
}

// irregular finds a form that no rule gives.
func irregular(word string) (verb, bool) {
	v, ok := lexicon().forms[word]
	return v, ok
}

// joined finds a strong verb that another word is written onto: deleteall, bulkdelete, droptable. Only few
// verbs are looked for so, at the beginning and the end of a word: within one, or with weak verbs, honest
// words would be full of them.
func joined(word string) (verb, bool) {
	if len(word) < 6 || len(word) > 2*maxWord {
		return verb{}, false
	}
	for _, base := range lexicon().lists[strong] {
		if strings.HasPrefix(word, base) || strings.HasSuffix(word, base) {
			return lookup(base)
		}
	}
	for _, base := range lexicon().lists[dropped] {
		if strings.HasPrefix(word, base) {
			return lookup("drop")
		}
	}
	if is(word, removes) {
		return lookup("rm")
	}
	return verb{}, false
}

// disguise finds a verb that digits, signs or capitals stand in: de1ete, deIete, dr0p. Only verbs that do
// harm are looked for, in a word that has a reason to be looked at. Words and verbs are compared as
// skeletons, in which all that looks alike is one letter; a word that is written as it should be is none,
// even if its skeleton is.
func disguise(word string) (verb, bool) {
	if len(word) < 2 || len(word) > maxWord {
		return verb{}, false
	}
	k := fold.Skeleton(word)
	for _, form := range [...]string{k, strings.TrimSuffix(k, "s"), strings.TrimSuffix(k, "lng"), strings.TrimSuffix(k, "lng") + "e", strings.TrimSuffix(k, "ed"), strings.TrimSuffix(k, "d")} {
		for _, v := range lexicon().harmful {
			if v.skeleton == form && v.word != word {
				return v, true
			}
		}
	}
	return verb{}, false
}

// Base gives the base form of a folded word that is a form of a verb (deleting, deletion: delete), and any
// other word as it is.
func Base(word string) string {
	if v, _, ok := lemma(word); ok {
		return v.word
	}
	return word
}
