// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrChoice is a word that is none of those a setting knows.
var ErrChoice = errors.New("not one of the words it may be")

// nameOf is the name of a value; the first of the names is that of no value.
func nameOf[T ~uint8](names []string, value T) string {
	if int(value) < len(names) {
		return names[value]
	}
	return names[0]
}

// parse reads one of the names exactly as it is written: a misspelt word must not become "off".
func parse[T ~uint8](setting string, names []string, word string) (T, error) {
	if i := slices.Index(names, word); i > 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s %.40q: %w: %s", setting, word, ErrChoice, strings.Join(names[1:], ", "))
}

// EnvMode is the variable that sets the mode (S-14). A flag and the config file go before it.
const EnvMode = "MCPAQL_SAFETY_LOOP"

// Mode is what a loop does with what it finds (S-14). The zero value is none, and New refuses it.
type Mode uint8

const (
	NoMode Mode = iota
	// Enforcing holds agents to what the loop answers.
	Enforcing
	// Monitoring evaluates everything and stops nobody.
	Monitoring
	// Logging records steps and evaluates nothing.
	Logging
	// Disabled answers, and does nothing else.
	Disabled
)

var modes = []string{"no mode", "enforcing", "monitoring", "logging", "disabled"}

func (m Mode) String() string { return nameOf(modes, m) }

// ParseMode reads enforcing, monitoring, logging or disabled.
func ParseMode(word string) (Mode, error) { return parse[Mode]("mode", modes, word) }

// ModeOf reads the mode from the environment; lookup is os.LookupEnv. A variable that isn't set gives otherwise; one that is set to
// anything but a mode, the empty word included, is an error.
func ModeOf(lookup func(string) (string, bool), otherwise Mode) (Mode, error) {
	word, set := lookup(EnvMode)
	if !set {
		return otherwise, nil
	}
	m, err := ParseMode(word)
	if err != nil {
		return NoMode, fmt.Errorf("%s: %w", EnvMode, err)
	}
	return m, nil
}

// Tolerance is the score above which an agent pauses although its tier alone wouldn't make it (S-6, stage 5).
type Tolerance uint8

const (
	NoTolerance  Tolerance = iota
	Conservative           // above 25
	Moderate               // above 50
	Aggressive             // above 75
)

var (
	tolerances = []string{"no tolerance", "conservative", "moderate", "aggressive"}
	scores     = [...]int{Conservative: 25, Moderate: 50, Aggressive: 75}
)

func (t Tolerance) String() string { return nameOf(tolerances, t) }

// Score is the highest score that doesn't pause; 0 for what is no tolerance.
func (t Tolerance) Score() int {
	if int(t) < len(scores) {
		return scores[t]
	}
	return 0
}

// ParseTolerance reads conservative, moderate or aggressive.
func ParseTolerance(word string) (Tolerance, error) {
	return parse[Tolerance]("tolerance", tolerances, word)
}

// Confirm says who asks a human about the default permissions of S-2.
type Confirm uint8

const (
	NoConfirm Confirm = iota
	// ConfirmServer lets the loop refuse with CONFIRMATION_REQUIRED until somebody else has confirmed the token.
	ConfirmServer
	// ConfirmClient leaves the default permissions to the dialog of the MCP client. Pauses and stops stay with the loop.
	ConfirmClient
	// ConfirmPolicy has the policy's patterns decide about an operation by its OperationHint: deny refuses, autoApprove lets it
	// pass, and for all else it is ConfirmServer.
	ConfirmPolicy
)

// OperationHint is what patterns judge an operation by.
func OperationHint(operation, element string) string { return operation + " " + element }

var confirms = []string{"nobody", "server", "client", "policy"}

func (c Confirm) String() string { return nameOf(confirms, c) }

// ParseConfirm reads server, client or policy.
func ParseConfirm(word string) (Confirm, error) { return parse[Confirm]("confirm", confirms, word) }
