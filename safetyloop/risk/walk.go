// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// walker goes over a program as it would run, with the variables it sets on the way. It runs nothing and
// reads no file: what only a run could tell isn't known to it, and a command whose name isn't known is a
// factor of its own.
//
// The variables are a list and no map, looked through from its end: an assignment that comes later counts,
// and a hint can't make more of them than maxVars. A branch that wouldn't be taken is followed as well, since
// nobody here can tell.
type walker struct {
	f     *finder
	depth int
	vars  []variable
	args  bool // it may have arguments: code within code, a function, a loop, behind set
}

type variable struct{ name, value string }

// maxVars bounds what a hint may set; more of them is a program nobody writes as a hint.
const maxVars = 256

func (w *walker) set(name, value string) {
	if len(w.vars) >= maxVars {
		w.f.add(shellUnreadable, "more variables than are followed")
		return
	}
	w.vars = append(w.vars, variable{name, value})
}

// get gives a variable's value as far as it is known before anything runs: what the hint sets, else what a shell always has.
func (w *walker) get(name string) (string, bool) {
	for i := len(w.vars) - 1; i >= 0; i-- {
		if w.vars[i].name == name {
			return w.vars[i].value, true
		}
	}
	switch name {
	case "IFS":
		return " ", true
	case "HOME":
		return "~", true
	case "PWD":
		return ".", true
	case "SHELL", "BASH":
		return "sh", true
	case "@", "*", "1", "2", "3", "4", "5", "6", "7", "8", "9":
		return "", !w.args // a hint has no arguments: r$@m is rm
	}
	return "", false
}

func (w *walker) statements(list []*syntax.Stmt) {
	for i, s := range list {
		if i > 0 {
			w.f.chained = true
		}
		w.node(s)
	}
}

// node visits everything below a node, in order. Assignments must be seen before the command that uses them,
// which is the order of the text; a function's body is visited where it stands and not where it is called,
// which is early enough.
func (w *walker) node(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			w.call(n)
		case *syntax.Redirect:
			w.redirect(n)
		case *syntax.CmdSubst, *syntax.BinaryCmd, *syntax.ProcSubst, *syntax.Subshell:
			w.f.chained = true
		case *syntax.FuncDecl, *syntax.WhileClause, *syntax.ForClause:
			w.args = true
		case *syntax.DeclClause:
			for _, a := range n.Args {
				w.assign(a)
			}
		}
		return true
	})
}

// assign notes a variable twice: by its name, because some make other programs run something (LD_PRELOAD),
// and by its value, for the words that use it.
func (w *walker) assign(a *syntax.Assign) {
	if a.Name == nil || a.Value == nil {
		return
	}
	v, known := w.word(a.Value, 0)
	w.f.variable(a.Name.Value, written(a.Value, v))
	if known {
		w.set(a.Name.Value, v.text())
	}
}

// written is the value as it stands there where it begins with a variable that isn't known: $PATH:/opt/bin
// adds at the end.
func written(word *syntax.Word, v *value) string {
	parts := word.Parts
	if len(parts) > 0 {
		if q, ok := parts[0].(*syntax.DblQuoted); ok {
			parts = q.Parts
		}
	}
	if len(parts) > 0 {
		if p, ok := parts[0].(*syntax.ParamExp); ok && p.Param != nil && v.dynamic {
			return "$" + p.Param.Value + v.text()
		}
	}
	return v.text()
}

// redirect judges where output goes and input comes from. A here-document is a text of its own: a shell may
// be what reads it. A file that is written counts as changed even if the command before it only prints.
func (w *walker) redirect(r *syntax.Redirect) {
	w.f.chained = true
	if r.Hdoc != nil {
		if v, _ := w.word(r.Hdoc, 0); v.text() != "" {
			w.f.text(v.text(), w.depth+1)
		}
		return
	}
	if r.Word == nil {
		return
	}
	v, _ := w.word(r.Word, 0)
	name := v.text()
	w.f.remote(name)
	switch r.Op {
	case syntax.RdrOut, syntax.AppOut, syntax.RdrAll, syntax.AppAll, syntax.RdrClob, syntax.RdrInOut, syntax.DplOut:
		if strings.Trim(name, "0123456789-") == "" {
			return
		}
		w.f.act(verbWrite, "write")
		w.f.place(name, true, false)
	case syntax.RdrIn:
		w.f.place(name, false, false)
	case syntax.WordHdoc:
		w.f.text(name, w.depth+1)
	}
}

// remote takes bash's own names for a connection.
func (f *finder) remote(name string) {
	if strings.HasPrefix(name, "/dev/tcp/") || strings.HasPrefix(name, "/dev/udp/") {
		f.add(remoteShell, name)
		f.way = true
	}
}

// call judges a simple command.
func (w *walker) call(c *syntax.CallExpr) {
	for _, a := range c.Assigns {
		w.assign(a)
	}
	var words []string
	checked, found := 0, false
	commanded := func() bool { // each word is looked at once
		for ; checked < len(words) && !found; checked++ {
			found = command(words[checked])
		}
		return found
	}
	for i, each := range c.Args {
		v, known := w.word(each, 0)
		if name, value, ok := assignment(v.text()); ok {
			w.f.variable(name, value)
		}
		if name, value, ok := assignment(v.text()); ok && known && w.depth < maxDepth {
			w.set(name, value) // after "please", or env: no assignment to the parser
		}
		if !known && v.dynamic && w.names(c, i, words, commanded) {
			w.f.add(dynamicCode, "the name of a command is only known when it runs")
			w.f.act(verbRun, "run")
			w.f.aim("command")
		}
		if v.pattern && i+1 < len(c.Args) {
			if next, _ := w.word(c.Args[i+1], maxDepth); option(next.text()) || pathLike(next.text()) {
				v.variables++
			}
		}
		if v.variables > 1 || v.variables == 1 && !strings.HasPrefix(v.text(), "~/") && !strings.HasPrefix(v.text(), "./") {
			w.f.spelled = w.f.spelled || w.names(c, i, words, commanded)
		}
		words = append(words, v.fields()...)
	}
	w.f.call(words)
	w.args = w.args || len(words) > 0 && words[0] == "set"
	for _, s := range words {
		if strings.ContainsAny(s, " \n;|&`$") {
			w.f.text(s, w.depth+1)
		}
	}
}

// assignment splits name=value.
func assignment(s string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(s, "=")
	name = strings.TrimSuffix(name, "+")
	return name, value, ok && syntax.ValidName(name)
}

// names tells whether a word that isn't known may be the name of a command: it comes first, behind a wrapper,
// before an option, or it is a substitution and no command comes before it. Backquotes are how prose marks
// code, and what they hold is judged by itself; $NAME and ? occur in prose and addresses as well.
func (w *walker) names(c *syntax.CallExpr, i int, before []string, commanded func() bool) bool {
	if i+1 < len(c.Args) {
		if next, _ := w.word(c.Args[i+1], maxDepth); option(next.text()) || pathLike(next.text()) && next.text()[0] != '.' {
			return len(before) == 0 || wrapper(before) || !commanded()
		}
	}
	substitutes, quoted, address := false, false, false
	for _, p := range c.Args[i].Parts {
		switch p := p.(type) {
		case *syntax.CmdSubst:
			substitutes, quoted = true, p.Backquotes
		case *syntax.Lit:
			address = address || strings.Contains(p.Value, "://")
		}
	}
	switch {
	case address, quoted:
		return false
	case substitutes:
		return len(before) == 0 || wrapper(before) || !commanded()
	}
	return len(before) == 0 || wrapper(before)
}

// command tells whether a word is the name of a command that takes arguments.
func command(word string) bool {
	name := base(word)
	return is(name, echoes) || (&finder{}).command(name, []string{"x"})
}

// wrapper tells whether the next word would be a command.
func wrapper(words []string) bool {
	for range 32 {
		if len(words) == 0 {
			return true
		}
		last := words[len(words)-1]
		if is(base(last), wraps) {
			return true
		}
		if !strings.Contains(last, "=") && !option(last) {
			return strings.HasSuffix(last, ":")
		}
		words = words[:len(words)-1]
	}
	return true
}
