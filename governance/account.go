// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"errors"
	"time"
)

// Day is a day in UTC, counted from 1970-01-01.
type Day int64

// DayOf returns the day of t.
func DayOf(t time.Time) Day {
	s := t.Unix()
	d := s / 86400
	if s%86400 < 0 {
		d--
	}
	return Day(d)
}

// String writes the day as 2026-01-02.
func (d Day) String() string { return time.Unix(int64(d)*86400, 0).UTC().Format(time.DateOnly) }

// Account is what a subject used in one day, over all its runs on this node. What a run has borrowed counts as used until it
// is returned, so a supervisor that dies takes it along.
type Account struct {
	Day  Day     `json:"day"`
	Used Amounts `json:"used"`
}

// ErrAccount is an account with numbers that no ledger writes.
var ErrAccount = errors.New("the account holds impossible amounts")

// Check refuses what was damaged: a negative amount would be a gift.
func (a Account) Check() error {
	if a.Used != a.Used.clip() {
		return ErrAccount
	}
	return nil
}

// Lend gives up to want, as much as limit leaves. A later day begins at 0; an earlier one is a clock that was set back, and
// is served from the day the account is at.
func (a Account) Lend(day Day, want, limit Amounts) (Account, Amounts) {
	if day > a.Day {
		a = Account{Day: day}
	}
	a.Used = a.Used.clip()
	got := least(want.clip(), limit.left(a.Used))
	// Without a limit the account stops counting at MaxQuota, and lends: a gateway that has fallen may name any amount.
	a.Used = a.Used.plus(got).clip()
	return a, got
}

// Book adds what a call cost beyond what was lent for it: the account may stand above its limit, and then lends nothing.
func (a Account) Book(day Day, over Amounts) Account {
	if day > a.Day {
		a = Account{Day: day}
	}
	a.Used = a.Used.clip().plus(over.clip()).clip()
	return a
}

// Return takes back what wasn't used of a loan of that day. Of another day it is worth nothing any more.
func (a Account) Return(day Day, rest Amounts) Account {
	if day == a.Day {
		a.Used = most(a.Used.minus(rest.clip()), Amounts{})
	}
	return a
}
