// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Options of an Engine.
type Options struct {
	// Path of a policy file or a folder of *.cedar files; empty for the built-in policies alone.
	Path string
	// Clock tells the time for Status; nil for time.Now.
	Clock func() time.Time
	// Notify is told of every change and every refused change, one call at a time; nil for nobody. It must not call Poll.
	Notify func(Status)
}

// Status says by what an Engine decides.
type Status struct {
	Revision string    `json:"revision"` // of the set that decides
	Policies int       `json:"policies"` // the operator's
	Since    time.Time `json:"since"`    // when it was loaded
	// Refused is why what the files hold now was not taken; nil if the set is what the files hold.
	Refused      error     `json:"-"`
	RefusedSince time.Time `json:"refused_since,omitzero"`
}

// Engine decides by policies that are loaded from files, and takes changed ones without a pause. The zero value refuses.
type Engine struct {
	options Options
	set     atomic.Pointer[Set]
	mu      sync.Mutex // one looks at the files at a time; guards what follows
	seen    string     // fingerprint of the files as last looked at, whether taken or refused
	status  Status
}

// NewEngine loads the policies. A fault in them is an error: at the start there is no last valid set to go on with.
func NewEngine(o Options) (*Engine, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	e := &Engine{options: o}
	e.mu.Lock()
	defer e.mu.Unlock()
	seen, set, err := look(o.Path, "")
	if err != nil {
		return nil, err
	}
	e.takeLocked(seen, set)
	return e, nil
}

// Decide answers by the policies as they are now.
func (e *Engine) Decide(ctx context.Context, r Request) Decision {
	return e.current().Decide(ctx, r)
}

// Explain is Decide with its grounds.
func (e *Engine) Explain(ctx context.Context, r Request) Explanation {
	return e.current().Explain(ctx, r)
}

func (e *Engine) current() *Set {
	if e == nil {
		return nil
	}
	return e.set.Load()
}

// Poll looks whether the files changed and takes the new policies if they are valid; if not, the old ones go on deciding and
// the Status says what is wrong. It returns the Status.
func (e *Engine) Poll() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set.Load() == nil {
		return Status{Refused: errors.New("the engine was not made by NewEngine")}
	}
	e.pollLocked()
	return e.status
}

// Status returns what the last look found.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

func (e *Engine) pollLocked() {
	if e.options.Path == "" {
		return
	}
	seen, set, err := look(e.options.Path, e.seen)
	switch {
	case err != nil:
		e.refuseLocked(seen, err)
	case set == nil: // as before, taken or refused
	case set.Revision() == e.status.Revision && e.status.Refused == nil:
		e.seen = seen // touched, or written anew with the same content
	default:
		e.takeLocked(seen, set)
	}
}

func (e *Engine) takeLocked(seen string, set *Set) {
	e.seen = seen
	e.set.Store(set)
	e.status = Status{Revision: set.Revision(), Policies: set.Len(), Since: e.options.Clock()}
	e.notifyLocked()
}

// refuseLocked tells once of each fault, not at each look.
func (e *Engine) refuseLocked(seen string, err error) {
	e.seen = seen
	if e.status.Refused != nil && e.status.Refused.Error() == err.Error() {
		return
	}
	e.status.Refused, e.status.RefusedSince = err, e.options.Clock()
	e.notifyLocked()
}

func (e *Engine) notifyLocked() {
	if e.options.Notify != nil {
		e.options.Notify(e.status)
	}
}

var errChanging = errors.New("changed while it was read; the next look tries again")

// look returns a nil set if the files are as seen. A file that changes while it is read may be half of the old and half of
// the new; its fingerprint is taken before and after, and not remembered when they differ.
func look(path, seen string) (now string, set *Set, err error) {
	if path == "" {
		set, err = Load("")
		return "", set, err
	}
	before, err := fingerprint(path)
	if err != nil {
		return "", nil, asProblems(path, err)
	}
	if before == seen {
		return seen, nil, nil
	}
	set, err = Load(path)
	after, again := fingerprint(path)
	if again != nil || after != before {
		return "", nil, asProblems(path, errChanging)
	}
	if err != nil {
		return before, nil, err
	}
	return before, set, nil
}
