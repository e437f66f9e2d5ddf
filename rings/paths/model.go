// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"slices"
	"strings"

	"agentrun/rings"
)

// Model decides as a Checker does, on a description of a file system instead of one: it has folders and files, and no
// symlinks.
type Model struct {
	Base string // absolute, without ".."
	// Exists lists what there is: a session by its id, or anything by its absolute path, which makes known the session
	// whose folder it is or lies in. What is neither makes nothing known. The path that is asked for needs not exist.
	Exists []string
}

// Allowed tells whether unsafePath belongs to session.
func (m Model) Allowed(session, unsafePath string) rings.Decision {
	base, denied := components(m.Base)
	if denied != nil {
		return deny(CodeBase, "the base: "+denied.Reason)
	}
	if _, denied = within(base, session, unsafePath); denied != nil {
		return *denied
	}
	if !slices.ContainsFunc(m.Exists, func(what string) bool { return makesKnown(base, session, what) }) {
		return deny(CodeUnknownSession, "there is no such session")
	}
	return allow()
}

func makesKnown(base []string, session, what string) bool {
	if !strings.HasPrefix(what, "/") {
		return what == session
	}
	_, denied := within(base, session, what)
	return denied == nil
}
