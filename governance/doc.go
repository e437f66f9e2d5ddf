// SPDX-License-Identifier: Apache-2.0

// Package governance says how much a run may use: plans and roles as data, and the ledger that holds a run to them (M-19).
//
// Guarantees: a Grant never gives more than its plan says, raised by the stake's multiplier and narrowed by the role. What a
// Ledger has booked for a run, and what an Account has lent for a day, never exceeds the cap, nothing is ever negative, and no
// sum overflows. A clock that is set back gives nothing back: an account's day only moves forward. Amounts are whole
// millionths of the unit plans are priced in; no floating point is involved anywhere.
//
//	plans, err := governance.Load(governance.Sources{Files: governance.DefaultFiles(os.Getenv)})
//	grant, err := plans.Grant("casual", "", 1200)
//	ledger := governance.NewLedger(grant, bank, time.Now)
//	held := ledger.Reserve(ctx, governance.Amounts{Cost: 300, Tokens: 800})
//	done := ledger.Settle(ctx, held.ID, governance.Amounts{Cost: 280, Tokens: 765}, true)
//
// Errors: *read.InvalidError holds everything wrong with a file of plans, by line; ErrPlan and ErrRole are names nobody defined.
// A refused reservation is an Answer with a code, not an error.
//
// What it does not protect against: whoever writes the file of plans, and a price that is estimated too low. What a call cost
// beyond its cap is told as Over and stops everything after it; the money is gone.
//
// It fails closed. The zero Plan, Grant, Ledger and Answer allow nothing. A file that can't be read refuses every run: who
// wrote it believes it holds. A ledger that can't reach its bank refuses. What a supervisor had borrowed when it died counts
// as spent.
package governance
