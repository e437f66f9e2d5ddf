// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// How often Run asks sources for their tools, and how long one may take.
const (
	refreshEvery   = 5 * time.Minute
	refreshTimeout = 30 * time.Second
)

// source is a server that brings several tools. Until it has said which, a call of one of them can't be told
// from a call of nothing: such a call waits for it (hear).
type source struct {
	name string
	spec Spec
	Source
	turn  chan struct{} // held while it is asked; a mutex couldn't be given up with a context
	heard atomic.Bool   // it has said once what it has
}

func (r *Registry) addSource(name string, s Spec) error {
	made, err := r.o.Sources[s.Kind](name, s.Node)
	if err != nil {
		return fmt.Errorf("tools.%s.%s: %w", name, s.Kind, err)
	}
	r.sources = append(r.sources, &source{name: name, spec: s, Source: made, turn: make(chan struct{}, 1)})
	return nil
}

// Refresh asks all sources at once for their tools. What one of them can't say stays as it was; its error names it and
// keeps no other from being taken.
func (r *Registry) Refresh(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(r.sources))
	for i, s := range r.sources {
		all.Go(func() {
			if err := r.ask(ctx, s, false); err != nil {
				errs[i] = fmt.Errorf("ask %s for its tools: %w", s.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// sourceOf returns the source that a name's prefix says; nil: there is none.
func (r *Registry) sourceOf(name string) *source {
	server, _, ok := strings.Cut(name, ".")
	i := slices.IndexFunc(r.sources, func(s *source) bool { return ok && s.name == server })
	if i < 0 {
		return nil
	}
	return r.sources[i]
}

// hear waits until the source of a tool has said what it has, for as long as a call of it may take, and
// returns the tool. The error is why it said nothing. A server that was heard already isn't waited for: it
// has no tool of that name.
func (r *Registry) hear(ctx context.Context, name string) (*tool, error) {
	if s := r.sourceOf(name); s != nil && !s.heard.Load() {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(time.Duration(s.spec.Timeout), s.spec.Category.Timeout()))
		defer cancel()
		if err := r.ask(ctx, s, true); err != nil {
			return nil, err
		}
	}
	return r.lookup(name), nil
}

// ask has a source say what it has. Whoever waits for its first word waits for the connection that somebody
// else is making, and asks no more once it is there; a connection that fails is tried again by the next in
// turn, as soon as the source lets it.
func (r *Registry) ask(ctx context.Context, s *source, first bool) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if first && s.heard.Load() {
		return nil
	}
	return r.refresh(ctx, s)
}

// Asked is closed when Run has asked every source once.
func (r *Registry) Asked() <-chan struct{} { return r.asked }

// Run refreshes now and then until ctx ends. It logs what goes wrong.
func (r *Registry) Run(ctx context.Context) {
	if len(r.sources) == 0 {
		close(r.asked)
		return
	}
	first := sync.OnceFunc(func() { close(r.asked) })
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		if err := r.Refresh(ctx); err != nil {
			r.o.Log.Warn("tools of a server are as they were", "error", err)
		}
		first()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Registry) refresh(ctx context.Context, s *source) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic of type %T", v)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	definitions, err := s.Definitions(ctx)
	if err != nil {
		return err
	}
	if len(definitions) > MaxTools {
		return fmt.Errorf("%d tools, at most %d", len(definitions), MaxTools)
	}
	fresh, err := r.taken(s, definitions)
	r.replace(s, fresh)
	s.heard.Store(true)
	return err
}

// taken makes the tools of a source. What class they are of the operator said for the whole server: a server's own word
// about its tools ("only reads") is that of a stranger. A tool that is unfit is left out, and the others are taken.
func (r *Registry) taken(s *source, definitions []Definition) (map[string]*tool, error) {
	fresh := map[string]*tool{}
	var errs []error
	for _, d := range definitions {
		own := Cut(d.Description, maxDescription) // one that is too long must not take the tool away
		d.Name, d.Category, d.Target = s.name+"."+d.Name, "", ""
		d = s.spec.change(d)
		d.Description = own
		if d.Target != NoTarget && !d.takes(d.Target) {
			d.Target = ""
		}
		d.Action.ID, d.Action.Name, d.Action.ExecuteAPI = "tool."+d.Name+".invoke", d.Name, d.Name
		t, err := r.make(d, s.spec)
		if err != nil {
			errs = append(errs, fmt.Errorf("tool %.80q: %w", d.Name, err))
			continue
		}
		t.from = s
		fresh[d.Name] = t
	}
	return fresh, errors.Join(errs...)
}

// replace puts a source's tools in place of those it had. A name that another tool has stays that tool's.
func (r *Registry) replace(s *source, fresh map[string]*tool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(*r.tools.Load())
	maps.DeleteFunc(all, func(_ string, t *tool) bool { return t.from == s })
	for name, t := range fresh {
		if all[name] != nil || len(all) >= MaxTools {
			continue
		}
		all[name] = t
		// A server that is asked again, or takes a tool away for a while, must not refill its bucket.
		if b, known := r.rates[name]; known {
			t.rate = b
		} else if t.rate != nil && len(r.rates) < 4*MaxTools {
			r.rates[name] = t.rate
		}
	}
	r.tools.Store(&all)
}
