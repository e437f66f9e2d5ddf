// SPDX-License-Identifier: Apache-2.0

// Package safetyloop is the execution safety loop of MCP-AQL (docs/requirements/safety-loop.md, S-1 to S-15):
// agents report each intended action and are told to go on, to pause, or that they are stopped. It is the
// engine alone. Who speaks MCP, judges hints, keeps the audit, shows codes to people and freezes processes is
// passed in.
//
// Guarantees. An agent that a deny pattern or the danger zone stopped stays stopped: under another element_name, in another
// execution, after a restart, in another process over the same store, and until a human's code or an operator releases it. A code
// is shown to operators and Channels only, is good once and for five minutes, and stands in no reply, record, error or print of any
// value of this package. Nobody confirms for themselves. What a human approved is bound to this very step. Ten failed
// verifications lock an agent out, across restarts and whatever the clock does. Every decision is recorded before it is answered.
// What an agent reports can raise its score and never lower it.
//
//	loop, err := safetyloop.New(safetyloop.Settings{
//		Mode: safetyloop.Enforcing, Tolerance: safetyloop.Moderate, MaxSteps: 50, Confirm: safetyloop.ConfirmServer,
//		Store: db, Record: recorder, Judge: policy, Now: time.Now,
//	})
//	reply := loop.Do(ctx, safetyloop.Call{Caller: caller, Endpoint: safetyloop.Create, Operation: name, Params: telemetry.NewPlaintext(raw)})
//
// Errors. Do answers with the codes of the MCP-AQL draft (CodeDenied and the others). New wraps ErrSetting and names the field; the
// operators' methods wrap ErrNotFound, ErrUsed, ErrExpired, ErrCode, ErrUnread or ErrRecord; Intent wraps ErrIntent or ErrBlocked.
//
// What it does not protect against. An agent that doesn't ask, or doesn't do as it is told, unless an Enforcer and Intent stand behind
// the loop. A hint that isn't what is then done: only Intent compares, and only tool and target. Two principals that work together
// confirm for each other, unless OnlyOperators. Callers of which one person has many are many to it: who gives Caller.Principal
// must give one to each credential, and not to each connection. Root on the machine.
//
// It fails closed. The zero Settings are refused. A store of blocks that can't be read stops everybody; an attempt that can't be
// counted verifies nothing; a decision that can't be recorded is a refusal; a step that can't be judged waits; what is full
// refuses (see the limits in limits.go). A block that can't be written holds in memory and is tried again; an Enforcer that doesn't
// stop is recorded and tried again.
package safetyloop
