// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// What an elevation needs and how long it lasts (H-13, H-14).
const (
	ElevationRing1Trust = 0.85 // at least this, and consensus
	ElevationRing2Trust = 0.50 // at least this
	DefaultElevation    = 300 * time.Second
	MaxElevation        = 3600 * time.Second
)

// ErrElevationNotFound is what revoking an id gives that no active elevation has; its code is CodeNotFound (H-15).
var ErrElevationNotFound = errors.New("no active elevation has this id")

// ElevationRequest asks for a ring for a while. The zero value is refused.
type ElevationRequest struct {
	Current      Ring    // the run's live ring
	Target       Ring    // Privileged or Standard
	TrustScore   float64 // in [0,1]; NaN for none
	HasConsensus bool
	Elsewhere    bool    // the agent has one in this session that another run keeps: refuses as a duplicate
	Quarantined  bool    // refuses, as ElevationOptions.Quarantined does
	TTLSeconds   float64 // 0 or less: DefaultElevation; more than MaxElevation: that; NaN is refused
}

// Elevation is a ring on loan.
type Elevation struct {
	ID         string    `json:"elevation_id"` // unguessable: 26 characters from the kernel's random source
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
	// Quarantined tells whether the run's agent is in quarantine now; nil: it isn't, beside what requests say.
	Quarantined func() bool
	// Trust returns the agent's present trust score and consensus. With it an elevation ends as soon as they would no longer
	// earn it, and a request needs them beside its own numbers. nil: the request's own numbers count, when it is made.
	Trust func() (score float64, hasConsensus bool)
}

// Elevations holds the ring that one run has on loan: one at a time. It is safe for concurrent use. Make one with
// NewElevations; the zero value refuses every request.
type Elevations struct {
	options ElevationOptions

	mu    sync.Mutex
	held  *loan // nil: none
	clock ratchet
	ended []EndedElevation // until the next Tick
}

type loan struct {
	Elevation
	end time.Duration // by the ratchet
}

// NewElevations returns an empty Elevations.
func NewElevations(options ElevationOptions) *Elevations {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Elevations{options: options}
}

// ChildRing returns the ring of an agent's child: one less privileged than its parent's, at most Sandbox (H-15); Sandbox
// for what is no ring. Give it the parent's ring without its elevation: a child lives on when the loan ends, and would then
// be more privileged than its parent.
func ChildRing(parent Ring) Ring { return min(parent.OrSandbox()+1, Sandbox) }

// Request grants an elevation, or refuses with the first reason that holds, in the order of H-13: invalid_target,
// ring_0_forbidden, duplicate_elevation, quarantined, insufficient_trust, no_consensus; and after these a TTL that is no
// number (invalid_ttl). The Elevation is zero unless the decision allows.
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
	if e.options.Now == nil {
		return now, 0, deny("H-13", CodeUnconfigured, "no elevations were set up")
	}
	now = e.readLocked()
	ttl, ttlErr := elevationTTL(r.TTLSeconds)
	if d := e.mayLocked(r, now); !d.Allowed() {
		return now, 0, d
	}
	if ttlErr != nil {
		return now, 0, deny("H-14", CodeInvalidTTL, ttlErr.Error())
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
	case e.activeLocked(now) || r.Elsewhere:
		return deny("H-13", CodeDuplicateElevation, "the agent already has an elevation in this session")
	case r.Quarantined || e.quarantined():
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

func (e *Elevations) quarantined() bool {
	return e.options.Quarantined != nil && e.options.Quarantined()
}

// earns decides on the request's numbers and, where there is a source, on the present ones too.
func (e *Elevations) earns(r ElevationRequest) Decision {
	d := elevationEarned(r.Target, r.TrustScore, r.HasConsensus)
	if d.Allowed() && e.options.Trust != nil {
		score, consensus := e.options.Trust()
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
		ID: rand.Text(), From: r.Current, Target: r.Target,
		TrustScore: r.TrustScore, GrantedAt: now.Round(0), ExpiresAt: now.Round(0).Add(ttl),
	}
	e.held = &loan{granted, addUpTo(e.clock.elapsed, ttl)}
	return granted
}

// Effective returns the ring that counts now: Sandbox in quarantine, else the more privileged of base and an elevation
// that is active, not expired and still earned. It needs no Tick before it (H-14). A base that is no ring counts as Sandbox.
func (e *Elevations) Effective(base Ring) Ring {
	base = base.OrSandbox()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.quarantined() {
		base = Sandbox
	}
	if e.held == nil || !e.activeLocked(e.readLocked()) {
		return base
	}
	return min(base, e.held.Target)
}

// Tick ends an elevation that has expired or is no longer earned, and returns every one that ended so since the last Tick,
// those that another method found over among them. A live supervisor calls it when a score changes, after a quarantine,
// and at Next, to tell the process and the audit; the decisions don't wait for it.
func (e *Elevations) Tick() []EndedElevation {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held != nil {
		e.activeLocked(e.readLocked())
	}
	ended := e.ended
	e.ended = nil
	return ended
}

// Next returns the instant, by the clock, at which the elevation expires; ok is false if none is held.
func (e *Elevations) Next() (at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil {
		return time.Time{}, false
	}
	now := e.readLocked()
	left := min(e.held.end-e.clock.elapsed, e.held.ExpiresAt.Sub(now.Round(0)))
	return now.Add(max(left, 0)), true
}

// Active returns the elevation that counts now; ok is false if none does.
func (e *Elevations) Active() (active Elevation, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil || !e.activeLocked(e.readLocked()) {
		return Elevation{}, false
	}
	return e.held.Elevation, true
}

// Revoke ends the elevation with this id at once and returns it (H-15). Where it isn't active, or not any more, the error
// is ErrElevationNotFound.
func (e *Elevations) Revoke(id string) (Elevation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil || e.held.ID != id || !e.activeLocked(e.readLocked()) {
		return Elevation{}, fmt.Errorf("revoke elevation %.64q: %w", id, ErrElevationNotFound)
	}
	l := e.held
	e.held = nil
	return l.Elevation, nil
}
