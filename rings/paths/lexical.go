// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"slices"
	"strings"

	"agentrun/rings"
)

// Why a path is denied.
const (
	CodeBase           rings.Code = "base_invalid"    // the base is no clean place to start from
	CodeSession        rings.Code = "session_invalid" // no session id
	CodeUnknownSession rings.Code = "unknown_session"
	CodeEmpty          rings.Code = "path_empty"
	CodeRelative       rings.Code = "path_relative"
	CodeTraversal      rings.Code = "path_traversal" // a ".." component
	CodeMalformed      rings.Code = "path_malformed" // NUL, or too long
	CodeOutside        rings.Code = "path_outside_session"
	CodeEscapes        rings.Code = "symlink_escapes"
	CodeUnresolvable   rings.Code = "path_unresolvable" // the system couldn't or wouldn't resolve it
)

const (
	maxPath = 4095 // PATH_MAX without its NUL
	rule    = "H-30"
)

func deny(code rings.Code, reason string) rings.Decision {
	return rings.Decision{Verdict: rings.Deny, Code: code, Reason: reason, Rule: rule}
}

func allow() rings.Decision {
	return rings.Decision{Verdict: rings.Allow, Code: rings.CodeOK, Reason: "the path is beneath the session's folder", Rule: rule}
}

// components splits an absolute path. Empty ones and "." go, as for the kernel. ".." is refused rather than resolved:
// after a symlink it doesn't lead back to where the text says, and who needs it can write the path without.
func components(unsafePath string) (parts []string, denied *rings.Decision) {
	no := func(code rings.Code, reason string) ([]string, *rings.Decision) {
		d := deny(code, reason)
		return nil, &d
	}
	switch {
	case unsafePath == "":
		return no(CodeEmpty, "the path is empty")
	case len(unsafePath) > maxPath:
		return no(CodeMalformed, "the path is longer than 4095 bytes")
	case strings.IndexByte(unsafePath, 0) >= 0:
		// The kernel stops reading there: it would open another path than the one that was looked at.
		return no(CodeMalformed, "the path contains a NUL")
	}
	for part := range strings.SplitSeq(unsafePath, "/") {
		switch part {
		case "", ".":
		case "..":
			return no(CodeTraversal, `the path has a ".." component`)
		default:
			parts = append(parts, part)
		}
	}
	if unsafePath[0] != '/' {
		return no(CodeRelative, "the path is relative")
	}
	return parts, nil
}

// within returns what of unsafePath comes after base and session. It compares whole components: session-1 is a prefix
// of the text session-10, and not of the component.
func within(base []string, session, unsafePath string) (rest []string, denied *rings.Decision) {
	if err := rings.CheckSessionID(session); err != nil {
		d := deny(CodeSession, err.Error())
		return nil, &d
	}
	parts, denied := components(unsafePath)
	if denied != nil {
		return nil, denied
	}
	n := len(base)
	if len(parts) <= n || !slices.Equal(parts[:n], base) || parts[n] != session {
		d := deny(CodeOutside, "the path is not beneath the session's folder")
		return nil, &d
	}
	return parts[n+1:], nil
}
