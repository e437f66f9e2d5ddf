// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/meter"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// Request is a run that somebody asks for.
type Request struct {
	Agent   string     // empty: the operator's own run, in the ring that the operator names
	Session string     // empty: none; needs Agent
	Run     string     // its id, for the record; empty: it has none yet
	Ring    rings.Ring // NoRing: what the agent's score gives; without agent ring 3
	Sandbox string     // kept, whose run it is; empty: none's
	Again   bool       // nobody but the sandbox itself asks for it

	Expect governance.Estimate // what its caller expects it to use (M-19)
	Tools  []string            // the only ones it is given; empty: all that its plan has
}

// Admission is a run that may begin. It is on record.
type Admission struct {
	Agent     string
	Session   string
	Ring      rings.Ring
	Workspace string // the session's, on the host; empty without session
	Settings  AgentSettings
	Key       *AgentKey        // that it is started with (M-9); nil: none
	Grant     governance.Grant // what its plan, stake and role give (M-19)

	lock, slot     *store.Lock
	meter, reports *meter.Account // of its calls and refusals, and of what it tells the safety loop
	alarm          *alarm
	check          *audit.RingCheck // not on record yet: Watch puts it there, before the start
	parent         elder            // the run whose child this one is (H-15); the zero value: it is none's
}

// elder is a child's parent, as far as an admission goes.
type elder struct {
	run   string // id
	who   string // a breach is laid to
	leave func() // tells it that the child is gone
}

// Done ends what the admission holds: the turn in a session whose mode is strong, the place among its plan's runs at
// once, and the parent's waiting. It may be called on the zero value.
func (a *Admission) Done() {
	if a.parent.run != "" { // whose all the rest is
		a.parent.leave()
		return
	}
	a.lock.Unlock()
	a.slot.Unlock()
	for _, m := range []*meter.Account{a.meter, a.reports} {
		if m != nil {
			m.Close()
		}
	}
}

// Codes of denied runs, beside those of package rings.
const (
	CodeSessionUnknown rings.Code = "session_unknown"
	CodeSessionClosed  rings.Code = "session_not_active"
	CodeNotParticipant rings.Code = "not_a_participant"
	CodeSessionBusy    rings.Code = "session_busy"
	CodeOtherSession   rings.Code = "other_session"
	CodeAgentMissing   rings.Code = "agent_missing"
)

// RingFor says in which ring a run would be admitted, without putting anything on record.
func (h *Hypervisor) RingFor(ctx context.Context, r Request) (rings.Ring, error) {
	adm, d, err := h.look(ctx, r)
	if err != nil {
		return rings.NoRing, err
	}
	return adm.Ring, d.err(r, adm.Ring)
}

// Admit decides whether a run may begin, and in which ring. A denial is a *DeniedError, and on record as well.
func (h *Hypervisor) Admit(ctx context.Context, r Request) (Admission, error) {
	adm, d, err := h.look(ctx, r)
	if err != nil {
		return Admission{}, err
	}
	asked := r.Ring
	if !asked.Valid() {
		asked = adm.Ring
	}
	if d.Allowed() && d.serial && adm.Ring.MorePrivilegedThan(rings.Sandbox) {
		if d, err = h.turn(&adm, d); err != nil {
			return Admission{}, err
		}
	}
	if d.Allowed() {
		if d, err = h.place(&adm, d); err != nil {
			adm.Done()
			return Admission{}, err
		}
	}
	if d.Allowed() {
		if d, err = h.count(&adm, r, d); err != nil {
			adm.Done()
			return Admission{}, err
		}
	}
	check := &audit.RingCheck{
		Action: runAction, AgentID: r.Agent, AgentRing: audit.RingOf(d.agentRing.Value()), Allowed: d.Allowed(), EffScore: audit.NumberOf(d.score),
		Reason: string(d.Code), RequiredRing: audit.RingOf(asked.Value()), Rule: d.Rule,
		RequiresConsensus: d.consensus, RequiresSREWitness: d.witness, RunID: r.Run, SessionID: r.Session,
	}
	if r.Agent != "" {
		err = h.record(recordedIn(d, r), false, check) // synced with the start's own record
	} else if d.Allowed() {
		adm.check = check // nothing else of an operator's own run waits for the log here
	}
	if err = errors.Join(d.err(r, asked), err); err != nil {
		adm.Done()
		return Admission{}, err
	}
	adm.alarm = h.newAlarm(r.Session, adm.meter)
	return adm, nil
}

// safetyReports is the session in whose bucket reports to the safety loop are counted; no session is called so.
const safetyReports = "(safety)"

// count finds where the agent's calls and refused attempts are counted (H-16, H-17, H-24). A full table refuses the run: what isn't
// counted isn't bounded.
func (h *Hypervisor) count(adm *Admission, r Request, v verdict) (verdict, error) {
	var err, err2 error
	adm.meter, err = h.account(adm.Agent, adm.Session)
	adm.reports, err2 = h.account(adm.Agent, safetyReports)
	if r.Agent == "" && r.Sandbox != "" { // whose runs follow each other by themselves: they are one
		if adm.meter, err = h.meterOf("", r.Sandbox); err == nil && !r.Again {
			err = adm.meter.Forgive()
		}
	}
	if err = errors.Join(err, err2); errors.Is(err, meter.ErrFull) {
		return denied(v, "H-17", rings.CodeRateTableFull, "wait until runs of other agents have ended", "%v", err), nil
	}
	return v, err
}

// turn takes the session's workspace for one run that can write it (H-32, strong). The kernel gives it back when we die.
// Another run isn't kept waiting: that could last as long as a run.
func (h *Hypervisor) turn(adm *Admission, v verdict) (verdict, error) {
	db, err := h.store()
	if err != nil {
		return v, err
	}
	adm.lock, err = db.TryLock("session-" + adm.Session)
	if errors.Is(err, store.ErrBusy) {
		return denied(v, "H-32", CodeSessionBusy, "wait for its end, or run in ring 3, which only reads", "session %s is strong, and another run of it can write the workspace", adm.Session), nil
	}
	return v, err
}

// recordedIn names the session in whose chain a decision belongs: not one that doesn't exist, or anybody could make chains.
func recordedIn(d verdict, r Request) string {
	if d.Code == CodeSessionUnknown {
		return ""
	}
	return r.Session
}

// verdict is a decision with what it was based on.
type verdict struct {
	rings.Decision
	agentRing rings.Ring
	score     float64
	consensus bool // is what is missing
	witness   bool // likewise
	serial    bool // runs that write take turns
	hint      string
}

func (v verdict) err(r Request, asked rings.Ring) error {
	if v.Allowed() {
		return nil
	}
	what := "run in " + asked.String()
	if r.Agent != "" {
		what = "run agent " + r.Agent + " in " + asked.String()
	}
	return &DeniedError{What: what, Decision: v.Decision, Hint: v.hint}
}

func denied(v verdict, rule string, code rings.Code, hint, format string, args ...any) verdict {
	v.Decision = rings.Decision{Verdict: rings.Deny, Code: code, Reason: fmt.Sprintf(format, args...), Rule: rule}
	v.hint = hint
	return v
}

// look finds the verdict. An error means that there is none, and nothing begins.
func (h *Hypervisor) look(ctx context.Context, r Request) (Admission, verdict, error) {
	plans, err := governance.Load(h.opt.Plans)
	if err != nil {
		return Admission{}, verdict{}, err
	}
	if r.Agent == "" {
		v := verdict{agentRing: r.Ring.OrSandbox(), score: math.NaN(), Decision: rings.Decision{Verdict: rings.Allow, Code: rings.CodeOK, Reason: "the operator's own run", Rule: "H-1"}}
		if r.Session != "" {
			v = denied(v, "H-30", CodeAgentMissing, "name the participant with --agent", "a session's runs belong to its participants")
		}
		grant, err := plans.Grant("", "", 0)
		adm := Admission{Ring: r.Ring.OrSandbox(), Grant: grant}
		if err == nil && v.Allowed() {
			v = adm.offers(r, v)
		}
		if err == nil && v.Allowed() && r.Expect != (governance.Estimate{}) { // else the state isn't touched
			err = h.view(ctx, func(tx *store.Tx) (err error) {
				v, err = h.fits(tx, &adm, r, v)
				return err
			})
		}
		return adm, v, err
	}
	var adm Admission
	var v verdict
	err = h.view(ctx, func(tx *store.Tx) error {
		a, err := agent(tx, r.Agent)
		if err != nil {
			return err
		}
		adm = Admission{Agent: r.Agent, Session: r.Session, Ring: r.Ring, Settings: a.AgentSettings}
		if !adm.Ring.Valid() {
			adm.Ring = a.Ring
		}
		v = enforce(a, adm.Ring)
		if v.Allowed() {
			if v, err = notStopped(tx, r.Agent, v); err != nil {
				return err
			}
		}
		if v.Allowed() {
			adm.Grant, v = granted(plans, a, v)
		}
		if v.Allowed() {
			v, err = h.fits(tx, &adm, r, v)
		}
		if err == nil && v.Allowed() && r.Session != "" {
			v, err = h.inSession(tx, v, r)
			adm.Workspace = h.Workspace(r.Session)
		}
		return err
	})
	if err != nil {
		return Admission{}, verdict{}, err
	}
	return adm, v, nil
}

// enforce asks the ring enforcer (H-9): to run in a ring is an action that requires that ring.
func enforce(a Agent, asked rings.Ring) verdict {
	v := verdict{agentRing: a.Ring, score: a.score()}
	if a.Quarantined != nil {
		d := deniedQuarantine("", a)
		v.Decision, v.hint = d.Decision, d.Hint
		return v
	}
	check := rings.Check(a.Ring, a.score(), a.Consensus, runIn(asked))
	v.Decision, v.consensus, v.witness = check.Decision(), check.RequiresConsensus, check.RequiresSREWitness
	if !v.Allowed() {
		v.hint = fmt.Sprintf("agentrun agent show %s tells its score; without --ring it runs in %s", a.ID, a.Ring)
		if give := map[rings.Ring]string{rings.Standard: "0.7", rings.Privileged: "0.97 --consensus"}[asked]; give != "" {
			v.hint = fmt.Sprintf("agentrun agent score %s %s gives it %s; without --ring it runs in %s", a.ID, give, asked, a.Ring)
		}
	}
	return v
}

// runAction is what a run is to the enforcer (M-9).
const runAction = "agent.run.invoke"

// runIn is the action of running in a ring, described so that H-6 gives exactly that ring: what runs in ring 1 can do what
// can't be undone, what runs in ring 3 only reads.
func runIn(ring rings.Ring) rings.Action {
	a := rings.Action{ID: runAction, Name: "run", ExecuteAPI: "agentrun exec", Reversibility: rings.Full}
	switch ring {
	case rings.Root:
		a.Admin = true
	case rings.Privileged:
		a.Reversibility = rings.Irreversible
	case rings.Sandbox:
		a.ReadOnly = true
	}
	return a
}

// passing are the codes of refusals that end: by an operator's word, or with another run.
var passing = []rings.Code{
	rings.CodeQuarantined, CodeAgentStopped, rings.CodeInsufficientRing, rings.CodeInsufficientTrust, CodeSessionBusy, link.CodeConcurrency,
}

// NotNow tells why a run would be refused now and may be admitted later, a *DeniedError, or that nobody knows. Nothing is put on record,
// and nothing is held for the run: it is asked again.
func (h *Hypervisor) NotNow(ctx context.Context, r Request) error {
	adm, v, err := h.look(ctx, r)
	if err == nil && v.Allowed() && v.serial && adm.Ring.MorePrivilegedThan(rings.Sandbox) {
		v, err = h.turn(&adm, v)
	}
	if err == nil && v.Allowed() {
		v, err = h.place(&adm, v)
	}
	adm.Done()
	if err == nil && slices.Contains(passing, v.Code) {
		err = v.err(r, adm.Ring)
	}
	return err
}

// notHeld denies what to an agent in quarantine (H-31).
func notHeld(tx *store.Tx, id, what string) error {
	a, err := agent(tx, id)
	if err == nil && a.Quarantined != nil {
		err = deniedQuarantine(what, a)
	}
	return err
}

func deniedQuarantine(what string, a Agent) *DeniedError {
	return &DeniedError{
		What:     what,
		Decision: rings.Decision{Code: rings.CodeQuarantined, Rule: "H-31", Reason: fmt.Sprintf("agent %s is in quarantine since %s: %s", a.ID, a.Quarantined.Since.Format("2006-01-02 15:04:05Z07:00"), a.Quarantined.Reason)},
		Hint:     "an operator releases it: agentrun agent release " + a.ID + " --witness FILE",
	}
}

func (h *Hypervisor) inSession(tx *store.Tx, v verdict, r Request) (verdict, error) {
	s, err := h.session(tx, r.Session)
	if errors.Is(err, ErrNoSession) {
		return denied(v, "H-30", CodeSessionUnknown, "agentrun session create "+r.Session, "session %s: %v", r.Session, err), nil
	}
	if err != nil {
		return v, err
	}
	rec := s.Record()
	switch {
	case rec.State != rings.SessionActive:
		return denied(v, "H-29", CodeSessionClosed, "agentrun session show "+r.Session, "session %s is %s, not active", r.Session, rec.State), nil
	case !rec.Has(r.Agent):
		return denied(v, "H-30", CodeNotParticipant, fmt.Sprintf("agentrun session join %s --agent %s", r.Session, r.Agent), "agent %s doesn't take part in session %s", r.Agent, r.Session), nil
	}
	v.serial = rec.Config.ConsistencyMode == rings.Strong
	return v, nil
}
