// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"agentrun/internal/read"
)

// decodeBody reads a body onto a struct; an empty one is an object without fields. An operator and whoever
// reviewed a request must not see another one than what was done, so it is read strictly. The error tells
// everything that is wrong, but no value that was sent: it may be a code.
func decodeBody(body []byte, v any) error {
	if len(body) == 0 {
		body = []byte("{}")
	}
	n := read.JSON(read.Source{Max: len(body), Quiet: true}, body) // internal/uhttp bounds it
	n.Into(v)
	invalid, bad := errors.AsType[*read.InvalidError](n.Done())
	if !bad {
		return nil
	}
	texts := make([]string, len(invalid.Problems))
	for i, p := range invalid.Problems {
		if p.Path == "" {
			p.Path = "body"
		}
		texts[i] = p.Error()
	}
	return &Error{Status: 400, Code: CodeBadRequest, Message: strings.Join(texts, "; ")}
}

// CheckText refuses what other operators' terminals and the audit's readers would not show as it is, and
// what is longer than most bytes.
func CheckText(name, s string, most int) error {
	if len(s) > most {
		return badField(name, fmt.Sprintf("want at most %d bytes", most))
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return badField(name, "want printable text in one line")
		}
	}
	return nil
}
