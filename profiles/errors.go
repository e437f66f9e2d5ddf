// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"strings"
)

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
