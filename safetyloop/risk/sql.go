// SPDX-License-Identifier: Apache-2.0

package risk

import "strings"

// sql looks for statements among the words, in whatever they are wrapped: a client's option, a quote, a
// heredoc, a sentence. It is no parser of SQL, and needs none: what a dialect allows between the words would
// be another way round it. A statement ends at the next separator or after maxArgs words, so that a WHERE of
// the next one isn't taken for its own.
func (f *finder) sql(tokens []token) {
	for i := range tokens {
		switch word(tokens, i) {
		case "delete":
			if word(tokens, i+1) == "from" {
				f.statement("delete from", tokens, i+2, verbDelete)
			}
		case "update":
			if set(tokens, i) {
				f.statement("update", tokens, i+1, verbChange)
			}
		case "drop", "truncate":
			if is(word(tokens, i+1), container) {
				f.act(verbDestroy, word(tokens, i))
				f.operate(word(tokens, i), word(tokens, i+1), word(tokens, i+2))
				f.row(word(tokens, i+2))
			}
		case "xp_cmdshell", "pg_read_file", "load_file", "outfile", "dumpfile":
			f.act(verbRun, word(tokens, i))
			f.add(privilege, word(tokens, i))
		}
	}
}

func word(tokens []token, i int) string {
	if i >= len(tokens) || tokens[i].sep {
		return ""
	}
	return strings.ToLower(tokens[i].text)
}

// set tells an UPDATE from the word: its SET comes soon.
func set(tokens []token, i int) bool {
	for n := i + 2; n <= i+4; n++ {
		if word(tokens, n) == "set" {
			return true
		}
	}
	return false
}

// statement judges what follows: without a WHERE, or with one that is always true, it is about every row. It
// tells such a WHERE by its first comparison alone: "true", or the same on both sides. A longer one that is
// always true is taken for an honest one, since to find it is to run it; the verb and its object weigh all
// the same.
func (f *finder) statement(name string, tokens []token, i int, as factor) {
	f.act(as, strings.Fields(name)[0])
	f.operate(append(strings.Fields(name), word(tokens, i))...)
	first(&f.data, "rows")
	f.row(word(tokens, i))
	for end := min(len(tokens), i+maxArgs); i < end && tokens[i].text != ";" && !strings.HasPrefix(tokens[i].text, "--"); i++ {
		if word(tokens, i) == "where" {
			if a, b := word(tokens, i+1), word(tokens, i+3); a == "true" || a == b && a != "" && word(tokens, i+2) == "=" {
				first(&f.all, "a WHERE that is always true")
			}
			return
		}
	}
	first(&f.all, strings.ToUpper(name)+" without WHERE")
}

// row takes a statement's table as the target: the client's name before it is none.
func (f *finder) row(table string) {
	if table != "" && table != "if" && f.aimed == "" {
		f.aimed = table
	}
}

// uncomment takes SQL and C comments out, once as a space and once as nothing: a database reads the first,
// and what only looks for words the second. A comment that isn't closed stays, with all behind it. None: "".
func uncomment(text string) (spaced, closed string) {
	if !strings.Contains(text, "*/") || !strings.Contains(text, "/*") {
		return "", ""
	}
	var a, b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "/*")
		a.WriteString(before)
		b.WriteString(before)
		if !ok {
			break
		}
		_, after, ok := strings.Cut(rest, "*/")
		if !ok {
			a.WriteString(rest)
			b.WriteString(rest)
			break
		}
		a.WriteByte(' ')
		text = after
	}
	return a.String(), b.String()
}
