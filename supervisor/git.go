// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"slices"
	"strings"

	"agentrun/profiles"
)

// Git is who agents' commits are by, in every run of the node (git: of config.yaml). The zero value: git asks, as on a fresh machine.
type Git struct {
	Name  string `yaml:"name"`
	Email string `yaml:"email"`
}

// Check wants both or none, of what git takes into a commit as it stands (git-commit-tree(1)).
func (g Git) Check() error {
	odd := func(s string) bool {
		return len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '<' || r == '>' })
	}
	if (g.Name == "") != (g.Email == "") || odd(g.Name) || odd(g.Email) {
		return errors.New("git: want name and email, without angle brackets and control characters")
	}
	return nil
}

// under puts the identity before what a profile sets: the last of a name counts, and the profile knows its agents better. It is the
// environment and no file, since a home is the agent's to write.
func (g Git) under(set []profiles.EnvSet) []profiles.EnvSet {
	if g == (Git{}) {
		return set
	}
	const why = "git: of config.yaml"
	return slices.Concat([]profiles.EnvSet{
		{Name: "GIT_AUTHOR_NAME", Value: g.Name, Why: why}, {Name: "GIT_AUTHOR_EMAIL", Value: g.Email, Why: why},
		{Name: "GIT_COMMITTER_NAME", Value: g.Name, Why: why}, {Name: "GIT_COMMITTER_EMAIL", Value: g.Email, Why: why},
	}, set)
}
