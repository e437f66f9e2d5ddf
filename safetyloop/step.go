// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentrun/rings"
)

// kind of a verdict. The zero value is none, and nothing goes on with it.
type kind uint8

const (
	noVerdict kind = iota
	goOn
	pause      // until somebody confirms
	mustVerify // until somebody verifies out of band
	halt       // stopped
)

func (k kind) String() string { return [...]string{"none", "continue", "pause", "verify", "stop"}[k] }

// Tiers (S-6).
const (
	tierAdvisory = "advisory"
	tierConfirm  = "confirm"
	tierVerify   = "verify"
	tierDanger   = "danger_zone"
)

// tierOf draws the lines of S-6. What can't be judged is at least confirm (S-7).
func tierOf(score int, vague bool) string {
	switch {
	case score > 85:
		return tierDanger
	case score > 60:
		return tierVerify
	case score > 30 || vague:
		return tierConfirm
	}
	return tierAdvisory
}

// verdict is what the evaluator says of a step.
type verdict struct {
	kind    kind
	stage   string // limit, outcome, judge, pattern, tier, tolerance, none; block and verification before the evaluator
	reason  string
	factors []string
	tier    string
	score   int
	judged  bool // score and what follows are of a judgement
	pattern string
	added   []Factor
	verb    string
	target  string
	final   bool // nobody can confirm it away
}

// stepDigest is what a confirmation or verification of a step is bound to. Spaces, tabs and line feeds are folded and nothing else: to an
// operator who approves deleting /data, /Data is another folder, and what stands behind a # ends with its line and runs nothing. Other
// characters that end a line or part words on a screen are letters to a shell.
func stepDigest(element, hint string) digest {
	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(hint, "\r\n", "\n"), "\n") {
		if words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' }); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return digestOf(opStep, element, strings.Join(lines, "\n"))
}

// step serves record_execution_step.
func (l *Loop) step(ctx context.Context, call Call, v values, p *principal) Reply {
	op := operation(opStep)
	element := v.text(pElement)
	if l.asks(call.Caller, op, p) {
		if r, stopped := l.deniedOutright(ctx, call, v, p); stopped {
			return r
		}
	}
	if refused := l.permit(ctx, call, op, v, p); refused != nil {
		return l.refuse(ctx, call, element, refused)
	}
	e, refused := l.ensure(p, call.Caller, element)
	if refused != nil {
		return l.refuse(ctx, call, element, refused)
	}
	if l.set.Mode == Monitoring {
		return l.monitor(ctx, call, v, p, e)
	}
	if c := l.pendingVerification(call.Caller, element); c != nil {
		return l.stillPaused(ctx, call, v, e, c)
	}
	var by *token
	bound := stepDigest(element, v.text(pHint))
	if text := v.text(pToken); text != "" {
		if by, refused = l.use(ctx, call.Caller, forPause, opStep, bound, text); refused != nil {
			return l.refuse(ctx, call, element, refused)
		}
	}
	verified := l.takeApproval(p, bound)
	l.noteOutcome(p, e, v.text(pOutcome), by != nil || verified)
	got := l.evaluate(ctx, call.Caller, v, p, e, by != nil || verified, verified)
	l.observe(got.stage, got.kind.String())
	switch got.kind {
	case goOn:
		return l.goOn(ctx, call, v, p, e, got, by)
	case mustVerify:
		return l.pauseForVerification(ctx, call, v, p, e, got, by)
	case halt:
		return l.halt(ctx, call, v, p, e, got, by)
	}
	return l.pause(ctx, call, v, e, got, by)
}

// deniedOutright is the Gatekeeper's third layer where the fourth would ask: nobody is asked to confirm what a deny pattern stops.
func (l *Loop) deniedOutright(ctx context.Context, call Call, v values, p *principal) (Reply, bool) {
	j, err := l.judge(ctx, l.own(call.Caller, v.text(pElement)).Judge, v.text(pHint))
	if err != nil || j.Rule != RuleDeny {
		return Reply{}, false
	}
	e, refused := l.ensure(p, call.Caller, v.text(pElement))
	if refused != nil {
		return Reply{}, false
	}
	got := l.score(call.Caller, v, j, 0).denied()
	l.observe(got.stage, got.kind.String())
	return l.halt(ctx, call, v, p, e, got, nil), true
}

// noteOutcome remembers how the step before went (S-6, stage 2). A failure holds its execution until a human has let a step pass:
// a pause that the next call could talk away by leaving the outcome out would be none.
func (l *Loop) noteOutcome(p *principal, e *execution, outcome string, approved bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if approved {
		// The repeated call tells the same outcome again; it has been counted.
		e.run.failed = false
		if e.run.steps >= e.limit() {
			e.run.steps = 0
		}
		return
	}
	if outcome == "" || outcome == "skipped" {
		return
	}
	p.outcomes = append(p.outcomes, outcome == outcomeFailure)
	if len(p.outcomes) > maxOutcomes {
		p.outcomes = p.outcomes[1:]
	}
	if outcome == outcomeFailure {
		e.run.failed = true
	}
}

// evaluate asks the five stages in their order; the first that doesn't let go on has said it (S-6). approved is a human's word for
// this very step: it answers what a human could be asked, and neither a deny pattern nor the danger zone; the verify tier it answers
// only where the word came with a code.
func (l *Loop) evaluate(ctx context.Context, c Caller, v values, p *principal, e *execution, approved, verified bool) verdict {
	steps, limit, failed, failures := l.history(p, e)
	if steps >= limit && !approved {
		return verdict{kind: pause, stage: "limit", reason: "The step limit is reached", factors: []string{fmt.Sprintf("step limit: %d of %d autonomous steps", steps, limit)}}
	}
	if failed && !approved {
		return verdict{kind: pause, stage: "outcome", reason: "A step has failed", factors: []string{"previous outcome: failure"}}
	}
	j, err := l.judge(ctx, e.own.Judge, v.text(pHint))
	if err != nil {
		return verdict{kind: pause, stage: "judge", final: true, reason: "The step couldn't be judged", factors: []string{"no judgement: " + err.Error()}}
	}
	got := l.score(c, v, j, failures)
	switch j.Rule {
	case RuleDeny:
		return got.denied()
	case RuleRequiresApproval:
		if got.tier == tierAdvisory {
			got.tier = tierConfirm
		}
		if !approved {
			return got.as(pause, "pattern", "Action requires approval", "pattern requiresApproval: "+j.Pattern)
		}
		got.factors = append(got.factors, "pattern requiresApproval: "+j.Pattern+", approved")
	case RuleAutoApprove:
		return got.as(goOn, "pattern", "", "pattern autoApprove: "+j.Pattern)
	}
	line := fmt.Sprintf("score %d: %s", got.score, got.tier)
	switch {
	case got.tier == tierDanger:
		return got.as(halt, "tier", "The action is in the danger zone", line)
	case got.tier == tierVerify && !verified:
		return got.as(mustVerify, "tier", "The action must be verified out of band", line)
	case got.tier == tierConfirm && !approved: // of the score: a pattern's approval was asked for above
		return got.as(pause, "tier", "The action must be confirmed", line)
	}
	if t := e.own.Tolerance; got.score > t.Score() && !approved {
		return got.as(pause, "tolerance", "The score is above the tolerance", fmt.Sprintf("score %d above %s %d", got.score, t, t.Score()))
	}
	return got.as(goOn, "none", "", line)
}

func (v verdict) as(k kind, stage, reason, factor string) verdict {
	v.kind, v.stage, v.reason = k, stage, reason
	v.factors = append([]string{factor}, v.factors...)
	return v
}

func (v verdict) denied() verdict {
	v.tier = tierDanger
	return v.as(halt, "pattern", "A deny pattern matches", "pattern deny: "+v.pattern)
}

func (l *Loop) history(p *principal, e *execution) (steps, limit int, failed bool, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range p.outcomes {
		if f {
			failures++
		}
	}
	return e.run.steps, e.limit(), e.run.failed, failures
}

var errJudgement = errors.New("what was given is no judgement")

// judge asks, and believes nothing that can't be: it may be another process, with less to lose.
func (l *Loop) judge(ctx context.Context, judge Judge, hint string) (Judgement, error) {
	ctx, cancel := context.WithTimeout(ctx, judgeTime)
	defer cancel()
	j, err := judge.Judge(ctx, hint)
	switch {
	case err != nil:
		l.observe("judge", "error")
		return Judgement{}, errors.New("the judge isn't there") // its own words may be an operator's business
	case j.Rule <= RuleInvalid || j.Rule > RuleDeny || j.Score < 0 || j.Score > 100:
		l.observe("judge", "invalid")
		return Judgement{}, errJudgement
	}
	j.Pattern = shown(j.Pattern, 256)
	j.Factors = slices.Clone(j.Factors[:min(len(j.Factors), 32)])
	for i := range j.Factors {
		f := &j.Factors[i]
		f.Name, f.Detail = shown(f.Name, 64), shown(f.Detail, 128)
	}
	return j, nil
}

// score adds to the hint's own score what the loop knows (S-7): the ring, recent failures, and the caller's assessment, which can
// only raise it.
func (l *Loop) score(c Caller, v values, j Judgement, failures int) verdict {
	added := j.Factors
	total := j.Score
	add := func(name string, points int, detail string) {
		if points > 0 {
			added = append(added[:len(added):len(added)], Factor{Name: name, Points: points, Detail: detail})
			total += points
		}
	}
	add("ring", ringPoints(c.Ring), c.Ring.String())
	add("recent_failures", min(5*failures, 20), fmt.Sprintf("%d of the last %d outcomes", failures, maxOutcomes))
	if own, given := v.number(pRisk); given && own > total {
		add("own_assessment", own-total, "the caller's own")
	}
	total = min(total, 100)
	got := verdict{judged: true, score: total, tier: tierOf(total, j.Vague), pattern: j.Pattern, added: added, verb: j.Verb, target: j.Target}
	for _, f := range added {
		got.factors = append(got.factors, fmt.Sprintf("%s +%d: %s", f.Name, f.Points, f.Detail))
	}
	if j.Vague {
		got.factors = append(got.factors, "vague: no verb or no target to judge")
	}
	return got
}

// ringPoints: what an agent may do in its ring is what a wrong step of it can do. Without a ring (the dongle) nothing is known.
func ringPoints(r rings.Ring) int {
	switch r {
	case rings.Root:
		return 20
	case rings.Privileged:
		return 10
	case rings.Standard:
		return 5
	}
	return 0
}

func (l *Loop) directive(e *execution, got verdict) Directive {
	l.mu.Lock()
	left := max(e.limit()-e.run.steps, 0)
	l.mu.Unlock()
	return Directive{Factors: got.factors, Reason: got.reason, StepsRemaining: &left, NextStepRisk: got.tier, Notifications: l.pull(e)}
}

func (l *Loop) goOn(ctx context.Context, call Call, v values, p *principal, e *execution, got verdict, by *token) Reply {
	if err := l.recordStep(ctx, call.Caller, v, got, "", by); err != nil {
		return failed(unrecorded())
	}
	l.mu.Lock()
	e.run.steps++
	l.mu.Unlock()
	l.intend(p, call.Caller, v, got)
	d := l.directive(e, got)
	d.Continue = true
	return succeed(d)
}

// pause answers continue=false with the token that somebody else may confirm.
func (l *Loop) pause(ctx context.Context, call Call, v values, e *execution, got verdict, by *token) Reply {
	note := notePause
	if got.stage == "pattern" {
		note = notePermission
	}
	data := map[string]any{"operation": opStep, "level": confirmOnce, "stage": got.stage}
	if !got.final {
		t, err := l.ask(ctx, call.Caller, request{
			scope: forPause, operation: opStep, element: v.text(pElement), bound: boundTo(opStep, v), summary: v.text(pHint), reason: reasonOf(got),
		})
		switch {
		case errors.Is(err, ErrBusy):
			got.factors = append(got.factors, "too many confirmations wait: none was asked for")
		case err != nil:
			return failed(unrecorded())
		default:
			data = pendingData(opStep, confirmOnce, t)
			data["stage"] = got.stage
		}
	}
	if err := l.recordStep(ctx, call.Caller, v, got, "", by); err != nil {
		return failed(unrecorded())
	}
	d := l.directive(e, got)
	d.Notifications = append(d.Notifications, l.note(note, got.reason, data))
	return succeed(d)
}

// monitor evaluates and stops nobody (S-14).
func (l *Loop) monitor(ctx context.Context, call Call, v values, p *principal, e *execution) Reply {
	l.noteOutcome(p, e, v.text(pOutcome), false)
	got := l.evaluate(ctx, call.Caller, v, p, e, false, false)
	l.observe(got.stage, got.kind.String())
	if err := l.recordStep(ctx, call.Caller, v, got, "", nil); err != nil {
		return failed(unrecorded())
	}
	l.mu.Lock()
	e.run.failed = false
	e.run.steps++
	l.mu.Unlock()
	if got.kind != goOn {
		got.factors = append([]string{fmt.Sprintf("monitoring: would be %s at stage %s", got.kind, got.stage)}, got.factors...)
	}
	d := l.directive(e, got)
	d.Continue = true
	return succeed(d)
}
