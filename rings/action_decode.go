// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"

	"agentrun/internal/read"
)

// MaxActionJSON is the longest text of an action, in bytes. The longest valid one, with every character
// written as two \u escapes, has under 53 KiB.
const MaxActionJSON = 64 << 10

// DecodeAction reads one action from JSON and checks it. It returns a valid action, or the zero Action and a
// *read.InvalidError with a problem for each bad field, as far as the text can be read.
//
// The text is the agent's, so it may have one meaning only. encoding/json alone would take "NAME" for
// "name", the last of two values of one name, null for anything, and put U+FFFD where a string is broken;
// another reader of the same text may see another action than the one that was decided on. Here names are
// exact, come once and are known; a bool is true or false, a number an integer in its shortest spelling (not
// 1.0, 1e2, -0); text is UTF-8. undo_api may be left out or null, undo_window_seconds may be left out and is
// 0 then (H-7); every other field must be there: what is not said is not assumed to be harmless.
func DecodeAction(text []byte) (Action, error) {
	type plain Action
	var a Action
	err := decode(MaxActionJSON, text, (*plain)(&a), func() error { return a.Check() })
	if err != nil {
		return Action{}, err
	}
	return a, nil
}

// UnmarshalJSON is DecodeAction, so that an action inside another document is read as strictly.
func (a *Action) UnmarshalJSON(text []byte) error {
	decoded, err := DecodeAction(text)
	*a = decoded // on an error the zero Action: whoever ignores the error holds nothing that passes
	return err
}

// decode reads a struct's fields strictly and checks them. Problems stand in the order of the fields, those
// of unknown ones last.
func decode(most int, text []byte, into any, check func() error) error {
	n := read.JSON(read.Source{Max: most}, text)
	n.Into(into)
	err := n.Done(check())
	if invalid, ok := errors.AsType[*read.InvalidError](err); ok {
		order := map[string]int{"": -1}
		for i, f := range reflect.VisibleFields(reflect.TypeOf(into).Elem()) {
			order[strings.TrimSuffix(f.Tag.Get("json"), ",omitempty")] = i - 100
		}
		slices.SortStableFunc(invalid.Problems, func(a, b read.Problem) int { return cmp.Compare(order[a.Path], order[b.Path]) })
	}
	return err
}
