// SPDX-License-Identifier: Apache-2.0

// Package policy reads an operator's policy for the safety loop and judges hints by it (S-5, stage 3 of S-6).
//
//	p, err := policy.Parse("safety.yaml", text)
//	j, err := p.For("builder", true).Judge(ctx, "calling drop_table on users") // Rule: RuleDeny, Pattern: "drop_*"
//
// Guarantees. A file is read strictly: unknown keys, keys given twice, values of another type and patterns that can't match are errors
// that name the line. Of patterns that match, deny goes before requiresApproval, and that before autoApprove, whatever their order
// and whoever's they are; an agent's own entry adds patterns and takes none away. What is forbidden is found
// anywhere in a hint, in any spelling the packages fold and risk see through; what is approved must be the whole of it. A file
// that became invalid changes nothing: Watcher keeps the last valid one and says so. Judging is pure and linear in the hint.
//
// Errors. ErrTooLong is a hint over risk.MaxHint; every other error of Judge is the context's. Both refuse the step.
//
// It doesn't protect against a hint that isn't true, nor against a policy that approves too much: "*" alone is
// refused in autoApprove, "a*" isn't. Patterns are matched on words, so a deny pattern also stops a sentence that
// only speaks about the operation.
package policy
