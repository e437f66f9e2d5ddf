// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// value is a word as the shell would make it. A zero byte stands where an expansion without quotes would
// split it.
type value struct {
	s       strings.Builder
	dynamic bool // part of it is an expansion that isn't known

	variables int // that it is made of, and patterns of files that no prose has
	pattern   bool
}

const split = "\x00"

func (v *value) text() string { return strings.ReplaceAll(v.s.String(), split, " ") }

func (v *value) fields() []string {
	var out []string
	for _, s := range strings.Split(v.s.String(), split) {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// maxValue bounds a word: variables within variables double at each step.
const maxValue = MaxHint

// maxGrown bounds what all variables of a hint come to where they are used: two bytes name one of 64 KiB, so
// a hint of 32 KiB would be read as a gigabyte.
const maxGrown = 2 * MaxHint

// word works out a word, as far as it can be known without running anything.
func (w *walker) word(word *syntax.Word, nested int) (*value, bool) {
	v := &value{}
	known := w.parts(v, word.Parts, false, nested)
	return v, known
}

// parts writes the parts of a word one after the other. It goes on behind a part that isn't known, so that
// the rest of the word is judged; only a word that grows without end is given up. nested counts words within
// words and not the length.
func (w *walker) parts(v *value, parts []syntax.WordPart, quoted bool, nested int) bool {
	known := true
	for _, p := range parts {
		if v.s.Len() > maxValue || nested > maxDepth {
			w.f.add(shellUnreadable, "a word grows too long")
			return false
		}
		known = w.part(v, p, quoted, nested) && known
	}
	return known
}

func (w *walker) part(v *value, p syntax.WordPart, quoted bool, nested int) bool {
	switch p := p.(type) {
	case *syntax.Lit:
		return w.literal(v, p.Value, quoted)
	case *syntax.SglQuoted:
		if p.Dollar {
			v.s.WriteString(unescape(p.Value))
		} else {
			v.s.WriteString(p.Value)
		}
		return true
	case *syntax.DblQuoted:
		return w.parts(v, p.Parts, true, nested)
	case *syntax.ParamExp:
		return w.param(v, p, quoted, nested)
	case *syntax.CmdSubst:
		return w.subst(v, p, quoted, nested)
	}
	v.dynamic = true
	return false
}

// literal takes backslashes out. A pattern in it is only known to the file system; braces make words. Outside
// quotes a backslash hides any character, within them only five: taken out too freely, a Windows path would
// be another one; too rarely, r\m no rm.
func (w *walker) literal(v *value, s string, quoted bool) bool {
	known := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && i+1 < len(s) && (!quoted || strings.IndexByte("$`\"\\\n", s[i+1]) >= 0):
			i++
			if s[i] != '\n' {
				v.s.WriteByte(s[i])
			}
		case !quoted && (c == '?' || c == '[') && strings.Contains(s, "/"):
			known, v.dynamic = false, true
			v.s.WriteByte(c)
		case !quoted && (c == '?' || c == '[' || c == '*'):
			v.pattern = true
			if c != '*' && i+1 < len(s) {
				v.variables++
			}
			v.s.WriteByte(c)
		case !quoted && (c == '{' || c == '}' || c == ',') && strings.Contains(s, "{") && strings.Contains(s, ","):
			v.s.WriteString(split)
		default:
			v.s.WriteByte(c)
		}
	}
	return known
}

// param expands a variable. What it does with the forms that cut, count or replace (${x:1}, ${#x}, ${x/a/b})
// is nothing: they are used for little else than to spell a word from parts, and so the word isn't known. A
// default (${x:-rm}) is taken where the variable is empty. Where it isn't, the parser's reading may be wrong
// for := and :+, so the word isn't known either.
func (w *walker) param(v *value, p *syntax.ParamExp, quoted bool, nested int) bool {
	if p.Param == nil {
		v.dynamic = true
		return false
	}
	s, known := w.get(p.Param.Value)
	switch {
	case p.Excl || p.Length || p.Width || p.Index != nil || p.Slice != nil || p.Repl != nil || p.Names != 0:
		v.dynamic = true
		return false
	case p.Exp != nil && p.Exp.Word != nil:
		if s == "" {
			inner, ok := w.word(p.Exp.Word, nested+1)
			s, known = inner.text(), ok
		} else {
			known = false
		}
	}
	if w.f.grown += len(s); w.f.grown > maxGrown {
		w.f.add(shellUnreadable, "variables that grow too long")
		s, known = "", false
	}
	if !known {
		v.dynamic = true
	}
	if p.Param.Value >= "A" { // no $1, $@
		v.variables++
	}
	if !quoted {
		s = strings.NewReplacer(" ", split, "\n", split, "\t", split).Replace(s)
	}
	if v.s.Len()+len(s) <= 2*maxValue {
		v.s.WriteString(s)
	}
	return known
}

// subst works out $(echo …) and $(printf …), which are used for nothing but hiding a word. What any other
// command prints isn't known.
func (w *walker) subst(v *value, c *syntax.CmdSubst, quoted bool, nested int) bool {
	v.dynamic = true
	if len(c.Stmts) != 1 || nested >= maxDepth {
		return false
	}
	call, ok := c.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) < 2 || len(c.Stmts[0].Redirs) > 0 {
		return false
	}
	var words []string
	for _, a := range call.Args {
		inner, known := w.word(a, nested+1)
		if !known {
			return false
		}
		words = append(words, inner.fields()...)
	}
	if len(words) < 2 || base(words[0]) != "echo" && base(words[0]) != "printf" {
		return false
	}
	args := words[1:]
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	s := unescape(strings.Join(args, " "))
	if strings.HasPrefix(s, "%s ") {
		s = strings.TrimLeft(strings.TrimPrefix(s, "%s"), " ")
	}
	v.dynamic = strings.Contains(s, "%") || strings.Contains(strings.Join(args, " "), `\c`) // formats aren't followed
	v.variables++
	if !quoted {
		s = strings.ReplaceAll(s, " ", split)
	}
	v.s.WriteString(s)
	return !v.dynamic
}

// unescape reads the escapes of $'…', echo -e and printf.
func unescape(s string) string {
	if !strings.Contains(s, "\\") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; {
		case c == 'x':
			i += number(&b, s[i+1:], 16, 2)
		case c == 'u':
			i += number(&b, s[i+1:], 16, 4)
		case c == 'U':
			i += number(&b, s[i+1:], 16, 8)
		case '0' <= c && c <= '7':
			i += number(&b, s[i:], 8, 3) - 1
		case c == 'n', c == 't', c == 'r':
			b.WriteByte(' ')
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// number writes the character of a number of at most digits digits, and tells how many it had.
func number(b *strings.Builder, s string, base, digits int) int {
	n := 0
	for n < len(s) && n < digits {
		if _, err := strconv.ParseUint(s[n:n+1], base, 8); err != nil {
			break
		}
		n++
	}
	if v, err := strconv.ParseUint(s[:n], base, 32); err == nil && v > 0 && v <= utf8.MaxRune {
		if v < 0x80 {
			b.WriteByte(byte(v))
		} else {
			b.WriteRune(rune(v))
		}
	}
	return n
}
