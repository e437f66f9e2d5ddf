// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong with a profile or with limits.
type Problem struct {
	File    string // empty when the value came from elsewhere
	Line    int    // from 1; 0 when it belongs to no line
	Path    string // such as syscalls[3].args[0].mask
	Message string
}

// String writes file:line: path: message, leaving out what isn't known.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// InvalidError says everything that is wrong with a profile.
type InvalidError struct {
	Name     string
	Problems []Problem // at least one
}

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return fmt.Sprintf("profile %s: %s", e.Name, strings.Join(lines, "\n"))
}

// NotFoundError says that no built-in and no file has the name.
type NotFoundError struct {
	Name     string
	Searched []string // folders
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("profile %s: not found among the built-ins (%s) and in %s",
		e.Name, strings.Join(builtinNames(), ", "), strings.Join(e.Searched, ", "))
}

// ShadowError says that a user's file has a built-in's name. Neither is used: the operator who wrote it believes it holds,
// and everybody else believes that ring3 is ring3.
type ShadowError struct{ Name, File string }

func (e *ShadowError) Error() string {
	return fmt.Sprintf("profile %s: %s has the name of a built-in profile; rename it and write `extends: %s` in it",
		e.Name, e.File, e.Name)
}
