// SPDX-License-Identifier: Apache-2.0

// Package witness makes and checks SRE witness attestations (H-12): an operator's Ed25519 signature over one action on
// one subject, good once and for a short time. It is how ring 0 is reached: for releasing a quarantine, for instance.
//
// Guarantees: Verify returns a nil error only if a key of the operators file signed exactly this action and this subject,
// the expiry lies ahead and at most MaxTTL away, and the NonceStore has recorded the nonce as used by this very call. Nothing
// is recorded for an attestation that is refused for any other reason, so nobody can use up another's.
//
//	keys, err := witness.LoadKeys("/etc/agentrun/operators")
//	if err != nil { return err }
//	want := witness.Want{Action: witness.ReleaseQuarantine, Subject: "agent:planner-1"}
//	a, err := keys.Verify(text, want, time.Now(), nonces)
//	if err != nil { return err } // nothing is granted
//	// a.Key, a.Nonce go into the audit record, then the effect
//
// Errors: each refusal has its own: ErrMalformed, ErrUnknownKey, ErrSignature, ErrAction, ErrSubject, ErrExpired,
// ErrTooFar, ErrNonceUsed; ErrNonces when the store can't record, which refuses too. They are told apart by errors.Is; the
// text names what was signed and what was asked for. Files have ErrKeyFile and ErrExposed.
//
// The text form is one word without a character that a shell, a chat or a mail client changes:
//
//	agentrun-witness-v1/release-quarantine/agent:planner-1/2026-11-21T04:02:51Z/<nonce>/alice+1a2b3c4d/<signature>
//
// Whoever passes it on can read what it allows. White space that a narrow window or a mail put in is ignored. A signed note
// (golang.org/x/mod/sumdb/note) was the other choice: it needs its line ends, an empty line and a dash outside ASCII to
// survive, which they don't in an argument or a chat. Its key format is used, so operator keys and checkpoint keys look alike.
//
// What it does not protect against: an operator whose key is stolen or who signs what he doesn't read. A key trusted by
// two hosts signs for both: a nonce is remembered per host, so an attestation is good once on each. Whoever sees an attestation
// before it was used can use it, for what it says. Who may present one is the caller's business: nothing an agent can reach
// (tool proxy, control socket) may lead to Verify. Key files have no passphrase, see Key.
//
// It fails closed: the zero Keys trusts nobody, the zero Want and a nil NonceStore are refused, as is a zero clock.
package witness
