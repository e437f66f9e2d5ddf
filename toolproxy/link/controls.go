// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentrun/rings"
)

// Elevation is an agent's own request for a ring on loan (H-13). Who asks is known; what it says of itself isn't asked for.
type Elevation struct {
	Target rings.Ring    `json:"target_ring"`
	TTL    time.Duration `json:"ttl,omitempty"`    // 0: 300 s
	Reason string        `json:"reason,omitempty"` // for operators, masked; at most 1024 bytes
	Wait   time.Duration `json:"wait,omitempty"`   // how long it may wait for an operator, where one has to agree; 0: not at all
}

// Elevated is the answer. The zero value is a refusal.
type Elevated struct {
	Granted bool          `json:"granted"`
	Code    rings.Code    `json:"code"`
	Message string        `json:"message,omitempty"`
	Next    string        `json:"next,omitempty"`
	ID      string        `json:"elevation_id,omitempty"`
	Target  rings.Ring    `json:"target_ring,omitzero"`
	Expires time.Time     `json:"expires_at,omitzero"`
	TTL     time.Duration `json:"ttl,omitempty"` // as granted
}

// Alarm says that the run must be killed (H-23): its tools fail too often (circuit_breaker), or a policy calls what it tried a
// critical violation (policy_violation). Other reasons are not a gateway's to give.
type Alarm struct {
	Reason rings.KillReason `json:"reason"`
	Action string           `json:"action,omitempty"` // what triggered it, as tool.shell.invoke
	Detail string           `json:"detail,omitempty"` // for people; no contents
}

// Controls is what a Supervisor has beside the rest if the run's ring can change and its agent can be killed. One without it
// answers both with an error.
type Controls interface {
	Elevate(ctx context.Context, e Elevation) (Elevated, error)
	// Alarm returns when the kill has begun.
	Alarm(ctx context.Context, a Alarm) error
}

// Bounds of what a gateway may say about elevations and alarms.
const (
	MaxReason = 1024            // bytes of Elevation.Reason
	MaxWait   = 5 * time.Minute // as long as an operator is ever waited for (M-11)
	MaxDetail = 1024            // bytes of Alarm.Detail
	MaxAction = 256             // bytes of Alarm.Action
)

// ErrControl is a request for an elevation, or an alarm, that can't be.
var ErrControl = errors.New("link: impossible elevation or alarm")

// Check holds a request to its form, whoever sent it: a gateway may have been taken over. It says nothing about whether the ring
// may be had: ring 0 passes, for the supervisor has a refusal of its own for it (H-13). A longer TTL than H-14 allows passes too:
// the supervisor cuts it.
func (e Elevation) Check() error {
	bad := func(what string) error { return fmt.Errorf("%w: elevation: %s", ErrControl, what) }
	switch {
	case !e.Target.Valid():
		return bad("no target ring")
	case e.TTL < 0:
		return bad("negative time to live")
	case e.Wait < 0 || e.Wait > MaxWait:
		return bad("wait out of bounds")
	case !oneLine(e.Reason, MaxReason):
		return bad("reason too long, or not one line of text")
	}
	return nil
}

// Check holds an alarm to its form. A gateway has two reasons to give; another one in the audit would be a lie about who asked.
func (a Alarm) Check() error {
	bad := func(what string) error { return fmt.Errorf("%w: alarm: %s", ErrControl, what) }
	switch {
	case a.Reason != rings.KillCircuitBreaker && a.Reason != rings.KillPolicyViolation:
		return bad("not a gateway's reason")
	case a.Action != "" && (len(a.Action) > MaxAction || rings.CheckAgentID(a.Action) != nil):
		return bad("action is no identifier")
	case !oneLine(a.Detail, MaxDetail):
		return bad("detail too long, or not one line of text")
	}
	return nil
}

// oneLine keeps out what an operator's terminal would obey, and marks that make a line read otherwise than it is written.
func oneLine(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) < 0
}

// Elevate implements Controls. What may have happened when ctx ended isn't known: Ring tells.
func (l *Client) Elevate(ctx context.Context, e Elevation) (Elevated, error) {
	if err := e.Check(); err != nil {
		return Elevated{}, err
	}
	a, err := asked[Elevated](ctx, l, opElevate, e, nil)
	if err != nil {
		return Elevated{}, err
	}
	if a.Granted && (a.Code != rings.CodeOK || a.ID == "" || !a.Target.Valid() || a.Expires.IsZero()) {
		return Elevated{}, fmt.Errorf("%w: answer to %s: granted, but not what", ErrFrame, opElevate)
	}
	return a, nil
}

// Alarm implements Controls.
func (l *Client) Alarm(ctx context.Context, a Alarm) error {
	if err := a.Check(); err != nil {
		return err
	}
	_, err := asked[struct{}](ctx, l, opAlarm, a, nil)
	return err
}

var _ Controls = (*Client)(nil)

var errNoControls = errors.New("the ring of this run can't change, and nobody kills it from here")
