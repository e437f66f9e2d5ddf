// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"cmp"
	_ "embed"
	"slices"
	"strings"
	"sync"

	"agentrun/internal/fold"
)

// What is looked for are tables in lexicon/, each row with its reason. They are read at the first hint: the
// programs that link this package judge none at their start. A row that can't be read would be left out;
// TestLexicon holds that there is none.
var (
	//go:embed lexicon/verbs.tsv
	verbRows string
	//go:embed lexicon/forms.tsv
	formRows string
	//go:embed lexicon/words.tsv
	wordRows string
	//go:embed lexicon/commands.tsv
	commandRows string
	//go:embed lexicon/subcommands.tsv
	subcommandRows string
	//go:embed lexicon/carriers.tsv
	carrierRows string
)

// class is what words of words.tsv have in common. A word may be of many.
type class uint64

const (
	scopeWord class = 1 << iota
	production
	system
	branch
	storeWord
	medium
	dataWord
	personWord
	secretWord
	keyed
	confidential
	protection
	rootWord
	laterWord
	recursiveWord
	forceWord
	fillerWord
	lead
	about
	software
	container
	strong
	dropped
	removes
	multi
	mode
	loads
	decodes
	interprets
	english
	evident
	echoes
	wraps
	suffix
	starts
	device
	harmless
	osFolder
	credentialPlace
	credentialFile
	credentialSuffix
	whole
	particle
)

// classes are their names, in the order of the constants.
var classes = [...]string{
	"scope", "production", "system", "branch", "store", "medium", "data", "person", "secret", "keyed", "confidential", "protection",
	"root", "later", "recursive", "force", "filler", "lead", "about", "software", "container", "strong", "dropped", "removes", "multi",
	"mode", "loads", "decodes", "interprets", "english", "evidence", "echoes", "wraps", "suffix", "starts", "device", "harmless", "os",
	"credential_place", "credential_file", "credential_suffix", "whole", "particle",
}

// verb is a base form, and the factor of the action it names.
type verb struct {
	word     string
	as       factor
	noun     bool // as often a thing as an action: a list, an email, a test
	skeleton string
}

// does is how a command is judged, or a word among its arguments.
type does struct {
	only   string // says nothing unless this holds
	as     factor
	undone string // arguments of which one makes it verb_delete: see given
	steps  []step
}

// step is one thing that is done: see finder.do.
type step struct{ what, of string }

// carrier is one way of a program to run another: see carriers.tsv for its columns.
type carrier struct{ option, holds, usual, why string }

// tables are all rows, read once and never changed after: any number of hints are judged at a time. Words are
// looked up folded and in lower case. What a row doesn't say must be harmless: a class without the word, a
// command without the row.
type tables struct {
	verbs    map[string]verb
	harmful  []verb          // that disguise looks for, by word
	forms    map[string]verb // no rule gives them; those of two words have a space
	kinds    map[string]class
	lists    map[class][]string
	commands map[string]*does
	told     map[[2]string]*does // by family and word

	carriers, variables, spawners map[string][]carrier
}

var lexicon = sync.OnceValue(func() *tables {
	t := &tables{
		verbs: map[string]verb{}, forms: map[string]verb{}, kinds: map[string]class{}, lists: map[class][]string{},
		commands: map[string]*does{}, told: map[[2]string]*does{},
		carriers: map[string][]carrier{}, variables: map[string][]carrier{}, spawners: map[string][]carrier{},
	}
	rows(verbRows, 3, t.addVerbs)
	rows(formRows, 3, func(c []string) {
		for _, form := range strings.Fields(c[1]) {
			t.forms[spaced(form)] = t.verbs[c[0]]
		}
	})
	rows(wordRows, 3, func(c []string) {
		n := slices.Index(classes[:], c[0])
		if n < 0 {
			return
		}
		of := class(1) << n
		for _, w := range strings.Fields(c[1]) {
			t.kinds[spaced(w)] |= of
			t.lists[of] = append(t.lists[of], spaced(w))
		}
	})
	rows(commandRows, 4, func(c []string) {
		d := newDoes(c[1], "", c[2])
		for _, name := range strings.Fields(c[0]) {
			t.commands[name] = d
		}
	})
	rows(subcommandRows, 6, func(c []string) {
		d := newDoes(c[2], c[3], c[4])
		for _, word := range strings.Fields(c[1]) {
			t.told[[2]string{c[0], word}] = d
		}
	})
	rows(carrierRows, 6, func(c []string) {
		into := map[string]map[string][]carrier{"carrier": t.carriers, "variable": t.variables, "spawner": t.spawners}[c[0]]
		options := strings.Fields(c[2])
		if len(options) == 0 {
			options = []string{""}
		}
		for _, name := range strings.Fields(c[1]) {
			for _, option := range options {
				into[name] = append(into[name], carrier{option, c[3], c[4], c[5]})
			}
		}
	})
	return t
})

// rows gives the columns of each row; one that says "-" is empty.
func rows(text string, columns int, each func(c []string)) {
	for line := range strings.Lines(text) {
		c := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || len(c) != columns {
			continue
		}
		for i := range c {
			if c[i] == "-" {
				c[i] = ""
			}
		}
		each(c)
	}
}

// spaced reads the sign for a space within a word.
func spaced(w string) string { return strings.ReplaceAll(w, "␣", " ") }

func factorOf(name string) factor {
	if name == "" {
		return noFactor
	}
	return factor(max(slices.IndexFunc(catalogue[:], func(e Entry) bool { return e.Name == name }), 0))
}

// addVerbs keeps the harmful ones in the order of their words as well: two of them may have one skeleton, and
// which is found must not change from run to run.
func (t *tables) addVerbs(c []string) {
	as := factorOf(c[0])
	for _, w := range strings.Fields(c[1]) {
		base, noun := strings.CutSuffix(w, "*")
		v := verb{base, as, noun, fold.Skeleton(base)}
		t.verbs[base] = v
		if catalogue[as].Points >= catalogue[verbSend].Points {
			at, _ := slices.BinarySearchFunc(t.harmful, base, func(v verb, w string) int { return cmp.Compare(v.word, w) })
			t.harmful = slices.Insert(t.harmful, at, v)
		}
	}
}

func newDoes(as, undone, steps string) *does {
	d := &does{as: factorOf(as), undone: undone}
	for _, s := range strings.Fields(steps) {
		what, of, _ := strings.Cut(s, "=")
		if what == "if" {
			d.only = of
			continue
		}
		d.steps = append(d.steps, step{what, of})
	}
	return d
}

// told is what a word does among the arguments of a family's commands; nil: nothing that is known.
func told(family, word string) *does { return lexicon().told[[2]string{family, strings.ToLower(word)}] }

// is tells whether a word is of one of the classes.
func is(word string, of class) bool { return lexicon().kinds[word]&of != 0 }

// within tells whether s holds one of a class's words.
func within(s string, of class) bool {
	return slices.ContainsFunc(lexicon().lists[of], func(w string) bool { return strings.Contains(s, w) })
}
