// SPDX-License-Identifier: Apache-2.0

package rings

import "strings"

// Problem is one thing wrong with a value that was to be validated.
type Problem struct {
	Path    string `json:"path"` // the field's JSON name, empty for the value as a whole
	Message string `json:"message"`
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Problems is the error of a validation: everything that is wrong, in the order of the fields. An empty one
// is never returned as an error.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "; ")
}

func (ps *Problems) add(path, message string) {
	*ps = append(*ps, Problem{Path: path, Message: message})
}

// err avoids the trap of a nil slice in a non-nil error.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}
