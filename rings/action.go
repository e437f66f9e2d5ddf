// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	"agentrun/internal/read"
)

// Reversibility says how far an action can be undone (H-7). Its zero value is none of the three and refuses.
type Reversibility string

const (
	Full         Reversibility = "FULL"
	Partial      Reversibility = "PARTIAL"
	Irreversible Reversibility = "NONE"
)

// ErrReversibility is what an unknown reversibility gives.
var ErrReversibility = errors.New(`reversibility is "FULL", "PARTIAL" or "NONE"`)

// Valid tells whether r is one of the three, spelled as above.
func (r Reversibility) Valid() bool { return r == Full || r == Partial || r == Irreversible }

// Limits of H-7. Lengths are counted in Unicode code points, as the original text's "chars" are: a name may be as
// long in any script. A decoded action is therefore under 4 bytes times the sum of them.
const (
	MaxActionName        = 256
	MaxActionAPI         = 2048
	MaxUndoWindowSeconds = 86400
)

// Action describes what an agent wants to do (H-7). The zero value is invalid and requires Root.
type Action struct {
	ID                string        `json:"action_id" read:"required"`     // an identifier, see CheckActionID
	Name              string        `json:"name" read:"required"`          // for people, 1 to 256 code points
	ExecuteAPI        string        `json:"execute_api" read:"required"`   // 1 to 2048 code points
	UndoAPI           *string       `json:"undo_api"`                      // nil: there is none; else 1 to 2048 code points
	Reversibility     Reversibility `json:"reversibility" read:"required"` // FULL, PARTIAL or NONE
	UndoWindowSeconds int           `json:"undo_window_seconds"`           // 0 to 86400
	ReadOnly          bool          `json:"is_read_only" read:"required"`
	Admin             bool          `json:"is_admin" read:"required"`
}

// Check returns nil or a *read.InvalidError with every field that breaks H-7, by its JSON name.
func (a Action) Check() error {
	var ps read.Problems
	if err := CheckActionID(a.ID); err != nil {
		ps.Add("action_id", "%v", err)
	}
	checkText(&ps, "name", a.Name, MaxActionName)
	checkText(&ps, "execute_api", a.ExecuteAPI, MaxActionAPI)
	if a.UndoAPI != nil {
		checkText(&ps, "undo_api", *a.UndoAPI, MaxActionAPI)
	}
	if !a.Reversibility.Valid() {
		ps.Add("reversibility", "%.32q: %v", string(a.Reversibility), ErrReversibility)
	}
	if a.UndoWindowSeconds < 0 || a.UndoWindowSeconds > MaxUndoWindowSeconds {
		ps.Add("undo_window_seconds", "%d is not within 0 and %d", a.UndoWindowSeconds, MaxUndoWindowSeconds)
	}
	return ps.Err()
}

func checkText(ps *read.Problems, path, s string, most int) {
	switch n := utf8.RuneCountInString(s); {
	case s == "":
		ps.Add(path, "is empty")
	case n > most:
		ps.Add(path, "has %d code points, at most %d are allowed", n, most)
	case !showable(s):
		ps.Add(path, "has characters that control the display, or bytes that are no text")
	}
}

// showable refuses what would let a name forge a second log line, drive the operator's terminal or read as another
// name in an approval: control characters, line separators, direction marks. U+FFFD is refused because it is what
// decoders put in the place of broken text: two different inputs would become one action.
func showable(s string) bool {
	for _, r := range s {
		switch {
		case r == utf8.RuneError, unicode.IsControl(r):
			return false
		case 0x200e <= r && r <= 0x200f, 0x2028 <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069, r == 0x061c:
			return false
		}
	}
	return true
}

// Classify returns the ring that an action of this kind requires (H-6): an administrative one Root, one that can't be
// undone and doesn't only read Privileged, one that only reads Sandbox, any other Standard. An unknown reversibility
// gives an error that is ErrReversibility, and Root, which no agent has.
func Classify(admin bool, reversibility Reversibility, readOnly bool) (Ring, error) {
	switch {
	case !reversibility.Valid():
		return Root, fmt.Errorf("classify %.32q: %w", string(reversibility), ErrReversibility)
	case admin:
		return Root, nil
	case reversibility == Irreversible && !readOnly:
		return Privileged, nil
	case readOnly:
		return Sandbox, nil
	default:
		return Standard, nil
	}
}

// RequiredRing returns the ring of Classify; Root if the reversibility is unknown. It looks at no other field.
func (a Action) RequiredRing() Ring {
	ring, _ := Classify(a.Admin, a.Reversibility, a.ReadOnly) // with an error it is Root
	return ring
}

// Risk is the range of an action's risk weight, from 0 (harmless) to 1, and the default within it (H-8).
type Risk struct{ Low, Default, High float64 }

// Risk returns the range of H-8. What is unknown is as risky as can be: 1, 1, 1.
func (r Reversibility) Risk() Risk {
	switch r {
	case Full:
		return Risk{0.1, 0.2, 0.3}
	case Partial:
		return Risk{0.5, 0.65, 0.8}
	case Irreversible:
		return Risk{0.9, 0.95, 1.0}
	default:
		return Risk{1, 1, 1}
	}
}

// Contains tells whether a weight lies within the range, ends included; NaN never does.
func (r Risk) Contains(weight float64) bool { return weight >= r.Low && weight <= r.High }

// RiskWeight is what an action weighs (H-8): the default of its reversibility. Reading leaves nothing to undo, and weighs as FULL.
func (a Action) RiskWeight() float64 {
	if a.ReadOnly && a.Reversibility.Valid() {
		return Full.Risk().Default
	}
	return a.Reversibility.Risk().Default
}

// RateCost is how many tokens of the bucket a call takes (H-8, H-16), 1 to 3: what can't be undone is tried out more slowly.
func (a Action) RateCost() int { return int(math.Ceil(3 * a.RiskWeight())) }

// BreachFactor is how much more than its rings say a refused attempt counts (H-8, H-24), 1 or 2.
func (a Action) BreachFactor() int { return max(int(math.Round(2*a.RiskWeight())), 1) }
