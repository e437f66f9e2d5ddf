// SPDX-License-Identifier: Apache-2.0

package risk

import "strings"

// noun notes what a word says about scope, environment and object.
func (f *finder) noun(word, next string) {
	k := lexicon().kinds[word]
	switch {
	case k&scopeWord != 0:
		first(&f.all, word)
	case k&production != 0 || word == "live" && is(next, system):
		first(&f.prod, word)
	case k&branch != 0:
		first(&f.main, word)
	case k&storeWord != 0:
		first(&f.store, word)
	case k&dataWord != 0:
		first(&f.data, word)
	}
	switch {
	case k&personWord != 0 || word == "credit" && strings.HasPrefix(next, "card"):
		first(&f.person, word)
		f.sensitive = f.sensitive || word != "customer" && word != "customers"
	case k&secretWord != 0 || k&keyed != 0 && strings.HasPrefix(next, "key"):
		f.add(credentialWord, word)
		f.sensitive = true
	case k&confidential != 0:
		f.sensitive = true
	case k&protection != 0:
		first(&f.security, word)
	case k&rootWord != 0:
		f.add(privilege, word)
	case k&laterWord != 0:
		if word != "startup" || next == "script" || next == "item" {
			f.add(persistence, word)
		}
	case k&recursiveWord != 0:
		f.add(recursive, word)
	case k&forceWord != 0:
		f.add(force, word)
	}
}

func first(into *string, word string) {
	if *into == "" {
		*into = word
	}
}

// filler takes the words that say nothing about the target.
func filler(w string) bool { return len(w) < 2 || is(w, fillerWord) }

// leads tells whether a verb is expected after the word: "to email", "then post", "quickly share".
func leads(w string) bool { return w == "" || is(w, lead) || strings.HasSuffix(w, "ly") }
