// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"agentrun/safetyloop/judge"
)

// SafetyStart is what a gateway has to know about the safety loop of its run (S-14, S-15). Nil in Start: none is offered, and the
// Supervisor's Safeties refuse.
type SafetyStart struct {
	Mode string `json:"mode"` // as judge.ParseMode reads it: enforcing, monitoring, logging; never disabled
	// RequireIntent lets a tool call pass only if Intent finds the approved step that it matches.
	RequireIntent bool `json:"require_intent,omitempty"`
	// Policy is the policy file on the host; empty: gateway.yaml's, and without one patterns of none.
	Policy string `json:"policy,omitempty"`
	// Workspace is the agent's own folder as its hints name it, for the judge; empty: there is none.
	Workspace string `json:"workspace,omitempty"`
}

// Safety is one request of the agent's to the safety loop. Who asks follows from the link; there is no field for it.
type Safety struct {
	Endpoint  string // CREATE, READ, EXECUTE, or ANY where the operation alone decides
	Operation string
	Params    json.RawMessage // an object, as the agent sent it; empty counts as {}. At most MaxSafetyParams
	// Judgement is of the step's hint, or of an EXECUTE operation (judge.OperationHint); nil with every other operation. A step without
	// one can't be judged, and pauses; an operation without one waits for an operator.
	Judgement *judge.Judgement
	// Judged is HintSum of the hint that Judgement is of; it goes with one. The supervisor reads the parameters itself: two readers
	// of one JSON that find two hints in it must not end with a judgement of the harmless one.
	Judged string
}

// HintSum names a hint: its SHA-256, hexadecimal.
func HintSum(hint string) string {
	sum := sha256.Sum256([]byte(hint))
	return hex.EncodeToString(sum[:])
}

// Safeties is what a Supervisor has beside the rest if its run has a safety loop. One without it answers all three with an error.
type Safeties interface {
	// Safety returns the loop's answer as JSON (S-1: success with data or error), its refusals included. It is never empty without an
	// error.
	Safety(ctx context.Context, s Safety) (json.RawMessage, error)
	// Intent consumes the approved step that a tool call must match (S-15). tool and target are the call's own, as it is going to be
	// carried out; target is empty where there is none. ErrStopped, ErrNoIntent, or another error: the call is refused.
	Intent(ctx context.Context, tool, target string) error
	// Blocked tells whether the agent is stopped: nil, ErrStopped, or an error that means the same.
	Blocked(ctx context.Context) error
}

// Answers of Intent and Blocked that a gateway tells apart. They cross the link.
var (
	ErrStopped  = errors.New("the safety loop has stopped the agent")
	ErrNoIntent = errors.New("no approved step matches the call")
)

// Bounds of what a gateway may send to a safety loop. With them and Params in base64 a request always fits a frame.
const (
	MaxSafetyParams = 64 << 10 // bytes of Params; the loop's own bound
	MaxSafetyWord   = 64       // bytes of Operation
	MaxSafetyTarget = 4096     // bytes of Intent's tool and target, and of a Judgement's verb and target, each
	maxJudged       = 1024     // bytes of each other text of a Judgement
	maxFactors      = 64
)

// ErrSafety is a request to a safety loop that can't be.
var ErrSafety = errors.New("link: impossible request to the safety loop")

// Check holds a request to its form, whoever sent it: a gateway may have been taken over. What the operation is, and whether its
// parameters are right, is the loop's to say.
func (s Safety) Check() error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrSafety, what) }
	switch {
	case !slices.Contains([]string{"CREATE", "READ", "EXECUTE", "ANY"}, s.Endpoint):
		return bad("no endpoint")
	case s.Operation == "" || len(s.Operation) > MaxSafetyWord || !utf8.ValidString(s.Operation):
		return bad("no operation")
	case len(s.Params) > MaxSafetyParams:
		return bad("parameters too long")
	case (s.Judgement != nil) != (s.Judged != "") || s.Judged != "" && len(s.Judged) != hex.EncodedLen(sha256.Size):
		return bad("a judgement goes with the sum of its hint")
	case s.Judgement != nil && !judged(s.Judgement):
		return bad("what was given is no judgement")
	}
	return nil
}

// judged holds the size of a judgement; the loop itself checks what it says.
func judged(j *judge.Judgement) bool {
	if len(j.Pattern) > maxJudged || len(j.Verb) > MaxSafetyTarget || len(j.Target) > MaxSafetyTarget || len(j.Factors) > maxFactors {
		return false
	}
	for _, f := range j.Factors {
		if len(f.Name) > maxJudged || len(f.Detail) > maxJudged {
			return false
		}
	}
	return j.Rule > judge.RuleInvalid && j.Rule <= judge.RuleDeny && j.Score >= 0 && j.Score <= 100
}

// safetyAsk is a Safety on the wire. The parameters are in base64: as JSON within JSON, each < of theirs would become six bytes, and
// a hint of the length that S-5 allows would not fit a frame.
type safetyAsk struct {
	Endpoint  string           `json:"endpoint"`
	Operation string           `json:"operation"`
	Params    []byte           `json:"params,omitempty"`
	Judgement *judge.Judgement `json:"judgement,omitempty"`
	Judged    string           `json:"judged,omitempty"`
}

func (a safetyAsk) safety() Safety {
	return Safety{Endpoint: a.Endpoint, Operation: a.Operation, Params: a.Params, Judgement: a.Judgement, Judged: a.Judged}
}

// Check implements what decode asks.
func (a safetyAsk) Check() error { return a.safety().Check() }

// intentAsk is a tool call that wants its approved step.
type intentAsk struct {
	Tool   string `json:"tool"`
	Target string `json:"target,omitempty"`
}

// Check implements what decode asks.
func (a intentAsk) Check() error {
	if a.Tool == "" || len(a.Tool) > MaxSafetyTarget || len(a.Target) > MaxSafetyTarget || !utf8.ValidString(a.Tool+a.Target) {
		return fmt.Errorf("%w: a call without a tool, or with a target too long", ErrSafety)
	}
	return nil
}

// safetyAnswer is to intent and blocked. The zero value refuses.
type safetyAnswer struct {
	Allowed bool   `json:"allowed"`
	Stopped bool   `json:"stopped,omitempty"`
	Missing bool   `json:"missing,omitempty"` // no step matches
	Message string `json:"message,omitempty"` // of another error
}

func answerOf(err error) safetyAnswer {
	switch {
	case err == nil:
		return safetyAnswer{Allowed: true}
	case errors.Is(err, ErrStopped):
		return safetyAnswer{Stopped: true}
	case errors.Is(err, ErrNoIntent):
		return safetyAnswer{Missing: true}
	}
	return safetyAnswer{Message: err.Error()}
}

func (a safetyAnswer) err() error {
	switch {
	case a.Stopped:
		return ErrStopped
	case a.Missing:
		return ErrNoIntent
	case !a.Allowed:
		return fmt.Errorf("supervisor: safety loop: %s", a.Message)
	}
	return nil
}

// Safety implements Safeties. What came of a step when ctx ended isn't known.
func (l *Client) Safety(ctx context.Context, s Safety) (json.RawMessage, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	reply, err := asked[json.RawMessage](ctx, l, opSafety, safetyAsk{s.Endpoint, s.Operation, s.Params, s.Judgement, s.Judged}, nil)
	if err != nil {
		return nil, err
	}
	var r struct {
		Success *bool `json:"success"`
	}
	if json.Unmarshal(reply, &r) != nil || r.Success == nil {
		return nil, fmt.Errorf("%w: answer to %s", ErrFrame, opSafety)
	}
	return reply, nil
}

// Intent implements Safeties.
func (l *Client) Intent(ctx context.Context, tool, target string) error {
	q := intentAsk{tool, target}
	if err := q.Check(); err != nil {
		return err
	}
	a, err := asked[safetyAnswer](ctx, l, opIntent, q, nil)
	if err != nil {
		return err
	}
	return a.err()
}

// Blocked implements Safeties.
func (l *Client) Blocked(ctx context.Context) error {
	a, err := asked[safetyAnswer](ctx, l, opBlocked, nil, nil)
	if err != nil {
		return err
	}
	return a.err()
}

var _ Safeties = (*Client)(nil)

var errNoSafety = errors.New("this run has no safety loop")

// safetyReply: one too long for a frame must not end the link.
func safetyReply(reply json.RawMessage, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(reply)
	if err != nil {
		return nil, fmt.Errorf("safety loop: answer: %w", err)
	}
	if len(b) > MaxFrame-1024 {
		return nil, fmt.Errorf("safety loop: answer of %d bytes", len(b))
	}
	return reply, nil
}
