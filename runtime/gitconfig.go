// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"
)

const (
	maxGitConfig = 1 << 20
	maxIncludes  = 10 // git's own bound (git-config(1), "Includes")
)

// gitValue is one value of a configuration file of git's: its section and name in small letters, the subsection left out.
type gitValue struct{ key, value string }

// readGitConfig reads the syntax of git-config(1). What git would refuse is read all the same: too much is guarded rather than too
// little.
func readGitConfig(text string) (values []gitValue) {
	section := ""
	for _, line := range gitLines(strings.TrimPrefix(text, "\ufeff")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			head, rest := cutHeader(line[1:])
			section = strings.TrimSpace(strings.ToLower(head))
			if i := strings.IndexAny(section, " \t."); i >= 0 { // a dot: [branch.main], as it was once written
				section = section[:i]
			}
			line = strings.TrimSpace(rest)
		}
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		values = append(values, gitValue{section + "." + strings.ToLower(strings.TrimSpace(name)), unquoteGit(value)})
	}
	return values
}

// gitLines joins lines that end in an odd number of backslashes with the next. No backslash continues a comment: what may be one is followed by the
// next line by itself, too.
func gitLines(text string) (lines []string) {
	var line strings.Builder
	for part := range strings.Lines(text) {
		part = strings.TrimRight(part, "\r\n")
		if strings.ContainsAny(line.String(), "#;") {
			lines = append(lines, part)
		}
		if n := len(part) - len(strings.TrimRight(part, `\`)); n%2 == 1 {
			line.WriteString(part[:len(part)-1])
			continue
		}
		line.WriteString(part)
		lines = append(lines, line.String())
		line.Reset()
	}
	if line.Len() > 0 {
		lines = append(lines, line.String())
	}
	return lines
}

// cutHeader cuts a section's header at its bracket, which may stand in a quoted subsection too.
func cutHeader(s string) (head, rest string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ']' && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// unquoteGit is a value without its quotes, its escapes and the comment behind it.
func unquoteGit(s string) string {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			default:
				b.WriteByte(s[i])
			}
		case c == '"':
			quoted = !quoted
		case (c == '#' || c == ';') && !quoted:
			return strings.TrimSpace(b.String())
		default:
			b.WriteByte(c)
		}
	}
	return strings.TrimSpace(b.String())
}

// plainSections hold names of branches, repositories, people and colours: no program, and a branch called src is no reason to guard
// the folder src.
var plainSections = []string{"branch", "remote", "url", "submodule", "user", "color", "lfs"}

// programKeys are the exceptions in them.
var programKeys = []string{"remote.uploadpack", "remote.receivepack", "remote.vcs", "submodule.update", "lfs.path", "lfs.args", "lfs.clean", "lfs.smudge"}

// plainKeys name files that git only reads as text.
var plainKeys = []string{"core.worktree", "core.excludesfile", "blame.ignorerevsfile", "commit.template", "mailmap.file"}

func (v gitValue) plain() bool {
	section, _, _ := strings.Cut(v.key, ".")
	return slices.Contains(plainSections, section) && !slices.Contains(programKeys, v.key) || slices.Contains(plainKeys, v.key)
}

// words are the parts of a value that may be paths: git gives most commands to a shell.
func (v gitValue) words() []string {
	return strings.FieldsFunc(strings.TrimPrefix(v.value, "!"), func(r rune) bool {
		return strings.ContainsRune(" \t\n'\"`$(){}<>|&;,=", r)
	})
}
