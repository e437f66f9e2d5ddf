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

	"agentrun/internal/read"
	"agentrun/rings"
)

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

func elevate(ctx context.Context, body []byte, s Supervisor) (Elevated, error) {
	c, ok := s.(Controls)
	if !ok {
		return Elevated{}, errNoControls
	}
	e, err := decodeControl[Elevation](body)
	if err != nil {
		return Elevated{}, err
	}
	return c.Elevate(ctx, e)
}

func alarm(ctx context.Context, body []byte, s Supervisor) error {
	c, ok := s.(Controls)
	if !ok {
		return errNoControls
	}
	a, err := decodeControl[Alarm](body)
	if err != nil {
		return err
	}
	return c.Alarm(ctx, a)
}

// decodeControl reads strictly: a field that this build doesn't know could be what a grant hangs on.
func decodeControl[Q interface{ Check() error }](body []byte) (Q, error) {
	var q, none Q
	if err := read.Exactly(body, &q); err != nil {
		return none, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	if err := q.Check(); err != nil {
		return none, err
	}
	return q, nil
}
