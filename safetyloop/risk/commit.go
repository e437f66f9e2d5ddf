// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// withoutMessages takes the message out of a git commit: "remove the old cache" removes nothing. This is the
// one place where text isn't read, so it is narrow. The command must begin the hint, or follow a short
// lead-in such as "executing shell command: ", so that quotes mean what the parser says they mean; the message
// must be a literal, in which the shell runs nothing; and nothing beside it may be what runs it later: a message
// is kept in .git/COMMIT_EDITMSG, in the log, in $_, and is an argument of a function that is called git.
func withoutMessages(text string) string {
	lead, command := leadIn(text)
	if !strings.HasPrefix(command, "git ") || !strings.Contains(command, " commit ") || tooComplex(command) {
		return text
	}
	var spans [][2]int
	if !literals(command, &spans) {
		return text
	}
	slices.SortFunc(spans, func(a, b [2]int) int { return b[0] - a[0] })
	for _, s := range spans {
		command = command[:s[0]] + "message" + command[s[1]:]
	}
	return lead + command
}

// maxLeadIn is longer than any phrase that announces a command.
const maxLeadIn = 48

func leadIn(text string) (lead, command string) {
	i := strings.Index(text, ": ")
	if i < 0 || i > maxLeadIn || strings.ContainsAny(text[:i], "'\"`\\;|&$()<>#\n") {
		return "", text
	}
	return text[:i+2], text[i+2:]
}

// literals finds the messages' places, from the parser's tree and not from the quotes in the text: only the
// parser knows which of them the shell would take off. False means that nothing is taken out, and the whole
// text is judged. That is the safe side of every doubt here, a panic of the parser included.
func literals(command string, spans *[][2]int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
	if err != nil {
		return false
	}
	ok = true
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.File, *syntax.Comment, *syntax.Word, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted:
		case *syntax.Stmt:
			ok = ok && len(n.Redirs) == 0
		case *syntax.BinaryCmd:
			ok = ok && (n.Op == syntax.AndStmt || n.Op == syntax.OrStmt)
		case *syntax.CallExpr:
			ok = ok && plainGit(n)
			messages(n, spans)
		default:
			ok = false
		}
		return ok
	})
	return ok
}

// plainGit tells of a call of git that runs nothing of what was committed before.
func plainGit(c *syntax.CallExpr) bool {
	return len(c.Assigns) == 0 && len(c.Args) > 1 && c.Args[0].Lit() == "git" &&
		slices.Contains([]string{"add", "commit", "push", "status"}, c.Args[1].Lit())
}

func messages(c *syntax.CallExpr, spans *[][2]int) {
	for i := 2; i+1 < len(c.Args) && c.Args[1].Lit() == "commit"; i++ {
		switch c.Args[i].Lit() {
		case "-m", "-am", "--message":
			if w := c.Args[i+1]; literal(w) {
				*spans = append(*spans, [2]int{int(w.Pos().Offset()), int(w.End().Offset())})
			}
			i++
		}
	}
}

func literal(w *syntax.Word) bool {
	if len(w.Parts) != 1 {
		return false
	}
	switch p := w.Parts[0].(type) {
	case *syntax.SglQuoted:
		return !p.Dollar
	case *syntax.DblQuoted:
		return !p.Dollar && len(p.Parts) == 1 && plainLiteral(p.Parts[0])
	}
	return false
}

func plainLiteral(p syntax.WordPart) bool {
	l, ok := p.(*syntax.Lit)
	return ok && !strings.ContainsAny(l.Value, "\\`$")
}
