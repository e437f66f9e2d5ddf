// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"errors"
	"fmt"
)

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

func (m Mode) String() string {
	switch m {
	case Enforcing:
		return "enforcing"
	case Monitoring:
		return "monitoring"
	case Logging:
		return "logging"
	case Disabled:
		return "disabled"
	}
	return "no mode"
}

// ErrChoice is a word that is none of those a setting knows.
var ErrChoice = errors.New("not one of the words it may be")

// ParseMode reads enforcing, monitoring, logging or disabled, exactly so: a misspelt word must not become "off".
func ParseMode(word string) (Mode, error) {
	for m := Enforcing; m <= Disabled; m++ {
		if word == m.String() {
			return m, nil
		}
	}
	return NoMode, fmt.Errorf("mode %.40q: %w: enforcing, monitoring, logging, disabled", word, ErrChoice)
}

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

func (t Tolerance) String() string {
	switch t {
	case Conservative:
		return "conservative"
	case Moderate:
		return "moderate"
	case Aggressive:
		return "aggressive"
	}
	return "no tolerance"
}

// Score is the highest score that doesn't pause; 0 for what is no tolerance.
func (t Tolerance) Score() int {
	switch t {
	case Conservative:
		return 25
	case Moderate:
		return 50
	case Aggressive:
		return 75
	}
	return 0
}

// ParseTolerance reads conservative, moderate or aggressive.
func ParseTolerance(word string) (Tolerance, error) {
	for t := Conservative; t <= Aggressive; t++ {
		if word == t.String() {
			return t, nil
		}
	}
	return NoTolerance, fmt.Errorf("tolerance %.40q: %w: conservative, moderate, aggressive", word, ErrChoice)
}

// Confirm says who asks a human about the default permissions of S-2.
type Confirm uint8

const (
	NoConfirm Confirm = iota
	// ConfirmServer lets the loop refuse with CONFIRMATION_REQUIRED until somebody else has confirmed the token.
	ConfirmServer
	// ConfirmClient leaves the default permissions to the dialog of the MCP client. Pauses and stops stay with the loop.
	ConfirmClient
)

func (c Confirm) String() string {
	switch c {
	case ConfirmServer:
		return "server"
	case ConfirmClient:
		return "client"
	}
	return "nobody"
}

// ParseConfirm reads server or client.
func ParseConfirm(word string) (Confirm, error) {
	for c := ConfirmServer; c <= ConfirmClient; c++ {
		if word == c.String() {
			return c, nil
		}
	}
	return NoConfirm, fmt.Errorf("confirm %.40q: %w: server, client", word, ErrChoice)
}
