// SPDX-License-Identifier: Apache-2.0

// Package hypervisor is the Agent Hypervisor of one node: it asks the policy in package rings, remembers in package
// store, and writes every decision to the audit before it takes effect (H-28).
//
// Guarantees: what it returns as decided is on record. A decision that raises privilege or can't be taken back (a better
// score, a release, a new session's rights) is on disk first; if the log can't be written, it isn't made. One that lowers
// privilege is made all the same, and the error returned. A state that can't be read refuses: nobody is then free of
// quarantine, nobody has a score.
//
//	h, err := hypervisor.Open(hypervisor.Options{StateDir: "/var/lib/agentrun"})
//	adm, err := h.Admit(ctx, hypervisor.Request{Agent: "planner-1"})
//	if err != nil { return err } // *DeniedError says why
//	c := h.Control(adm, hypervisor.ControlOptions{Run: plan.ID}) // decides about the live run: its ring, elevation, kill
//	status := runtime.Run(ctx, plan, runtime.Options{Observer: c.Watch(hypervisor.WatchOptions{})})
//
// Errors: *DeniedError is a decision, with its code; everything else is a failure of the node and refuses too.
//
// Three rooms, and a border that TestRoomsHaveBorders holds: each knows those below it and nothing of those above.
//
//   - The node: agents, sessions, admission, plans and budgets, approvals, memory, the record. What outlives a run.
//   - live (live*.go): in which ring one run is at every moment, who lends it another and for how long, and its kill.
//   - broker (broker*.go): what the gateway of one run may ask. It believes the gateway nothing that the others know.
//
// They are files of one package and no packages: live and broker are made of the node's store, log, clocks and limits, of which
// some sixty names would have to be exported for two users, and each of them could then be used without a record. What a
// package would give, that nobody reaches upwards, the test gives.
//
// It does not protect against root on the node, who can write the state and sign checkpoints (H-26 finds what is rewritten
// later than the last checkpoint that was copied away). It enforces nothing on a live process by itself: runtime follows
// Control.Ring, and kills when it is told to.
//
// Several processes use the same state at once; see store and audit for what that means.
package hypervisor
