// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// What an elevation needs and how long it lasts (H-13, H-14).
const (
	ElevationRing1Trust = 0.85 // at least this, and consensus
	ElevationRing2Trust = 0.50 // at least this
	DefaultElevation    = 300 * time.Second
	MaxElevation        = 3600 * time.Second
	MaxElevationsAtOnce = 100_000 // as H-17 bounds the buckets
)

// ErrElevationNotFound is what revoking an id gives that no active elevation has; its code is CodeNotFound (H-15).
var ErrElevationNotFound = errors.New("no active elevation has this id")

// ElevationRequest asks for a ring for a while. The zero value is refused.
type ElevationRequest struct {
	Agent        string
	Session      string
	Current      Ring    // the agent's live ring
	Target       Ring    // Privileged or Standard
	TrustScore   float64 // in [0,1]; NaN for none
	HasConsensus bool
	Elsewhere    bool    // the agent has one in this session that another Elevations keeps: refuses as a duplicate
	Quarantined  bool    // refuses, as ElevationOptions.Quarantined does
	TTLSeconds   float64 // 0 or less: DefaultElevation; more than MaxElevation: that; NaN is refused
}

// Elevation is a ring on loan.
type Elevation struct {
	ID         string    `json:"elevation_id"` // unguessable: 26 characters from the kernel's random source
	Agent      string    `json:"agent_id"`
	Session    string    `json:"session_id"`
	From       Ring      `json:"from_ring"`
	Target     Ring      `json:"target_ring"`
	TrustScore float64   `json:"trust_score"`
	GrantedAt  time.Time `json:"granted_at"`
	ExpiresAt  time.Time `json:"expires_at"` // from this instant on it counts no more
}

// TTL is how long the elevation was granted for.
func (e Elevation) TTL() time.Duration { return e.ExpiresAt.Sub(e.GrantedAt) }

// EndedElevation is an elevation that ended without being revoked, and why: CodeExpired, CodeQuarantined, CodeInsufficientTrust
// or CodeNoConsensus.
type EndedElevation struct {
	Elevation
	Code Code `json:"code"`
}

// ElevationOptions are the sources that Elevations asks. Both functions are called with a lock held: they must not
// call the Elevations, and nobody may call it while holding a lock that they take.
type ElevationOptions struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Quarantined tells whether an agent is in quarantine now; nil: nobody is, beside what requests say.
	Quarantined func(agent string) bool
	// Trust returns an agent's present trust score and consensus. With it an elevation ends as soon as they would no longer
	// earn it, and a request needs them beside its own numbers. nil: the request's own numbers count, when it is made.
	Trust func(agent string) (score float64, hasConsensus bool)
}

// Elevations holds who has which ring on loan. It is safe for concurrent use and bounded: MaxElevationsAtOnce. Make one with
// NewElevations; the zero value refuses every request.
type Elevations struct {
	options ElevationOptions

	mu    sync.Mutex
	held  map[elevationKey]loan
	byID  map[string]elevationKey
	clock ratchet
	swept time.Duration    // by the ratchet: when a full table was last looked through
	ended []EndedElevation // until the next Tick
}

// elevationKey is a struct, not a joined string: ("a", "b:c") and ("a:b", "c") are two keys.
type elevationKey struct{ agent, session string }

type loan struct {
	Elevation
	end time.Duration // by the ratchet
}

// NewElevations returns an empty Elevations.
func NewElevations(options ElevationOptions) *Elevations {
	return &Elevations{options: options, held: map[elevationKey]loan{}, byID: map[string]elevationKey{}}
}

// ChildRing returns the ring of an agent's child: one less privileged than its parent's, at most Sandbox (H-15); Sandbox
// for what is no ring. Give it the parent's ring without its elevation: a child lives on when the loan ends, and would then
// be more privileged than its parent.
func ChildRing(parent Ring) Ring { return min(parent.OrSandbox()+1, Sandbox) }

// Request grants an elevation, or refuses with the first reason that holds, in the order of H-13: invalid_target,
// ring_0_forbidden, duplicate_elevation, quarantined, insufficient_trust, no_consensus. Before these a malformed identifier is
// refused (invalid_identifier), after them a TTL that is no number (invalid_ttl) and what would exceed MaxElevationsAtOnce
// (too_many_elevations). The Elevation is zero unless the decision allows.
func (e *Elevations) Request(r ElevationRequest) (Elevation, Decision) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, ttl, d := e.decideLocked(r)
	if !d.Allowed() {
		return Elevation{}, d
	}
	return e.grantLocked(r, now, ttl), d
}

// Check says what Request would, and grants nothing.
func (e *Elevations) Check(r ElevationRequest) Decision {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _, d := e.decideLocked(r)
	return d
}

func (e *Elevations) decideLocked(r ElevationRequest) (now time.Time, ttl time.Duration, d Decision) {
	if err := errors.Join(CheckAgentID(r.Agent), CheckSessionID(r.Session)); err != nil {
		return now, 0, deny("H-29", CodeInvalidIdentifier, err.Error())
	}
	if e.held == nil {
		return now, 0, deny("H-13", CodeUnconfigured, "no elevations were set up")
	}
	now = e.readLocked()
	ttl, ttlErr := elevationTTL(r.TTLSeconds)
	if d := e.mayLocked(r, now); !d.Allowed() {
		return now, 0, d
	}
	switch {
	case ttlErr != nil:
		return now, 0, deny("H-14", CodeInvalidTTL, ttlErr.Error())
	case e.fullLocked(now):
		return now, 0, deny("H-13", CodeTooManyElevations, "too many elevations are active")
	}
	return now, ttl, allow("H-13", "granted until it expires or is revoked")
}

// mayLocked is the order of H-13.
func (e *Elevations) mayLocked(r ElevationRequest, now time.Time) Decision {
	switch {
	case !r.Target.MorePrivilegedThan(r.Current):
		return deny("H-13", CodeInvalidTarget, r.Target.String()+" is not more privileged than "+r.Current.String())
	case r.Target == Root:
		return deny("H-13", CodeRing0Forbidden, "ring 0 is never an agent's")
	case e.activeLocked(elevationKey{r.Agent, r.Session}, now) || r.Elsewhere:
		return deny("H-13", CodeDuplicateElevation, "the agent already has an elevation in this session")
	case r.Quarantined || e.quarantined(r.Agent):
		return deny("H-13", CodeQuarantined, "the agent is in quarantine")
	}
	return e.earns(r)
}

func elevationTTL(seconds float64) (time.Duration, error) {
	switch {
	case math.IsNaN(seconds):
		return 0, errors.New("the time to live is no number")
	case seconds <= 0:
		return DefaultElevation, nil
	// Compared before it is converted: what overflows an int64 converts to anything.
	case seconds >= MaxElevation.Seconds():
		return MaxElevation, nil
	default:
		return time.Duration(seconds * float64(time.Second)), nil
	}
}

func (e *Elevations) quarantined(agent string) bool {
	return e.options.Quarantined != nil && e.options.Quarantined(agent)
}

// earns decides on the request's numbers and, where there is a source, on the present ones too.
func (e *Elevations) earns(r ElevationRequest) Decision {
	d := elevationEarned(r.Target, r.TrustScore, r.HasConsensus)
	if d.Allowed() && e.options.Trust != nil {
		score, consensus := e.options.Trust(r.Agent)
		d = elevationEarned(r.Target, score, consensus)
	}
	return d
}

func elevationEarned(target Ring, score float64, consensus bool) Decision {
	threshold, text := math.Inf(1), "needs more trust than there is" // no target but the two is ever earned
	switch target {
	case Privileged:
		threshold, text = ElevationRing1Trust, "ring 1 needs a trust score of at least 0.85"
	case Standard:
		threshold, text = ElevationRing2Trust, "ring 2 needs a trust score of at least 0.50"
	}
	switch {
	case !validScore(score) || score < threshold:
		return deny("H-13", CodeInsufficientTrust, text)
	case target == Privileged && !consensus:
		return deny("H-13", CodeNoConsensus, "ring 1 needs consensus")
	default:
		return allow("H-13", "earned")
	}
}

// grantLocked keeps wall times: a monotonic reading in them would make comparing with them stand still while the machine
// is suspended. The ratchet has the other one.
func (e *Elevations) grantLocked(r ElevationRequest, now time.Time, ttl time.Duration) Elevation {
	granted := Elevation{
		ID: rand.Text(), Agent: r.Agent, Session: r.Session, From: r.Current, Target: r.Target,
		TrustScore: r.TrustScore, GrantedAt: now.Round(0), ExpiresAt: now.Round(0).Add(ttl),
	}
	key := elevationKey{r.Agent, r.Session}
	e.held[key] = loan{granted, addUpTo(e.clock.elapsed, ttl)}
	e.byID[granted.ID] = key
	return granted
}

// Effective returns the ring that counts now for the agent in the session: Sandbox in quarantine, else the more privileged of
// base and an elevation that is active, not expired and still earned. It needs no Tick before it (H-14). A base that is
// no ring counts as Sandbox.
func (e *Elevations) Effective(agent, session string, base Ring) Ring {
	base = base.OrSandbox()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.quarantined(agent) {
		base = Sandbox
	}
	key := elevationKey{agent, session}
	l, held := e.held[key]
	if !held || !e.activeLocked(key, e.readLocked()) {
		return base
	}
	return min(base, l.Target)
}

// Tick ends what has expired or is no longer earned, and returns every elevation that ended so since the last Tick, those
// that another method found over among them; of more than 1000 the latest. A live supervisor calls it when a score changes,
// after a quarantine, and at Next, to tell the process and the audit; the decisions don't wait for it.
func (e *Elevations) Tick() []EndedElevation {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepLocked(e.readLocked())
	ended := e.ended
	e.ended = nil
	return ended
}

// Next returns the instant, by the clock, at which the next elevation expires; ok is false if none is held.
func (e *Elevations) Next() (at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.held) == 0 {
		return time.Time{}, false
	}
	now := e.readLocked()
	left := MaxElevation
	for _, l := range e.held {
		left = min(left, l.end-e.clock.elapsed, l.ExpiresAt.Sub(now.Round(0)))
	}
	return now.Add(max(left, 0)), true
}

// Active returns the elevations that count now, oldest first.
func (e *Elevations) Active() []Elevation {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepLocked(e.readLocked())
	active := make([]Elevation, 0, len(e.held))
	for _, l := range e.held {
		active = append(active, l.Elevation)
	}
	slices.SortFunc(active, func(a, b Elevation) int {
		return cmp.Or(a.GrantedAt.Compare(b.GrantedAt), cmp.Compare(a.ID, b.ID))
	})
	return active
}

// Revoke ends an elevation at once and returns it (H-15). For an id that no active elevation has, an ended one's too, the
// error is ErrElevationNotFound.
func (e *Elevations) Revoke(id string) (Elevation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, held := e.byID[id]
	if !held || !e.activeLocked(key, e.readLocked()) {
		return Elevation{}, fmt.Errorf("revoke elevation %.64q: %w", id, ErrElevationNotFound)
	}
	l := e.held[key]
	e.dropLocked(l)
	return l.Elevation, nil
}

// RevokeAgent ends all elevations of an agent, for its kill, and returns those that were active.
func (e *Elevations) RevokeAgent(agent string) []Elevation {
	return e.revokeWhere(func(l loan) bool { return l.Agent == agent })
}

// RevokeSession ends all elevations in a session, for its end, and returns those that were active.
func (e *Elevations) RevokeSession(session string) []Elevation {
	return e.revokeWhere(func(l loan) bool { return l.Session == session })
}

func (e *Elevations) revokeWhere(match func(loan) bool) []Elevation {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepLocked(e.readLocked())
	var revoked []Elevation
	for _, l := range e.held {
		if match(l) {
			e.dropLocked(l)
			revoked = append(revoked, l.Elevation)
		}
	}
	return revoked
}
