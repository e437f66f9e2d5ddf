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
//   - fields names the members in the order of RFC 8785.
//   - A reader refuses kinds and members that it doesn't know. An older agentrun can't verify a newer one's chain, and
//     says which entry it can't read: accepting what it can't read would be worse.
//   - Every kind has a record in testdata/golden.jsonl. Lines are added to that file and never changed.
//
// No field holds an agent's data: identifiers, words of ours, numbers, times and digests only. What an agent claims as an
// identifier is recorded as it came (see Claimed), at most 256 bytes of it.
//
// Every record may be about an agent that has no id (a plain `agentrun exec`), hence the optional ones; RunID is the id of
// a run, as in the status file.
type Record interface {
	Kind() Kind
	fields(*codec)
}

// ActionAttempt is an action that an agent asked for, before anything was decided (H-27).
type ActionAttempt struct {
	Action    string // id of the action
	AgentID   string
	EffScore  Number // null if the score was missing or no number
	Ring      Ring   // the agent's, at that moment
	RunID     string // optional
	Timestamp time.Time
}

// Kind implements Record.
func (*ActionAttempt) Kind() Kind { return KindActionAttempt }

func (r *ActionAttempt) fields(c *codec) {
	c.id("action", &r.Action)
	c.id("agent_id", &r.AgentID)
	c.number("eff_score", &r.EffScore)
	c.ring("ring", &r.Ring, true)
	c.optID("run_id", &r.RunID)
	c.instant("timestamp", &r.Timestamp)
}

// RingCheck is the enforcer's answer (H-9, H-27).
type RingCheck struct {
	Action             string
	AgentID            string
	AgentRing          Ring
	Allowed            bool
	EffScore           Number
	Reason             string // code
	RequiredRing       Ring
	RequiresConsensus  bool
	RequiresSREWitness bool
	Rule               string // optional: the requirement that decided, as H-9
	RunID              string // optional
}

// Kind implements Record.
func (*RingCheck) Kind() Kind { return KindRingCheck }

func (r *RingCheck) fields(c *codec) {
	c.id("action", &r.Action)
	c.id("agent_id", &r.AgentID)
	c.ring("agent_ring", &r.AgentRing, true)
	c.bool("allowed", &r.Allowed)
	c.number("eff_score", &r.EffScore)
	c.code("reason", &r.Reason)
	c.ring("required_ring", &r.RequiredRing, false)
	c.bool("requires_consensus", &r.RequiresConsensus)
	c.bool("requires_sre_witness", &r.RequiresSREWitness)
	c.optID("rule", &r.Rule)
	c.optID("run_id", &r.RunID)
}

// RateLimit is a question to a token bucket (H-16, H-27).
type RateLimit struct {
	Action       string
	AgentID      string
	BucketTokens Number // left after the question; null for ring 0, which has no bucket
	Exhausted    bool
	Ring         Ring
	RunID        string // optional
}

// Kind implements Record.
func (*RateLimit) Kind() Kind { return KindRateLimit }

func (r *RateLimit) fields(c *codec) {
	c.id("action", &r.Action)
	c.id("agent_id", &r.AgentID)
	c.number("bucket_tokens", &r.BucketTokens)
	c.bool("exhausted", &r.Exhausted)
	c.ring("ring", &r.Ring, true)
	c.optID("run_id", &r.RunID)
}

// Elevation is a request for a higher ring and the answer (H-13, H-27).
type Elevation struct {
	AgentID      string
	By           string // optional: who asked, as uid:0, or agent for the agent itself
	CurrentRing  Ring
	ElevationID  string    // optional: granted ones have it
	ExpiresAt    time.Time // optional: granted ones have it
	Granted      bool
	HasConsensus bool
	Reason       string // code: granted, or why not
	RunID        string // optional
	TargetRing   Ring   // null if what was asked for is no ring
	TrustScore   Number
}

// Kind implements Record.
func (*Elevation) Kind() Kind { return KindElevation }

func (r *Elevation) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("by", &r.By)
	c.ring("current_ring", &r.CurrentRing, true)
	c.optID("elevation_id", &r.ElevationID)
	c.optInstant("expires_at", &r.ExpiresAt)
	c.bool("granted", &r.Granted)
	c.bool("has_consensus", &r.HasConsensus)
	c.code("reason", &r.Reason)
	c.optID("run_id", &r.RunID)
	c.ring("target_ring", &r.TargetRing, true)
	c.number("trust_score", &r.TrustScore)
}

// ElevationEnd is the end of a granted elevation (H-14, H-15).
type ElevationEnd struct {
	AgentID     string
	By          string // optional: who revoked it
	Cause       string // code: expired, revoked, quarantined, demoted, killed, session_end, run_end
	ElevationID string
	Ring        Ring   // the agent's from now on
	RunID       string // optional
}

// Kind implements Record.
func (*ElevationEnd) Kind() Kind { return KindElevationEnd }

func (r *ElevationEnd) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("by", &r.By)
	c.code("cause", &r.Cause)
	c.id("elevation_id", &r.ElevationID)
	c.ring("ring", &r.Ring, false)
	c.optID("run_id", &r.RunID)
}

// KillOrder is the decision to kill, recorded and synced before anything happens (H-28).
type KillOrder struct {
	AgentID string
	By      string // optional: who ordered it, as uid:0
	Reason  string // code of H-23
	RunID   string // optional
	Trigger string // code: operator, ring_breach, policy_engine, circuit_breaker, session, budget, quarantine
}

// Kind implements Record.
func (*KillOrder) Kind() Kind { return KindKillOrder }

func (r *KillOrder) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("by", &r.By)
	c.code("reason", &r.Reason)
	c.optID("run_id", &r.RunID)
	c.code("trigger", &r.Trigger)
}

// Kill is what a kill did: KillSwitchResult (H-22, H-27).
type Kill struct {
	Action                string // null if no action led to it
	AgentID               string
	CallbacksExecuted     int64
	CompensationsExecuted int64
	DurationNS            int64
	Errors                []string // optional: what went wrong, as stage or stage:name; at most 64
	HandoffAgentID        string   // null without a substitute
	KilledAt              time.Time
	ProcessesKilled       int64
	Reason                string // code of H-23
	RunID                 string // optional
}

// Kind implements Record.
func (*Kill) Kind() Kind { return KindKill }

func (r *Kill) fields(c *codec) {
	c.nullID("action", &r.Action)
	c.id("agent_id", &r.AgentID)
	c.count("callbacks_executed", &r.CallbacksExecuted)
	c.count("compensations_executed", &r.CompensationsExecuted)
	c.count("duration_ns", &r.DurationNS)
	c.optIDs("errors", &r.Errors)
	c.nullID("handoff_agent_id", &r.HandoffAgentID)
	c.instant("killed_at", &r.KilledAt)
	c.count("processes_killed", &r.ProcessesKilled)
	c.code("reason", &r.Reason)
	c.optID("run_id", &r.RunID)
}

// SagaStep is a step that reached a state (H-18, H-27).
type SagaStep struct {
	AgentID      string // optional
	AttemptCount int64
	Compensated  bool
	Error        string // optional code
	SagaID       string
	State        string // code: pending, executing, committed, failed, compensated, compensation_failed
	StepID       string
}

// Kind implements Record.
func (*SagaStep) Kind() Kind { return KindSagaStep }

func (r *SagaStep) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.count("attempt_count", &r.AttemptCount)
	c.bool("compensated", &r.Compensated)
	c.optCode("error", &r.Error)
	c.id("saga_id", &r.SagaID)
	c.code("state", &r.State)
	c.id("step_id", &r.StepID)
}

// Saga is a saga that reached a state (H-18, H-19).
type Saga struct {
	AgentID     string   // optional
	FailedSteps []string // optional: whose undo failed, for escalated; at most 64
	SagaID      string
	State       string // code: pending, executing, committed, compensating, aborted, escalated
}

// Kind implements Record.
func (*Saga) Kind() Kind { return KindSaga }

func (r *Saga) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.optIDs("failed_steps", &r.FailedSteps)
	c.id("saga_id", &r.SagaID)
	c.code("state", &r.State)
}

// Quarantine is an agent put into quarantine (H-31).
type Quarantine struct {
	AgentID string
	Cause   string // code
	OldRing Ring
	RunID   string // optional
}

// Kind implements Record.
func (*Quarantine) Kind() Kind { return KindQuarantine }

func (r *Quarantine) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.code("cause", &r.Cause)
	c.ring("old_ring", &r.OldRing, true)
	c.optID("run_id", &r.RunID)
}

// Release is an agent let out of quarantine by a witnessed operator (H-12, H-31).
type Release struct {
	AgentID   string
	KeyID     string // of the witness
	Ring      Ring   // the agent's from now on
	Statement Hash   // SHA-256 of the signed statement
}

// Kind implements Record.
func (*Release) Kind() Kind { return KindRelease }

func (r *Release) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.id("key_id", &r.KeyID)
	c.ring("ring", &r.Ring, false)
	c.digest("statement", &r.Statement)
}

// Score is a change of an agent's score, and what it did to its ring (H-2, H-4).
type Score struct {
	AgentID      string
	HasConsensus bool
	NewRing      Ring
	NewScore     Number
	OldRing      Ring
	OldScore     Number
	RunID        string // optional
	Source       string // code: operator, breach, run, api
}

// Kind implements Record.
func (*Score) Kind() Kind { return KindScore }

func (r *Score) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.bool("has_consensus", &r.HasConsensus)
	c.ring("new_ring", &r.NewRing, false)
	c.number("new_score", &r.NewScore)
	c.ring("old_ring", &r.OldRing, true)
	c.number("old_score", &r.OldScore)
	c.optID("run_id", &r.RunID)
	c.code("source", &r.Source)
}

// Breach is a finding of the breach detector (H-24).
type Breach struct {
	AgentID  string
	Calls    int64 // denied attempts in the window
	RunID    string
	Severity string // code: low, medium, high, critical
	Tripped  bool   // the breaker opened
	Weight   Number // of those calls
}

// Kind implements Record.
func (*Breach) Kind() Kind { return KindBreach }

func (r *Breach) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.count("calls", &r.Calls)
	c.optID("run_id", &r.RunID)
	c.code("severity", &r.Severity)
	c.bool("tripped", &r.Tripped)
	c.number("weight", &r.Weight)
}

// Session is an event in the life of a session (H-29).
type Session struct {
	AgentID         string // optional: who joined or left
	ConsistencyMode string // optional code: eventual, strong, causal; at its creation
	Event           string // code: created, joined, left, activated, terminated, archived
	SessionID       string
	State           string // code: created, handshaking, active, terminating, archived
}

// Kind implements Record.
func (*Session) Kind() Kind { return KindSession }

func (r *Session) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.optCode("consistency_mode", &r.ConsistencyMode)
	c.code("event", &r.Event)
	c.id("session_id", &r.SessionID)
	c.code("state", &r.State)
}

// Conflict is two writes to the same shared value, of which one was kept (H-32). Values and their key are digests: they
// are the agents' data.
type Conflict struct {
	Kept      Hash   // SHA-256 of the value kept
	KeptBy    string // agent
	Key       Hash   // SHA-256 of the key
	Lost      Hash
	LostBy    string
	SessionID string
}

// Kind implements Record.
func (*Conflict) Kind() Kind { return KindConflict }

func (r *Conflict) fields(c *codec) {
	c.digest("kept", &r.Kept)
	c.id("kept_by", &r.KeptBy)
	c.digest("key", &r.Key)
	c.digest("lost", &r.Lost)
	c.id("lost_by", &r.LostBy)
	c.id("session_id", &r.SessionID)
}

// SandboxStart is written before the sandbox is made (H-27).
type SandboxStart struct {
	AgentID    string // optional
	PlanDigest Hash   // as `agentrun plan` prints it
	Profile    string
	Ring       Ring
	RunID      string
	SessionID  string // optional
	// Without are the protections that the host lacks and that --best-effort went on without, by the names that agentrun doctor has.
	Without []string // optional
}

// Kind implements Record.
func (*SandboxStart) Kind() Kind { return KindSandboxStart }

func (r *SandboxStart) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.digest("plan_digest", &r.PlanDigest)
	c.id("profile", &r.Profile)
	c.ring("ring", &r.Ring, false)
	c.id("run_id", &r.RunID)
	c.optID("session_id", &r.SessionID)
	c.optIDs("without", &r.Without)
}

// SandboxEnd is written when every process of the sandbox is dead (H-27). One that was started and has no end was cut off: the
// supervisor died, and the sandbox with it.
type SandboxEnd struct {
	AgentID    string // optional
	ExitCode   int64
	FailedStep string // optional: the launch step that failed
	PlanDigest Hash
	Refused    int64 // system calls refused by the supervisor
	RunID      string
	SessionID  string // optional
	State      string // code, as in the status file
	WallTimeNS int64
}

// Kind implements Record.
func (*SandboxEnd) Kind() Kind { return KindSandboxEnd }

func (r *SandboxEnd) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.count("exit_code", &r.ExitCode)
	c.optID("failed_step", &r.FailedStep)
	c.digest("plan_digest", &r.PlanDigest)
	c.count("refused", &r.Refused)
	c.id("run_id", &r.RunID)
	c.optID("session_id", &r.SessionID)
	c.code("state", &r.State)
	c.count("wall_time_ns", &r.WallTimeNS)
}

// Refusal is a kind of system call that the supervisor refused. Repeated calls of a kind are counted, not repeated: an
// agent could else fill the disk at 100 000 calls a second.
type Refusal struct {
	AgentID string // optional
	Class   string // optional: what of the arguments matters, as flags=CLONE_NEWUSER
	Count   int64  // since the last record of this kind of call
	RunID   string
	Syscall string
	Verdict string // the errno the agent got, as EPERM
}

// Kind implements Record.
func (*Refusal) Kind() Kind { return KindRefusal }

func (r *Refusal) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.optID("class", &r.Class)
	c.count("count", &r.Count)
	c.id("run_id", &r.RunID)
	c.id("syscall", &r.Syscall)
	c.id("verdict", &r.Verdict)
}

// Operator is an attestation that was presented, accepted or not (H-12).
type Operator struct {
	Accepted  bool
	Action    string    // what it is for
	ExpiresAt time.Time // optional: a refused one may have none that can be read
	KeyID     string    // optional likewise: of the witness
	Nonce     string    // optional likewise
	Reason    string    // code: accepted, or why not
	Statement Hash      // SHA-256 of what was presented
	Subject   string    // whom or what it is about
}

// Kind implements Record.
func (*Operator) Kind() Kind { return KindOperator }

func (r *Operator) fields(c *codec) {
	c.bool("accepted", &r.Accepted)
	c.id("action", &r.Action)
	c.optInstant("expires_at", &r.ExpiresAt)
	c.optID("key_id", &r.KeyID)
	c.optID("nonce", &r.Nonce)
	c.code("reason", &r.Reason)
	c.digest("statement", &r.Statement)
	c.id("subject", &r.Subject)
}

// Key is a key that came or went.
type Key struct {
	Event     string // code: created, trusted, retired
	KeyID     string
	PublicKey string // as its tool prints it; never the private one
	Purpose   string // code: audit_checkpoint, sre_witness
}

// Kind implements Record.
func (*Key) Kind() Kind { return KindKey }

func (r *Key) fields(c *codec) {
	c.code("event", &r.Event)
	c.id("key_id", &r.KeyID)
	c.id("public_key", &r.PublicKey)
	c.code("purpose", &r.Purpose)
}

// Repair accounts for bytes that are no entry: what a writer left that died, or ran out of disk, in the middle of a line.
// They stay where they are. Only the log writes it, straight behind them.
type Repair struct {
	File   string // as 000001.jsonl
	Length int64  // bytes from Offset to this entry
	Offset int64
	SHA256 Hash // of those bytes
}

// Kind implements Record.
func (*Repair) Kind() Kind { return KindRepair }

func (r *Repair) fields(c *codec) {
	c.id("file", &r.File)
	c.count("length", &r.Length)
	c.count("offset", &r.Offset)
	c.digest("sha256", &r.SHA256)
}

// Rotation is the last entry of a file and names the one in which the chain goes on. Only the log writes it.
type Rotation struct {
	Next string // as 000002.jsonl
}

// Kind implements Record.
func (*Rotation) Kind() Kind { return KindRotation }

func (r *Rotation) fields(c *codec) { c.id("next", &r.Next) }
