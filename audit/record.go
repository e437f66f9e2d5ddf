// SPDX-License-Identifier: Apache-2.0

package audit

import "time"

// Record is what is said in one entry. The types of this file are all there are; Append takes a pointer to one.
//
// How records change. A chain written today is verified by every later agentrun, byte for byte:
//   - A kind is appended to the list of kinds, never inserted, renamed, reordered or taken out.
//   - A field of a kind never changes its name, its meaning or its spelling, and none is taken away.
//   - A kind may gain an optional field (opt…), left out when it is empty: the old entries stay as they are. A field
//     that must be there, or whose absence would be read as something else, makes a new kind.
//   - A field's tag has the member's name and how it is written: see ways.
//   - A reader refuses kinds and members that it doesn't know. An older agentrun can't verify a newer one's chain, and
//     says which entry it can't read: accepting what it can't read would be worse.
//   - Every kind has a record in testdata/golden.jsonl. Lines are added to that file and never changed.
//
// No field holds an agent's data: identifiers, words of ours, numbers, times and digests only. What an agent claims as an
// identifier is recorded as it came (see Claimed), at most 256 bytes of it.
//
// Every record may be about an agent that has no id (a plain `agentrun exec`), hence the optional ones; RunID is the id of
// a run, as in the status file, and ParentRunID that of the run whose tool it is (H-15).
type Record interface {
	Kind() Kind
}

// ActionAttempt is a call that everybody has agreed to, and for which nothing has been done yet. How it ended follows as its
// tool_call (H-27, H-28). A call that doesn't get as far has one record, which says what refused it.
type ActionAttempt struct {
	Action       string    `log:"action id"` // id of the action
	AgentID      string    `log:"agent_id id"`
	BucketTokens Number    `log:"bucket_tokens optNumber"` // left; ring 0 has no bucket
	EffScore     Number    `log:"eff_score number"`        // null if the score was missing or no number
	ParentRunID  string    `log:"parent_run_id optID"`
	RequiredRing Ring      `log:"required_ring optRing"` // the action's
	Ring         Ring      `log:"ring ringOrNull"`       // the agent's, at that moment
	RunID        string    `log:"run_id optID"`
	SessionID    string    `log:"session_id optID"`
	Timestamp    time.Time `log:"timestamp instant"`
}

// RingCheck is the enforcer's answer where it is the decision: to a run that wants to begin, and to a call that was refused for
// its ring (H-9, H-27).
type RingCheck struct {
	Action             string `log:"action id"`
	AgentID            string `log:"agent_id id"`
	AgentRing          Ring   `log:"agent_ring ringOrNull"`
	Allowed            bool   `log:"allowed bool"`
	Count              int64  `log:"count optCount"` // of like refusals in this record
	EffScore           Number `log:"eff_score number"`
	ParentRunID        string `log:"parent_run_id optID"`
	Reason             string `log:"reason code"`
	RequiredRing       Ring   `log:"required_ring ring"`
	RequiresConsensus  bool   `log:"requires_consensus bool"`
	RequiresSREWitness bool   `log:"requires_sre_witness bool"`
	Rule               string `log:"rule optID"` // the requirement that decided, as H-9
	RunID              string `log:"run_id optID"`
	SessionID          string `log:"session_id optID"`
}

// RateLimit is a call that its token bucket refused (H-16, H-27).
type RateLimit struct {
	Action       string `log:"action id"`
	AgentID      string `log:"agent_id id"`
	BucketTokens Number `log:"bucket_tokens number"` // left after the question; null for ring 0, which has no bucket
	Count        int64  `log:"count optCount"`       // of like refusals in this record
	EffScore     Number `log:"eff_score optNumber"`
	Exhausted    bool   `log:"exhausted bool"`
	ParentRunID  string `log:"parent_run_id optID"`
	RequiredRing Ring   `log:"required_ring optRing"` // the action's
	Ring         Ring   `log:"ring ringOrNull"`
	RunID        string `log:"run_id optID"`
	SessionID    string `log:"session_id optID"`
}

// Elevation is a request for a higher ring and the answer (H-13, H-27).
type Elevation struct {
	AgentID      string    `log:"agent_id id"`
	By           string    `log:"by optID"` // who asked, as uid:0, or agent for the agent itself
	CurrentRing  Ring      `log:"current_ring ringOrNull"`
	ElevationID  string    `log:"elevation_id optID"`    // granted ones have it
	ExpiresAt    time.Time `log:"expires_at optInstant"` // granted ones have it
	Granted      bool      `log:"granted bool"`
	HasConsensus bool      `log:"has_consensus bool"`
	Note         string    `log:"note optID"`  // why the operator asks, in their words; an agent's own are its data
	Reason       string    `log:"reason code"` // granted, or why not
	RunID        string    `log:"run_id optID"`
	TargetRing   Ring      `log:"target_ring ringOrNull"` // null if what was asked for is no ring
	TrustScore   Number    `log:"trust_score number"`
}

// ElevationEnd is the end of a granted elevation (H-14, H-15).
type ElevationEnd struct {
	AgentID     string `log:"agent_id id"`
	By          string `log:"by optID"`   // who revoked it
	Cause       string `log:"cause code"` // expired, revoked, quarantined, demoted, unapplied, killed, session_end, run_end
	ElevationID string `log:"elevation_id id"`
	Ring        Ring   `log:"ring ring"` // the agent's from now on
	RunID       string `log:"run_id optID"`
}

// KillOrder is the decision to kill, recorded and synced before anything happens (H-28).
type KillOrder struct {
	AgentID     string `log:"agent_id id"`
	By          string `log:"by optID"`   // who ordered it, as uid:0
	Note        string `log:"note optID"` // the operator's reason, in their words
	ParentRunID string `log:"parent_run_id optID"`
	Reason      string `log:"reason code"` // code of H-23
	RunID       string `log:"run_id optID"`
	Trigger     string `log:"trigger code"` // operator, ring_breach, policy_engine, circuit_breaker, session, budget, quarantine
}

// Kill is what a kill did: KillSwitchResult (H-22, H-27).
type Kill struct {
	Action                string    `log:"action nullID"` // null if no action led to it
	AgentID               string    `log:"agent_id id"`
	CallbacksExecuted     int64     `log:"callbacks_executed count"`
	CompensationsExecuted int64     `log:"compensations_executed count"`
	DurationNS            int64     `log:"duration_ns count"`
	Errors                []string  `log:"errors optIDs"`           // what went wrong, as stage or stage:name; at most 64
	HandoffAgentID        string    `log:"handoff_agent_id nullID"` // null without a substitute
	KilledAt              time.Time `log:"killed_at instant"`
	ParentRunID           string    `log:"parent_run_id optID"`
	ProcessesKilled       int64     `log:"processes_killed count"`
	Reason                string    `log:"reason code"` // code of H-23
	RunID                 string    `log:"run_id optID"`
}

// SagaStep is a step that reached a state (H-18, H-27).
type SagaStep struct {
	AgentID      string `log:"agent_id optID"`
	AttemptCount int64  `log:"attempt_count count"`
	Compensated  bool   `log:"compensated bool"`
	Error        string `log:"error optCode"`
	SagaID       string `log:"saga_id id"`
	State        string `log:"state code"` // pending, executing, committed, failed, compensated, compensation_failed
	StepID       string `log:"step_id id"`
}

// Saga is a saga that reached a state (H-18, H-19).
type Saga struct {
	AgentID     string   `log:"agent_id optID"`
	FailedSteps []string `log:"failed_steps optIDs"` // whose undo failed, for escalated; at most 64
	SagaID      string   `log:"saga_id id"`
	State       string   `log:"state code"` // pending, executing, committed, compensating, aborted, escalated
}

// Quarantine is an agent put into quarantine (H-31).
type Quarantine struct {
	AgentID string `log:"agent_id id"`
	By      string `log:"by optID"` // the operator, as uid:0
	Cause   string `log:"cause code"`
	Note    string `log:"note optID"` // the operator's reason, in their words
	OldRing Ring   `log:"old_ring ringOrNull"`
	RunID   string `log:"run_id optID"`
}

// Release is an agent let out of quarantine by a witnessed operator (H-12, H-31).
type Release struct {
	AgentID   string `log:"agent_id id"`
	By        string `log:"by optID"`         // who presented the attestation, as uid:0
	KeyID     string `log:"key_id id"`        // of the witness
	Note      string `log:"note optID"`       // the operator's reason, in their words
	Ring      Ring   `log:"ring ring"`        // the agent's from now on
	Statement Hash   `log:"statement digest"` // SHA-256 of the signed statement
}

// Score is a change of an agent's score, and what it did to its ring (H-2, H-4).
type Score struct {
	AgentID      string `log:"agent_id id"`
	By           string `log:"by optID"` // who set it, as uid:0
	HasConsensus bool   `log:"has_consensus bool"`
	NewRing      Ring   `log:"new_ring ring"`
	NewScore     Number `log:"new_score number"`
	OldRing      Ring   `log:"old_ring ringOrNull"`
	OldScore     Number `log:"old_score number"`
	RunID        string `log:"run_id optID"`
	Source       string `log:"source code"` // operator, breach, run, api
}

// Breach is a finding of the breach detector (H-24).
type Breach struct {
	AgentID  string `log:"agent_id id"`
	Calls    int64  `log:"calls count"`       // denied attempts in the window
	OnBreach string `log:"on_breach optCode"` // what the run's operator wants to follow
	RunID    string `log:"run_id optID"`
	Severity string `log:"severity code"` // low, medium, high, critical
	Tripped  bool   `log:"tripped bool"`  // the breaker opened
	Weight   Number `log:"weight number"` // of those calls
}

// Session is an event in the life of a session (H-29).
type Session struct {
	AgentID         string `log:"agent_id optID"`           // who joined or left
	ConsistencyMode string `log:"consistency_mode optCode"` // eventual, strong, causal; at its creation
	Event           string `log:"event code"`               // created, joined, left, activated, terminated, archived
	SessionID       string `log:"session_id id"`
	State           string `log:"state code"` // created, handshaking, active, terminating, archived
}

// Conflict is two writes to the same shared value or file, of which one was kept (H-32). Values and their key are digests: they
// are the agents' data.
type Conflict struct {
	Kept      Hash   `log:"kept digest"` // SHA-256 of the value kept
	KeptBy    string `log:"kept_by id"`  // agent
	Key       Hash   `log:"key digest"`  // SHA-256 of the key
	Lost      Hash   `log:"lost digest"`
	LostBy    string `log:"lost_by id"`
	SessionID string `log:"session_id id"`
}

// SandboxStart is written before the sandbox is made (H-27).
type SandboxStart struct {
	AgentID     string `log:"agent_id optID"`
	Image       string `log:"image optID"` // whose root it has, by the digest of its configuration
	ParentRunID string `log:"parent_run_id optID"`
	PlanDigest  Hash   `log:"plan_digest digest"` // as `agentrun plan` prints it
	Profile     string `log:"profile id"`
	Ring        Ring   `log:"ring ring"`
	RunID       string `log:"run_id id"`
	SessionID   string `log:"session_id optID"`
	// Wider is what the operator's configuration gives runs like this one above the specification's ranges, as "memory 8GiB" (M-3).
	Wider []string `log:"wider optIDs"`
	// Without are the protections that the host lacks and that --best-effort went on without, by the names that agentrun doctor has.
	Without []string `log:"without optIDs"`
}

// SandboxEnd is written when every process of the sandbox is dead (H-27). One that was started and has no end was cut off: the
// supervisor died, and the sandbox with it.
type SandboxEnd struct {
	AgentID     string `log:"agent_id optID"`
	ExitCode    int64  `log:"exit_code count"`
	FailedStep  string `log:"failed_step optID"` // the launch step that failed
	ParentRunID string `log:"parent_run_id optID"`
	PlanDigest  Hash   `log:"plan_digest digest"`
	Refused     int64  `log:"refused count"` // system calls refused by the supervisor
	RunID       string `log:"run_id id"`
	SessionID   string `log:"session_id optID"`
	State       string `log:"state code"` // code, as in the status file
	WallTimeNS  int64  `log:"wall_time_ns count"`
}

// Refusal is a kind of system call that the supervisor refused. Repeated calls of a kind are counted, not repeated: an
// agent could else fill the disk at 100 000 calls a second.
type Refusal struct {
	AgentID     string `log:"agent_id optID"`
	Class       string `log:"class optID"` // what of the arguments matters, as flags=CLONE_NEWUSER
	Count       int64  `log:"count count"` // since the last record of this kind of call
	ParentRunID string `log:"parent_run_id optID"`
	RunID       string `log:"run_id id"`
	Syscall     string `log:"syscall id"`
	Verdict     string `log:"verdict id"` // the errno the agent got, as EPERM
}

// Operator is an attestation that was presented, accepted or not (H-12).
type Operator struct {
	Accepted  bool      `log:"accepted bool"`
	Action    string    `log:"action id"`             // what it is for
	ExpiresAt time.Time `log:"expires_at optInstant"` // a refused one may have none that can be read
	KeyID     string    `log:"key_id optID"`          // of the witness
	Nonce     string    `log:"nonce optID"`           // optional likewise
	Reason    string    `log:"reason code"`           // accepted, or why not
	Statement Hash      `log:"statement digest"`      // SHA-256 of what was presented
	Subject   string    `log:"subject id"`            // whom or what it is about
}

// Key is a key that came or went.
type Key struct {
	Event     string `log:"event code"` // created, trusted, retired
	KeyID     string `log:"key_id id"`
	PublicKey string `log:"public_key id"` // as its tool prints it; never the private one
	Purpose   string `log:"purpose code"`  // audit_checkpoint, sre_witness
}

// AgentKey is a key of an agent's that was issued, used by a run, or revoked (M-9). The key itself is on no record.
type AgentKey struct {
	AgentID   string    `log:"agent_id id"`
	By        string    `log:"by optID"`   // who issued or revoked it, as uid:0
	Event     string    `log:"event code"` // issued, used, revoked
	ExpiresAt time.Time `log:"expires_at instant"`
	KeyID     string    `log:"key_id id"`
	May       []string  `log:"may optIDs"` // its capabilities; where it is issued
	RunID     string    `log:"run_id optID"`
}

// LimitChange is an operator's order to change limits of a live run, before it takes effect (M-3).
type LimitChange struct {
	AgentID string   `log:"agent_id id"`
	By      string   `log:"by id"`         // who ordered it, as uid:0
	Limits  []string `log:"limits optIDs"` // as they shall be, such as "memory 2GiB"
	Note    string   `log:"note optID"`    // the operator's reason, in their words
	RunID   string   `log:"run_id optID"`
}

// FileCopy is what an operator copied out of a live run or into it, after its end (M-23).
type FileCopy struct {
	AgentID   string `log:"agent_id id"`
	By        string `log:"by id"`          // who, as uid:0
	Bytes     int64  `log:"bytes optCount"` // of the files' content
	Code      string `log:"code optCode"`   // why it ended early; what was copied until then counts
	Direction string `log:"direction code"` // out, in
	Entries   int64  `log:"entries optCount"`
	Path      string `log:"path id"` // in the sandbox
	RunID     string `log:"run_id optID"`
	SHA256    Hash   `log:"sha256 digest"` // of the tar that went out or came in, as far as it did
}

// SandboxLife is a kept sandbox that was made, stopped, renamed, started anew or removed. Its starts are runs, with records of their own.
type SandboxLife struct {
	By       string `log:"by id"`       // who, as uid:0; agentrun: by itself
	Change   string `log:"change code"` // created, started, stopped, renamed, restarted, kept (for longer), snapshot, snapshot_removed, forked, rolled_back, committed, removed
	Name     string `log:"name id"`
	Restarts int64  `log:"restarts optCount"` // in a row
	RunID    string `log:"run_id optID"`      // its last run
	To       string `log:"to optID"`          // the new name, the fork's, the snapshot's or the image's
}

// Image is a container image that was brought to this node, or removed, before that takes effect.
type Image struct {
	By       string   `log:"by id"`          // who, as uid:0
	Change   string   `log:"change code"`    // pulled, imported, committed, untagged (a name of it is gone), removed
	Image    string   `log:"image id"`       // sha256:… of its configuration, which names each layer by its content
	Key      string   `log:"key optID"`      // sha256:… of the public key that has signed it; none: unsigned
	Manifest string   `log:"manifest optID"` // sha256:… of the manifest it came by
	Names    []string `log:"names optIDs"`   // that it is given, or was removed by
	Source   string   `log:"source optCode"` // registry, oci_layout, oci_archive, docker_archive, sandbox
}

// SandboxPause is a pause of a live run, when it stands still, or the end of one, before it goes on (M-23).
type SandboxPause struct {
	AgentID   string `log:"agent_id id"`
	By        string `log:"by id"`      // who, as uid:0; agentrun itself, of a run that was idle
	Cause     string `log:"cause code"` // operator, idle, freeze; of its end operator, exec, copy, signal, port, call, thaw
	Paused    bool   `log:"paused bool"`
	RunID     string `log:"run_id id"`
	SessionID string `log:"session_id optID"`
}

// SandboxSignal is a signal to the first process of a live run that an operator orders (M-23).
type SandboxSignal struct {
	AgentID   string `log:"agent_id id"`
	By        string `log:"by id"` // who, as uid:0
	RunID     string `log:"run_id id"`
	SessionID string `log:"session_id optID"`
	Signal    int64  `log:"signal count"` // its number
}

// SandboxJoin is a further command in a live run, before its first instruction. One that has no SandboxJoinEnd was cut off, as its run.
type SandboxJoin struct {
	AgentID     string   `log:"agent_id optID"`
	By          string   `log:"by id"`      // who entered, as uid:0
	JoinID      string   `log:"join_id id"` // the end has the same
	ParentRunID string   `log:"parent_run_id optID"`
	Program     []string `log:"program optIDs"` // and the script, where its extension says who runs it; never the other arguments
	Ring        Ring     `log:"ring ring"`      // that held then; it follows the run's
	RunID       string   `log:"run_id id"`
	SessionID   string   `log:"session_id optID"`
}

// SandboxJoinEnd is how it ended, when its process is dead.
type SandboxJoinEnd struct {
	AgentID    string `log:"agent_id optID"`
	ExitCode   int64  `log:"exit_code count"`
	JoinID     string `log:"join_id id"`
	RunID      string `log:"run_id id"`
	SessionID  string `log:"session_id optID"`
	State      string `log:"state code"` // as in the status file of a run; failed: it could not be executed
	WallTimeNS int64  `log:"wall_time_ns count"`
}

// PortPublish is what an operator did about a port of a live run (M-23). What connected to it is an Egress of type ingress. The end of the run
// takes it back without a record.
type PortPublish struct {
	Address string `log:"address id"` // on the host
	AgentID string `log:"agent_id id"`
	By      string `log:"by id"`       // who, as uid:0
	Event   string `log:"event code"`  // published, linked (a new link), removed
	Port    int64  `log:"port count"`  // in the sandbox
	Raw     bool   `log:"raw optBool"` // no token is asked for
	RunID   string `log:"run_id optID"`
}

// Repair accounts for bytes that are no entry: what a writer left that died, or ran out of disk, in the middle of a line.
// They stay where they are. Only the log writes it, straight behind them.
type Repair struct {
	File   string `log:"file id"`      // as 000001.jsonl
	Length int64  `log:"length count"` // bytes from Offset to this entry
	Offset int64  `log:"offset count"`
	SHA256 Hash   `log:"sha256 digest"` // of those bytes
}

// Rotation is the last entry of a file and names the one in which the chain goes on. Only the log writes it.
type Rotation struct {
	Next string `log:"next id"` // as 000002.jsonl
}
