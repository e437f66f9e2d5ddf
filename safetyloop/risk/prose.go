// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"strings"
	"unicode"
)

// token is a piece of a hint between white space, quotes and brackets.
type token struct {
	text   string // as written, without quotes and backslashes
	sep    bool   // a separator of commands instead: ; | & ` ( ) and line ends
	quoted bool   // stood within quotes
	ends   bool   // a colon, comma or full stop came after it
}

// tokenize reads text as words, blind for quoting: r”m and \rm are rm. It can't fail, so no trick with quotes
// hides what it finds; what it can't see (variables, escapes) the parser does.
func tokenize(text string) []token {
	text = unsplit(text)
	var out []token
	var b strings.Builder
	quoted := false
	flush := func() {
		if s := strings.TrimRight(b.String(), ".:!?"); s != "" {
			out = append(out, token{text: s, quoted: quoted, ends: len(s) < b.Len()})
		} else if b.Len() > 0 && strings.Trim(b.String(), ".") == "" {
			out = append(out, token{text: b.String()})
		}
		b.Reset()
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\'', '"':
			quoted = !quoted && (i == 0 || text[i-1] == ' ')
		case '\\':
			if s := b.String(); len(s) >= 2 && (s[1] == ':') {
				b.WriteByte('/')
			}
		case ' ', '{', '}', '[', ']', ',', '=', '\t':
			flush()
			if c == ',' && len(out) > 0 {
				out[len(out)-1].ends = true
			}
			if c == '=' {
				out = append(out, token{text: "="})
			}
		case ';', '|', '&', '`', '(', ')', '\n', '<', '>':
			flush()
			out = append(out, token{text: text[i : i+1], sep: true})
		default:
			b.WriteByte(c)
		}
	}
	flush()
	return out
}

// unsplit takes the shell's own names for a space as one.
func unsplit(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	for _, ifs := range [...]string{"${IFS}", "$IFS$9", "$IFS", "${ifs}", "$ifs", "$@", "${@}", "$*"} {
		with := " "
		if strings.Contains(ifs, "@") || strings.Contains(ifs, "*") {
			with = ""
		}
		text = strings.ReplaceAll(text, ifs, with)
	}
	return text
}

// parts splits a name into lower-case words: deleteUser, delete_user, fs.delete-user. Other scripts' letters
// are kept together. A run of capitals is one word up to the last of them, which begins the next: HTTPDelete
// is http and delete. last, lastAt and run are of the character before; that is all that is needed to tell.
func parts(name string) []string {
	var out []string
	start, last, run := -1, rune(0), 0
	end := func(i int) {
		if start >= 0 {
			out = append(out, strings.ToLower(name[start:i]))
		}
		start = -1
	}
	lastAt := 0
	for i, r := range name {
		upper := unicode.IsUpper(r)
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end(i)
		case start < 0:
			start = i
		case upper && unicode.IsLower(last):
			end(i)
			start = i
		case !upper && unicode.IsLetter(r) && run > 1 && start >= 0:
			end(lastAt)
			start = lastAt
		}
		if upper {
			run++
		} else {
			run = 0
		}
		last, lastAt = r, i
	}
	end(len(name))
	return out
}

// prose judges the words of a hint.
func (f *finder) prose(tokens []token) {
	previous := ""
	for i, t := range tokens {
		if t.sep {
			previous = ""
			continue
		}
		next := ""
		if i+1 < len(tokens) && !tokens[i+1].sep {
			next = strings.ToLower(tokens[i+1].text)
		}
		f.token(t, previous, next)
		if previous = strings.ToLower(t.text); t.ends {
			previous = ""
		}
	}
	f.letters(tokens)
}

// token judges one word by what it looks like, in this order: a star, an address, an option, a root folder,
// an email, a path, and a name if it is none of them. The order is from what can be nothing else to what can
// be anything; an address has slashes and would be a path, a path has dots and would be a name.
func (f *finder) token(t token, previous, next string) {
	s := strings.TrimPrefix(t.text, "@")
	switch {
	case s == "":
	case s == "*":
		if previous != "select" {
			first(&f.all, s)
		}
		return
	case strings.Contains(s, "://"):
		f.address(s)
		return
	case strings.HasPrefix(s, "-"):
		if strings.HasPrefix(s, "--") || len(s) > len("-rf")+1 { // -Recurse, -delete
			f.flag(parts(s))
		}
		return
	case s == "/" || s == "~" || s == "/*":
		if f.heavy() {
			f.place(s, true, true)
		}
		return
	case strings.Contains(s, "@") && strings.Contains(s, ".") && !strings.HasPrefix(s, "@"):
		f.way = true
		f.aim(s)
		return
	case pathLike(s):
		f.file(s)
		return
	}
	f.name(t, previous, next)
}

// file notes a path, and what its folders say about the environment.
func (f *finder) file(s string) {
	f.remote(s)
	f.place(s, false, true)
	for _, w := range parts(s) {
		if is(w, production) {
			first(&f.prod, s)
		}
	}
}

// address is a URL.
func (f *finder) address(s string) {
	if strings.HasPrefix(strings.ToLower(s), "file:") {
		f.file(s)
		return
	}
	f.aim(s)
	for _, w := range parts(s) {
		if is(w, production) {
			first(&f.prod, s)
		}
	}
	if local(s) {
		return
	}
	f.add(network, s)
	f.way = true
}

func local(url string) bool {
	_, host, _ := strings.Cut(strings.ToLower(url), "://")
	for _, h := range [...]string{"localhost", "127.0.0.1", "[::1]", "::1"} {
		if rest, ok := strings.CutPrefix(host, h); ok && (rest == "" || rest[0] == ':' || rest[0] == '/') && !strings.Contains(rest, "@") {
			return true
		}
	}
	return false
}

// flag judges a long option by its words.
func (f *finder) flag(words []string) {
	joined := strings.Join(words, "-")
	for _, w := range words {
		if v, _, ok := lemma(w); ok && (v.as == verbDelete || v.as == verbDestroy) && joined != "rm" {
			f.act(v.as, v.word)
		}
		switch w {
		case "force", "hard", "yes", "noconfirm", "insecure":
			f.add(force, "--"+joined)
		case "all":
			first(&f.all, "--all")
		case "recursive", "recurse":
			f.add(recursive, "--"+joined)
		case "privileged":
			f.add(privilege, "--privileged")
		}
	}
	if joined == "no-verify" || joined == "auto-approve" || joined == "no-preserve-root" || joined == "no-check-certificate" {
		f.add(force, "--"+joined)
	}
}

// name judges a word, or the name of an operation. A name of several words is an operation's, and its own
// words say what it does; the words around it only tell verb from noun at its ends. Where no word is a verb,
// the disguises are tried, which cost most and would find verbs in honest words otherwise: first the name
// without its separators, then digits and signs for letters.
func (f *finder) name(t token, previous, next string) {
	words := parts(t.text)
	if whole := strings.ToLower(t.text); len(words) > 1 && strings.IndexFunc(whole, func(r rune) bool { return !unicode.IsLetter(r) }) < 0 {
		if _, _, ok := lemma(whole); ok {
			words = []string{whole} // dRoP
		}
	}
	compound := len(words) > 1
	found, strongest := false, false
	for i, w := range words {
		after := next
		if i+1 < len(words) {
			after = words[i+1]
		}
		f.noun(w, after)
		v, ok := f.verbIn(w, previous, after, i < len(words)-1, compound)
		if !ok {
			continue
		}
		found = true
		f.act(v.as, v.word)
		f.drops = f.drops || v.word == "drop"
		f.formats = f.formats || v.word == "format"
		if v.word == "format" && len(after) == 1 {
			f.act(verbDestroy, "format") // format c:
			f.aim(after)
			first(&f.store, "drive")
		}
		strongest = strongest || v.word == f.verb
	}
	if compound {
		if found && (strongest || f.operation == "") {
			f.operation = strings.Join(words, "_")
		}
		f.operate(words...)
		if !found {
			found = f.rejoin(words)
		}
	}
	if !found && strings.ContainsAny(t.text, "0123456789@$!|I") {
		found = f.unmask(t.text)
	}
	f.object(t, words, found)
}

// verbIn decides whether a word is meant as a verb here. It is asked for every word, and both mistakes cost:
// a noun taken for a verb makes "release notes" a deployment, a verb taken for a noun lets an action go. So
// it refuses only on evidence: an ending that things have, a word beside it that makes a thing of it, or a
// word that is as often a thing where nothing leads to a verb.
func (f *finder) verbIn(w, previous, next string, followed, compound bool) (verb, bool) {
	v, inflected, ok := lemma(w)
	switch {
	case !ok:
		if v, ok = joined(w); !ok {
			return phrase(previous, w)
		}
	case inflected && catalogue[v.as].Points < catalogue[verbInstall].Points && !strings.HasSuffix(w, "ing") && !strings.HasSuffix(w, "ed") && irregularNoun(w):
		return verb{}, false // a configuration, a reader: things
	case v.word == "pay" && strings.HasPrefix(w, "payment") && (is(next, software) || previous == "the"):
		return verb{}, false
	case is(next, about) && (v.word == "release" || v.word == "install" || v.word == "upgrade" || v.word == "deploy" || v.word == "transfer"):
		return verb{}, false
	case compound && v.noun && !followed && !inflected:
		return verb{}, false // the list of user_list
	case !compound && v.noun && (!inflected || strings.HasSuffix(w, "s")) && !leads(previous):
		return verb{}, false
	}
	return v, true
}

// irregularNoun takes the forms of lemma that are no form of a verb.
func irregularNoun(w string) bool {
	for _, s := range [...]string{"ion", "ions", "ment", "ments", "al", "als", "ure", "er"} {
		if strings.HasSuffix(w, s) {
			return true
		}
	}
	return false
}

// phrase finds verbs of two words.
func phrase(previous, w string) (verb, bool) {
	if !is(w, particle) {
		return verb{}, false
	}
	if v, ok := irregular(previous + " " + w); ok {
		return v, true
	}
	return irregular("* " + w)
}

// rejoin reads del-ete and d.e.l.e.t.e as one word, where it is a verb that does harm: for weak ones an
// honest name that happens to read so would be called a disguise.
func (f *finder) rejoin(words []string) bool {
	v, _, ok := lemma(strings.Join(words, ""))
	if !ok || catalogue[v.as].Points < catalogue[verbSend].Points {
		return false
	}
	f.act(v.as, v.word)
	f.add(disguised, strings.Join(words, "·"))
	return true
}

// unmask tries each part between separators, with its digits and signs. A part without a letter is a number.
// What is found counts as disguised as well as done: whoever writes d3lete for delete means that it isn't
// recognised.
func (f *finder) unmask(text string) bool {
	found := false
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r == '_' || r == '-' || r == '.' || r == '/' || r == ':' }) {
		if !strings.ContainsFunc(w, unicode.IsLetter) {
			continue
		}
		if v, ok := disguise(strings.ToLower(w)); ok {
			f.act(v.as, v.word)
			f.add(disguised, w)
			found = true
		}
	}
	return found
}

// letters finds a verb that is spelt out: d e l e t e.
func (f *finder) letters(tokens []token) {
	var run strings.Builder
	check := func() {
		if s := run.String(); len(s) > 1 && len(s) <= maxWord {
			if v, _, ok := lemma(s); ok && catalogue[v.as].Points >= catalogue[verbSend].Points {
				f.act(v.as, v.word)
				f.add(disguised, s)
			}
		}
		run.Reset()
	}
	for _, t := range tokens {
		if len(t.text) == 1 && letter(t.text[0]) && !t.sep {
			run.WriteString(strings.ToLower(t.text))
		} else {
			check()
		}
	}
	check()
}

// object takes the first thing that is named as the target. A word that says nothing is passed over, or the
// target of "delete all of the users" would be "of" and the hint not vague; a verb is none, nor is an adverb.
// A word in quotes is a name whatever it says.
func (f *finder) object(t token, words []string, isVerb bool) {
	if f.target != "" {
		return
	}
	switch {
	case len(words) == 0:
	case t.text[0] == '#' || t.quoted && !isVerb && !filler(words[0]):
		f.aim(t.text)
	case len(words) > 1:
		f.compound(t.text, words, isVerb)
	case !isVerb && !filler(words[0]) && !abbreviation(words[0]) && !strings.HasSuffix(words[0], "ly"):
		f.aim(words[0])
	}
}

// compound takes what an operation's name says beside its verb: the user of delete_user. The file of
// write_file says nothing.
func (f *finder) compound(text string, words []string, isVerb bool) {
	if !isVerb {
		f.aim(text)
		return
	}
	if strings.ContainsAny(text, "./:") {
		return
	}
	object := ""
	seen := false
	for _, w := range words {
		_, _, verb := lemma(w)
		if seen = seen || verb; !verb && !filler(w) && (object == "" || seen) {
			object = w
			if seen {
				break
			}
		}
	}
	if object != "" {
		f.aim(object)
	}
}

func abbreviation(w string) bool {
	v, _, ok := lemma(w)
	return ok && !v.noun
}
