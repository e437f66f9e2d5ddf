// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// alarms tell the supervisor that the run has to be killed (H-23). What sounds them refuses all calls from then on by itself, so that
// an alarm that isn't heard leaves an agent without tools, not one that goes on.
type alarms struct {
	to  link.Controls // nil: nobody kills
	log *slog.Logger
}

// controlsOf is the supervisor as one whose ring changes; nil: it isn't one.
func controlsOf(s link.Supervisor) link.Controls {
	c, _ := s.(link.Controls)
	return c
}

// oneLine makes a detail one that the link takes: a policy without id is called by its file, whose name may be anything.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > link.MaxDetail {
		s = strings.ToValidUTF8(s[:link.MaxDetail], "")
	}
	return s
}

// An alarm that isn't taken is sounded again, at most that often: the supervisor may be writing its audit just now.
const (
	alarmTries = 5
	alarmPause = time.Second
)

// violation returns when the kill has begun, or ctx's time is up: the agent hears of the refusal afterwards.
func (a *alarms) violation(ctx context.Context, v gate.Violation) {
	detail := "the remote policy decision point calls it critical"
	if v.Policy != "" {
		detail = "policy " + v.Policy
	}
	a.sound(ctx, link.Alarm{Reason: rings.KillPolicyViolation, Action: v.Action, Detail: detail})
}

func (a *alarms) tripped(ctx context.Context, detail string) {
	a.sound(ctx, link.Alarm{Reason: rings.KillCircuitBreaker, Detail: detail})
}

func (a *alarms) sound(ctx context.Context, alarm link.Alarm) {
	alarm.Detail = oneLine(alarm.Detail)
	if a.to == nil {
		a.log.Error("alarm: nobody kills this run", "reason", alarm.Reason, "action", alarm.Action, "detail", alarm.Detail)
		return
	}
	for try := 1; ; try++ {
		err := a.to.Alarm(ctx, alarm)
		if err == nil {
			return
		}
		a.log.Error("alarm not taken", "reason", alarm.Reason, "action", alarm.Action, "detail", alarm.Detail, "error", err)
		if try == alarmTries || ctx.Err() != nil || errors.Is(err, link.ErrGone) || errors.Is(err, link.ErrControl) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(alarmPause):
		}
	}
}
