// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentrun/internal/fold"
)

// finder collects what is found in one hint. Its state only ever grows: a factor that was found stays found,
// the strongest verb is only replaced by a stronger one, and a target is only set where there was none. So
// the order in which the readers come (prose, SQL, segments, the shell's parser) decides names and details,
// and never takes points away. What hangs on the whole hint, such as whether anything is changed, is asked at
// the end, by result.
//
// Two fields hold a target, because two readers know it to a different degree: prose takes the first thing
// that is named, and a command knows which of its arguments is meant. The command's wins.
type finder struct {
	env     Env
	reading fold.Reading
	budget  int  // bytes that may still be read again, of code within code
	grown   int  // bytes that variables have come to
	spelled bool // a command's name has a variable of the hint in it

	found  [factors]bool
	acted  [factors]bool // of the verbs: done, not only named
	detail [factors]string

	verb, operation string
	target, aimed   string // what prose names, and what the strongest command is given
	verbAs          factor
	paths           []place
	programs        []string // paths that were only used as the name of a command
	operations      []string
	chained         bool

	fetches, sends, sensitive, way bool   // for exfiltration: sensitive things, and a way out
	formats, drops                 bool   // verbs whose weight hangs on the object
	folder                         string // of cd
	data, store, person, all, main string
	prod, security                 string
}

// place is a path, and whether a command changes it; prose is judged by its strongest verb.
type place struct {
	path           string
	changes, prose bool
}

// maxPlaces and maxOperations bound what is kept for the end. Past them the strongest are in already or the
// hint is a list.
const (
	maxPlaces     = 4096
	maxOperations = 64
	maxOperation  = 1024 // bytes: the hint itself is compared whole
)

// add notes a factor. The first detail stays: it is what stands first in the hint, where a reader looks.
func (f *finder) add(as factor, detail string) {
	if !f.found[as] {
		f.found[as], f.detail[as] = true, detail
	}
}

// act notes an action; the strongest gives the verb.
func (f *finder) act(as factor, verb string) {
	if as == noFactor {
		return
	}
	if f.verb == "" || catalogue[as].Points > catalogue[f.verbAs].Points {
		f.verb, f.verbAs = verb, as
	}
	f.acted[as] = true
}

// aim notes a target if there is none yet.
func (f *finder) aim(target string) {
	if f.target == "" {
		f.target = fold.String(target)
	}
}

// place keeps a path for the end, when it is known what is done: reading a file and deleting it are told
// apart by verbs that may come after its name.
func (f *finder) place(path string, changes, prose bool) {
	if len(f.paths) < maxPlaces {
		f.paths = append(f.paths, place{path, changes, prose})
	}
	f.aim(path)
}

// operate keeps a command for a policy's deny patterns. It must not have what a pattern's author wouldn't
// write: the words come without quotes, path and wrapper. What is cut here is still found in the hint as a
// whole.
func (f *finder) operate(words ...string) {
	if len(f.operations) >= maxOperations {
		return
	}
	op := strings.ToLower(strings.Join(words, " "))
	if len(op) > maxOperation {
		op = strings.ToValidUTF8(op[:maxOperation], "")
	}
	if !slices.Contains(f.operations, op) {
		f.operations = append(f.operations, op)
	}
}

// result adds what depends on the whole, and sums up. The order matters: first the verbs whose weight hangs
// on an object (drop a table, drop a hint), then the strongest verb as a factor, and only then what asks for
// the verbs (scopes, places), and last what asks for sensitive things, which places may add. Vague comes at
// the end, because a target may be found by any of them.
func (f *finder) result() Assessment {
	if f.formats && is(f.store, medium) {
		f.act(verbDestroy, "format")
	}
	if f.drops && (f.store != "" || is(strings.TrimSuffix(f.data, "s"), container)) {
		f.act(verbDestroy, "drop")
	}
	if f.aimed != "" {
		f.target = f.aimed
	}
	if f.verbAs != noFactor {
		f.add(f.verbAs, f.verb)
	}
	f.scopes()
	f.places()
	f.flows()
	a := Assessment{Verb: f.verb, Target: f.target, Operations: f.operations, Chained: f.chained, Hidden: f.reading.Hidden.Any()}
	if f.operation != "" {
		a.Verb = f.operation
	}
	a.Vague = f.verbAs == noFactor || f.target == ""
	if a.Vague {
		f.add(vague, f.missing())
	}
	a.Factors, a.Score = f.sum()
	// A variable may be set once more where no reader sees it (read, for, printf -v, a subshell that isn't kept): its value can add, and
	// never lets a hint go on.
	if a.Tier = TierOf(a.Score); a.Tier == Advisory && f.spelled {
		f.add(dynamicCode, "the name of a command is in a variable, which may change")
		a.Factors, a.Score = f.sum()
		a.Tier = TierOf(a.Score)
	}
	return a
}

func (f *finder) missing() string {
	if f.verbAs == noFactor {
		return "no verb that is known"
	}
	return "nothing is named that it would be done to"
}

// What else counts depends on every action that was found and not on the strongest alone: a second verb of
// the same weight must not make the first one's reasons go away.

// changing tells whether anything is changed. It asks for actions that change nothing and takes all others,
// so that a verb that is added to the tables counts as a change until somebody says otherwise.
func (f *finder) changing() bool {
	for as, acted := range f.acted {
		switch factor(as) {
		case verbRead, verbTest, verbFetch:
		default:
			if acted {
				return true
			}
		}
	}
	return false
}

// rewrites tells whether files that are named may be changed.
func (f *finder) rewrites() bool {
	return f.acted[verbWrite] || f.acted[verbChange] || f.acted[verbDelete] || f.acted[verbDestroy] || f.acted[verbAccess]
}

// heavy tells whether something is taken away or opened.
func (f *finder) heavy() bool {
	return f.acted[verbDelete] || f.acted[verbDestroy] || f.acted[verbStop] || f.acted[verbAccess]
}

// scopes weighs what the words say about extent and object against what is done to it. Reading everything is
// no wider a harm than reading, so each of these asks for an action of its kind; any action in the hint will
// do, not the strongest alone.
func (f *finder) scopes() {
	if f.acted[verbDelete] || f.acted[verbDestroy] || f.acted[verbSend] || f.acted[verbPay] {
		f.add(irreversible, f.verb)
	}
	if f.all != "" && f.changing() {
		f.add(scopeAll, f.all)
	}
	if f.prod != "" {
		if f.changing() {
			f.add(targetProduction, f.prod)
		} else {
			f.add(readsProduction, f.prod)
		}
	}
	if f.heavy() {
		switch {
		case f.store != "":
			f.add(objectStore, f.store)
		case f.data != "":
			f.add(objectData, f.data)
		}
		if f.security != "" && (f.acted[verbStop] || f.acted[verbDelete] || f.acted[verbDestroy]) {
			f.add(securityOff, f.security)
		}
	}
	if f.person != "" && (f.acted[verbSend] || f.acted[verbFetch] || f.heavy()) {
		f.add(personalData, f.person)
	}
	if f.main != "" && f.acted[verbSend] {
		f.add(targetMainBranch, f.main)
	}
}

// flows notes that something sensitive and a way out stand in one hint. It doesn't ask for their order or
// whether they are one command: a file is read into a variable in one place and sent in another.
func (f *finder) flows() {
	if f.sensitive && (f.acted[verbSend] || f.way) {
		f.add(exfiltration, "something sensitive and a way out")
	}
}

// sum adds the points, then raises the sum to the highest floor that was found. The floors come last and in
// the catalogue's order, lowest first, so that the factors' points still make the score. It is cut at 100
// only at the end: no factor's points are changed to fit.
func (f *finder) sum() ([]Factor, int) {
	var out []Factor
	total := 0
	for i := noFactor + 1; i < factors; i++ {
		if p := catalogue[i].Points; f.found[i] && p > 0 {
			out = append(out, Factor{catalogue[i].Name, p, printable(f.detail[i])})
			total += p
		}
	}
	for i := noFactor + 1; i < factors; i++ { // the floors, the highest last
		if floor := catalogue[i].Floor; f.found[i] && floor > 0 {
			out = append(out, Factor{catalogue[i].Name, max(0, floor-total), printable(f.detail[i])})
			total = max(total, floor)
		}
	}
	slices.SortStableFunc(out, func(a, b Factor) int { return cmp.Compare(b.Points, a.Points) })
	return out, min(total, 100)
}

const maxDetail = 120

// printable cuts and cleans a detail, which is shown on terminals: what the hint says must not command them.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > maxDetail {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
		if len(s) <= maxDetail-3 {
			return s + "…"
		}
	}
	return s
}
