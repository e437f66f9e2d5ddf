// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

var _ link.Controls = (*Broker)(nil)

// noReason is the reason of an agent that gives none.
const noReason = "the agent gave no reason"

// Elevate implements link.Controls: an agent asks for a ring. Whether it has earned it is decided from the state (H-13). If its
// settings say so it then has it; else an operator is asked, and everything decided once more after the answer. To ask politely
// is no breach; how often is bounded by the agent's rate (H-16), and by elevationPace.
func (b *Broker) Elevate(ctx context.Context, r link.Elevation) (link.Elevated, error) {
	if err := r.Check(); err != nil {
		return link.Elevated{}, err
	}
	if b.over() {
		return notElevated(link.CodeCanceled, "the run has ended"), nil
	}
	if b.live.isStopped() {
		return notElevated(link.CodeStopped, stoppedText), nil
	}
	ring, _ := b.live.ring()
	l := b.adm.meter.Take(ring, 1)
	if l.Allowed && !b.takeFrom(&b.asking, elevationPace) {
		l = rings.RateResult{RetryAfter: time.Duration(float64(time.Second) / elevationPace.perSecond)}
	}
	b.remember(l)
	if !l.Allowed {
		no := notElevated(link.CodeRateLimited, "too many requests for a ring in "+ring.String())
		no.Next = "wait " + l.RetryAfter.String() + ", then ask again"
		return no, b.adm.alarm.refused.add(b.rateLimit(ApprovalElevation, rings.NoRing, 1))
	}
	if r.Reason == "" {
		r.Reason = noReason
	}
	req := ElevateRequest{Target: r.Target, TTL: r.TTL, Reason: r.Reason, By: AgentItself}
	a, err := b.control.Agent(ctx)
	if err != nil {
		return link.Elevated{}, err
	}
	if a.ID != "" && a.SelfElevation {
		return b.control.lend(ctx, req)
	}
	if err := b.control.look(ctx, req, true); err != nil {
		return elevated(rings.Elevation{}, err)
	}
	by, no, err := b.askForElevation(ctx, r)
	if err != nil || by == "" {
		return no, err
	}
	req.By = by
	return b.control.lend(ctx, req)
}

// elevationPace is how often a run may ask for a ring. Each request is up to three entries in the audit and one in the state, where
// it stays for a day: at the ring's rate alone one agent would put 400 000 of them before every operator's eyes.
var elevationPace = pace{burst: 10, perSecond: 0.1}

func (b *Broker) takeFrom(from *bucket, p pace) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return from.take(b.h.now(), p)
}

// askForElevation asks an operator; by is empty if none agreed.
func (b *Broker) askForElevation(ctx context.Context, r link.Elevation) (by string, no link.Elevated, err error) {
	ttl := min(r.TTL, rings.MaxElevation)
	if ttl <= 0 {
		ttl = rings.DefaultElevation
	}
	args, err := json.Marshal(struct {
		Reason string `json:"reason"`
		Target int    `json:"target_ring"`
		TTL    int64  `json:"ttl_seconds"`
	}{r.Reason, r.Target.Value(), int64(math.Ceil(ttl.Seconds()))})
	if err != nil {
		return "", no, err
	}
	digest := sha256.Sum256(args)
	a, err := b.approve(ctx, link.Approval{Tool: ApprovalElevation, Args: args, Digest: hex.EncodeToString(digest[:]), Reason: r.Reason, Wait: r.Wait}, ApprovalElevation)
	switch {
	case err != nil:
		return "", no, err
	case !a.Allowed || a.By == "":
		return "", notElevated(a.Code, a.Message), nil
	}
	return a.By, no, nil
}

// lend elevates for an agent's own request, and answers when the ring is there.
func (c *Control) lend(ctx context.Context, r ElevateRequest) (link.Elevated, error) {
	e, err := c.Elevate(ctx, r)
	if err == nil && c.opt.Settled != nil {
		c.opt.Settled(ctx)
		if c.Held(r, e.ID) != nil { // why is the host's business
			return notElevated(CodeUnapplied, "the ring was granted and could not be given"), nil
		}
	}
	return elevated(e, err)
}

func notElevated(code rings.Code, message string) link.Elevated {
	return link.Elevated{Code: code, Message: message, Next: cmp.Or(nexts[code], "go on in your ring, or tell the operator what you need")}
}

// elevated is the answer to a decision. A refusal whose record couldn't be written is still a refusal, with an error.
func elevated(e rings.Elevation, err error) (link.Elevated, error) {
	if d, ok := errors.AsType[*DeniedError](err); ok {
		return notElevated(d.Code, d.Reason), nil
	}
	if err != nil {
		return link.Elevated{}, err
	}
	return link.Elevated{Granted: true, Code: rings.CodeOK, ID: e.ID, Target: e.Target, Expires: e.ExpiresAt, TTL: e.TTL()}, nil
}

// nexts tell an agent what it may do after a refusal.
var nexts = map[rings.Code]string{
	rings.CodeInvalidTarget:      "ask for ring 1 or 2, if you are in a less privileged one",
	rings.CodeRing0Forbidden:     "ask for ring 1 or 2, if you are in a less privileged one",
	rings.CodeDuplicateElevation: "wait until the elevation there is has ended",
	link.CodeApproval:            "ask again with time to wait for an operator, or go on without",
	CodeInvalidReason:            "give a reason of at most 1024 bytes",
}

// Alarm implements link.Controls. A gateway may have fallen: it is believed only what is its own to see. It returns when the run
// has no rights any more and its kill is under way.
func (b *Broker) Alarm(_ context.Context, a link.Alarm) error {
	if err := a.Check(); err != nil {
		return err
	}
	if b.over() {
		return nil
	}
	detail := string(a.Reason)
	if a.Detail != "" {
		detail += ": " + a.Detail
	}
	b.control.killSoon(KillRequest{Reason: a.Reason, Action: a.Action, By: "tool proxy", Detail: detail})
	return nil
}
