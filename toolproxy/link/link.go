// SPDX-License-Identifier: Apache-2.0

// Package link is what the supervisor of a run and its gateway say to each other.
//
// The gateway is a process of its own (cmd/agentrun-gateway): it reads what a hostile agent sends, speaks to the world, and has
// no privilege. What needs one, or has to hold over all runs of a node, it asks of the supervisor: may this call go on
// (quarantine, ring, rate, concurrency), may it cost that much, does an operator approve, start that command in a sandbox,
// put this on record. The supervisor believes nothing of what the gateway says about who it is: one link belongs to one run.
//
// It fails closed: an answer that doesn't come, can't be read or has the zero value is a denial.
package link

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"agentrun/rings"
)

// Caller is the run that a gateway serves. It comes from the supervisor and never from a request (M-9, S-15).
type Caller struct {
	Run     string `json:"run"`
	Name    string `json:"name,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Session string `json:"session,omitempty"`
	Team    string `json:"team,omitempty"`
	Role    string `json:"role,omitempty"`
	Plan    string `json:"plan,omitempty"`
	Mode    string `json:"mode,omitempty"` // of the team: "public" or "confidential" (M-15)
	Key     *Key   `json:"key,omitempty"`  // that the run was started with (M-10, M-21); nil: with none
}

// Key is an agent's key, which the supervisor has looked at: whose it is, that it is signed, and that it was good at the start. While
// the run lives it refuses each call that comes when the key isn't good any more.
type Key struct {
	ID      string    `json:"id"`
	May     []string  `json:"may"` // capabilities, by their full names
	Expires time.Time `json:"expires"`
}

// Start is the first thing a supervisor tells its gateway.
type Start struct {
	Caller   Caller     `json:"caller"`
	Ring     rings.Ring `json:"ring"`
	Sockets  []string   `json:"sockets"`           // what the inherited descriptors are, in order: see Socket…
	Config   Config     `json:"config,omitzero"`   // gateway.yaml; zero: built-in defaults
	Names    Names      `json:"names,omitzero"`    // by which names are looked up; zero: as the host does
	Allow    []string   `json:"allow,omitempty"`   // --allow: egress entries beside the configuration's
	Tools    []string   `json:"tools,omitempty"`   // --tool: only these; empty: all that ring, plan and role give
	Policy   string     `json:"policy,omitempty"`  // --policy: file or folder of Cedar policies; empty: the built-in ones
	Metrics  string     `json:"metrics,omitempty"` // --metrics-addr on the host; empty: none
	Network  string     `json:"network,omitempty"` // where the profile lets a run of its ring out, if less than the ring would: none, allowlist
	MaxSteps int        `json:"max_steps"`         // tool calls of the run (M-3); 0 allows none
	// MaxModelCalls are calls of models; 0 allows none
	MaxModelCalls int       `json:"max_model_calls"`
	Ends          time.Time `json:"ends,omitzero"`     // when the run's time limit ends it, until Client.Ends says otherwise; zero: never, or not known
	Trace         string    `json:"trace,omitempty"`   // traceparent of the run's span
	LogDir        string    `json:"log_dir,omitempty"` // run logs (M-18); empty: none are kept
	Version       string    `json:"version"`           // of the supervisor: the two must be of one build
	UID           int       `json:"uid"`               // user and group to become; 0 is refused
	// BestEffort lets the gateway go on without a wall its host can't give, and say which (--best-effort).
	BestEffort bool `json:"best_effort,omitempty"`
	CA         CA   `json:"ca"` // empty: TLS is never intercepted
	// OfTool: the run is a tool's program, and reaches what Allow and the configuration let out. It has no tools and no models: it works
	// on an agent's words, may be a stranger's, and could call itself.
	OfTool bool `json:"of_tool,omitempty"`
	// Safety is the run's safety loop (S-15); nil: it has none.
	Safety *SafetyStart `json:"safety,omitempty"`
}

// Names are those that a container's engine gives it.
type Names struct {
	Resolv string `json:"resolv"` // the text of its resolv.conf(5)
	Hosts  string `json:"hosts"`  // of its hosts(5)
}

// WarnTime is how long before its end a run is warned of it (M-3).
const WarnTime = time.Minute

// EndsSoon returns how long a run that ends then has left; false as long as that is more than WarnTime, or never.
func EndsSoon(ends, now time.Time) (left time.Duration, soon bool) {
	left = max(ends.Sub(now), 0)
	return left, !ends.IsZero() && left <= WarnTime
}

// Config is gateway.yaml as the supervisor has read it. The gateway opens no file for it: what the sandbox was built with, what was
// checked and what decides are one text, whatever lies at its path by now.
type Config struct {
	Path string `json:"path,omitempty"` // for messages
	Text []byte `json:"text,omitempty"` // over a link it follows in messages of its own: it may be larger than one
	Size int    `json:"size,omitempty"` // of what follows
}

// Holds is the answer of a gateway's check that is true of every run which brings the same, as long as the files that it names
// are the same. Any other answer, and none, is about one run.
const Holds = "holds\n"

// CA signs the certificates of intercepted connections. It belongs to one run; only that run's root view trusts it.
type CA struct {
	Certificate []byte `json:"certificate,omitempty"` // DER
	Key         []byte `json:"key,omitempty"`         // PKCS #8, DER
}

// Names of inherited sockets, all made inside the run's network namespace.
const (
	SocketTools   = "tools"   // TCP, the tool gateway's fixed loopback address
	SocketUnix    = "unix"    // the same as a unix socket in the root view
	SocketProxy   = "proxy"   // TCP, forward proxy: HTTP and SOCKS5
	SocketCapture = "capture" // TCP, any address, a captured port: the destination is LocalAddr
	SocketDNS     = "dns"     // TCP
	SocketDNSUDP  = "dns-udp" // UDP
	SocketFD      = "fd"      // a connected stream the agent inherited (profile strict)
	SocketUDP     = "udp"     // UDP to anywhere, ring 1: the first of netns.RelaySockets
	SocketAnswers = "answers" // the others of them
)

// Check asks whether a call may go on, as far as the supervisor knows: quarantine, ring and rate (H-9, H-16, H-31),
// concurrency (H-11). A granted check holds one of the ring's places until the call's End.
type Check struct {
	Action rings.Action `json:"action"`           // as the ring enforcer takes it
	Held   bool         `json:"held,omitempty"`   // takes a place among the tools at once (H-11)
	Egress bool         `json:"egress,omitempty"` // a connection rather than a tool: no place, no rate
}

// Verdict is the supervisor's answer. The zero value denies.
type Verdict struct {
	Allowed bool          `json:"allowed"`
	Code    rings.Code    `json:"code"`
	Message string        `json:"message,omitempty"`
	Next    string        `json:"next,omitempty"`
	Retry   time.Duration `json:"retry,omitempty"` // when a denial for rate or concurrency may have passed
	Place   uint64        `json:"place,omitempty"` // to give back with End; 0: none
	Ring    rings.Ring    `json:"ring,omitzero"`   // at the time of the decision
}

// Spend asks for room in the budgets of run, day and plan (M-19). Amounts are in millionths of the unit plans are priced in.
type Spend struct {
	What     string `json:"what"`            // tool or model
	Place    uint64 `json:"place,omitempty"` // of the call's Verdict; 0: it holds none
	Estimate int64  `json:"estimate"`
	Tokens   int64  `json:"tokens,omitempty"`
}

// Reservation holds an estimate until it is settled by what it really cost. The zero value is a denial.
type Reservation struct {
	Allowed bool       `json:"allowed"`
	ID      uint64     `json:"id,omitempty"`
	Cap     int64      `json:"cap,omitempty"` // what may be spent at most under this reservation before the run or day is over its cap
	Code    rings.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	Next    string     `json:"next,omitempty"`
	Warning string     `json:"warning,omitempty"` // 80 % of a quota (M-19)
}

// Settle says what a call has cost so far, in all: a stream that goes on. The answer says whether it may.
type Settle struct {
	ID     uint64 `json:"id"`
	Cost   int64  `json:"cost"`
	Tokens int64  `json:"tokens,omitempty"`
}

// End closes one call. Its cost is booked, its one record made, and its place given back, in this order: as long as the record
// isn't made, the call is going on. It is one message because it is one fact: a gateway that dies has closed a call or has not.
type End struct {
	Place       uint64 `json:"place,omitempty"`       // 0: none is held
	Reservation uint64 `json:"reservation,omitempty"` // 0: nothing is reserved; else it is booked at the record's cost
	// Record is the call's. nil: it was nobody's call, as when an answer came after its asker had gone.
	Record *Record `json:"record,omitempty"`
	// Undo are the arguments with which what undoes the call is called (H-7), at most MaxUndo bytes; nil: it can't be undone.
	Undo json.RawMessage `json:"undo,omitempty"`
}

const (
	// MaxUndo bounds the arguments of an undo, in bytes: with a call's record they fit a frame.
	MaxUndo = 64 << 10
	// FlagUndoLost marks the record of a call whose tool declares an undo, and which can't be undone all the same: its result
	// lacks what the undo needs, or that could not be kept.
	FlagUndoLost = "undo_lost"
)

// Booked returns the record of a call whose booking was answered with a: where its cost found no room, the call didn't end well.
func (r Record) Booked(a Reservation) Record {
	if a.Allowed || r.Code != rings.CodeOK {
		return r
	}
	r.Code, r.Rule = CodeCost, "M-19"
	switch a.Code {
	case CodeQuota, CodeUnavailable, CodeCanceled:
		r.Code = a.Code
	}
	return r
}

// Budget is what is left to the run (`/internal/usage`). Negative: unlimited.
type Budget struct {
	Plan       string `json:"plan"`
	Steps      int64  `json:"steps_left"`
	RunCost    int64  `json:"run_cost_left"`
	DayCost    int64  `json:"day_cost_left"`
	RunSpent   int64  `json:"run_cost_spent"`
	DaySpent   int64  `json:"day_cost_spent"`
	RunTokens  int64  `json:"run_tokens"`
	Warning    string `json:"warning,omitempty"`
	Multiplier string `json:"multiplier,omitempty"`
}

// Record is one call or connection, after its end: exactly one for each decision. No arguments, no contents (M-18).
type Record struct {
	Kind     string        `json:"kind"`           // "tool", "llm", "egress", "dns"
	Name     string        `json:"name"`           // tool, model, or host:port
	Args     string        `json:"args,omitempty"` // SHA-256 of the canonical arguments, hex
	Allowed  bool          `json:"allowed"`
	Code     rings.Code    `json:"code"`              // ok, or why not
	Rule     string        `json:"rule,omitempty"`    // what decided
	Detail   string        `json:"detail,omitempty"`  // class of what was refused; no contents
	Address  string        `json:"address,omitempty"` // that a refused name leads to, where that decided
	Cost     int64         `json:"cost,omitempty"`
	Tokens   int64         `json:"tokens,omitempty"`
	Prompt   int64         `json:"prompt_tokens,omitempty"` // of Tokens
	Sent     int64         `json:"sent,omitempty"`          // bytes to upstream
	Received int64         `json:"received,omitempty"`      // bytes from upstream
	Took     time.Duration `json:"took"`
	Count    int64         `json:"count"`            // of like events gathered in this record; at least 1
	Weight   rings.Ring    `json:"weight,omitempty"` // ring that the refused thing belongs to; feeds the breach detector
	Action   string        `json:"action,omitempty"` // of a refused call: its action's id, and the ring that this requires
	Required rings.Ring    `json:"required_ring,omitempty"`
	// Reversibility of what was refused, with Weight (H-8); empty: a connection, or what only reads.
	Reversibility rings.Reversibility `json:"reversibility,omitempty"`
	Approval      string              `json:"approval,omitempty"`
	TraceID       string              `json:"trace_id,omitempty"`
	Flags         []string            `json:"flags,omitempty"` // "suspicious_input", "reasoning_stripped", …
	// Call is the call's id, and UndoUntil is until when it can be undone (H-7), zero if it can't. Both are the supervisor's own.
	Call      string    `json:"-"`
	UndoUntil time.Time `json:"-"`
}

// Approval asks an operator (M-11, category D). It is bound to these very arguments and to this call.
type Approval struct {
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args"`   // canonical, secrets and personal data masked: what the operator sees
	Digest string          `json:"digest"` // SHA-256 of the canonical arguments as they are, hex
	Reason string          `json:"reason,omitempty"`
	Wait   time.Duration   `json:"wait"` // how long the call may wait for an answer
}

// Approved is the answer. The zero value is a refusal.
type Approved struct {
	Allowed bool       `json:"allowed"`
	ID      string     `json:"id,omitempty"`
	By      string     `json:"by,omitempty"` // "standing grant", or the operator's user id
	Code    rings.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// Command is an operator's program for a tool. Gateways name them once, before they read anything of an agent's; the
// supervisor starts no other.
type Command struct {
	Tool      string   `json:"tool"`
	Argv      []string `json:"argv"`
	Ring      int      `json:"ring"` // of the sandbox it runs in; 0: 3
	Profile   string   `json:"profile,omitempty"`
	Env       []string `json:"env,omitempty"`
	Memory    string   `json:"memory,omitempty"` // as --memory
	Timeout   string   `json:"timeout,omitempty"`
	Workspace string   `json:"workspace,omitempty"`
	ROBind    []string `json:"ro_bind,omitempty"`
	Allow     []string `json:"allow,omitempty"`
}

// Process is a command running in a sandbox of its own. Close kills it and waits until nothing is left.
type Process interface {
	Stdin() *os.File
	Stdout() *os.File
	// Wait returns the exit code when it has ended, and what agentrun said about it ("" if it just exited).
	Wait(ctx context.Context) (code int, why string, err error)
	Close() error
}

// Supervisor is what a gateway may ask. Implementations answer with the zero value beside every error.
type Supervisor interface {
	Check(ctx context.Context, c Check) (Verdict, error)
	Reserve(ctx context.Context, s Spend) (Reservation, error)
	Settle(ctx context.Context, s Settle) (Reservation, error)
	// End returns what booking said; the error is that the record couldn't be made. Place and reservation are given back in any case.
	End(ctx context.Context, e End) (Reservation, error)
	Budget(ctx context.Context) (Budget, error)
	// Record is for what is no call: connections, names, requests that were refused before they were one.
	Record(ctx context.Context, r Record) error
	Approve(ctx context.Context, a Approval) (Approved, error)
	Execute(ctx context.Context, tool string) (Process, error)
	// Ring is the run's effective ring now. Changed is closed when it is no longer that, and so at the run's end.
	Ring() (ring rings.Ring, changed <-chan struct{})
}
