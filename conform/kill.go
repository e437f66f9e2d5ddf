// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrun/rings"
)

// victim is the agent that is killed: a case names none.
const victim = "agent"

// hangLimit stands for the five seconds of H-21 in a case where something hangs. The limit is the switch's, by a real clock; only
// its length differs. Without anything that hangs the real one stays, so that a busy machine can't make an answer late.
const hangLimit = 50 * time.Millisecond

func kill(f *fields) (any, error) {
	never := make(chan struct{})
	defer close(never) // lets the goroutines go that hang
	handlers := f.callbacks("handlers", true, never)
	compensations := f.callbacks("compensations", false, never)
	substitute := ""
	if f.given("substitute") {
		substitute = f.text("substitute")
	}
	if f.done() != nil {
		return nil, nil // nothing is killed by a case with a mistake
	}
	k, err := killSwitch(handlers, compensations)
	if err != nil {
		return nil, err
	}
	if substitute != "" {
		// One that is refused takes nothing over. It is no reason not to kill.
		_ = k.RegisterSubstitute(substitute)
	}
	return k.Kill(context.Background(), rings.KillContext{Reason: rings.KillManual}), nil
}

func killSwitch(handlers, compensations []callback) (*rings.KillSwitch, error) {
	anybody := func(string) bool { return true }
	o := rings.KillOptions{Agent: victim, Clock: began, Fit: anybody, Hooks: rings.KillHooks{
		Freeze:    func(context.Context) error { return nil },
		Processes: func(context.Context) (int, error) { return 0, nil },
	}}
	for _, c := range append(handlers[:len(handlers):len(handlers)], compensations...) {
		if c.hangs {
			o.Limit = hangLimit
		}
	}
	k, err := rings.NewKillSwitch(o)
	if err != nil {
		return nil, err
	}
	for i, c := range handlers {
		if err := k.RegisterHandler(fmt.Sprintf("handler %d", i), c.run); err != nil {
			return nil, refused(err)
		}
	}
	for i, c := range compensations {
		if err := k.RegisterCompensation(fmt.Sprintf("compensation %d", i), c.run); err != nil {
			return nil, refused(err)
		}
	}
	return k, nil
}

func refused(err error) error {
	if errors.Is(err, rings.ErrTooManyCallbacks) {
		return fault(TooMany, "kill: %v", err)
	}
	return err
}

type callback struct {
	run   rings.Callback
	hangs bool
}

func (f *fields) callbacks(name string, needed bool, never <-chan struct{}) []callback {
	var list []callback
	for i, word := range f.texts(name, needed) {
		c := callback{hangs: word == "hang"}
		switch word {
		case "ok":
			c.run = func(context.Context) error { return nil }
		case "error":
			c.run = func(context.Context) error { return errors.New("an error") }
		case "panic":
			c.run = func(context.Context) error { panic("a panic") }
		case "hang":
			c.run = func(context.Context) error { <-never; return nil }
		default:
			f.refuse(InvalidValue, "%s: %s[%d] %.64q is none of ok, error, panic, hang", f.where, name, i, word)
		}
		list = append(list, c)
	}
	return list
}
