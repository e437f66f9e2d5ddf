// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	askTime   = 2 * time.Second // for a list; only a hung supervisor takes longer
	askAtOnce = 64
	maxListed = 8 // candidates that an error names
)

// Found is a live run and who answers for it.
type Found struct {
	Sandbox
	Client *Client `json:"-"`
}

// All asks every supervisor of the run folder for its runs, oldest first. A socket that nobody listens on has none. The
// error names the supervisors that didn't answer in two seconds, or not well; the runs of the others are there beside it.
func All(ctx context.Context, runDir string) ([]Found, error) {
	var all []Found
	var mu sync.Mutex
	err := Each(ctx, runDir, func(ctx context.Context, c *Client) error {
		found, err := c.found(ctx)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return err
	})
	slices.SortFunc(all, func(a, b Found) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return all, err
}

// found lists one supervisor's runs; none if it has ended.
func (c *Client) found(ctx context.Context) ([]Found, error) {
	var list []Sandbox
	var err error
	// The answer of one that ends as it is asked breaks off. Asked again it isn't there; in between its socket may still take a question.
	for range 3 {
		if list, err = c.Sandboxes(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Code == CodeNotFound {
		return nil, nil
	}
	found := make([]Found, len(list))
	for i, s := range list {
		found[i] = Found{s, c}
	}
	return found, err
}

// Find returns the one live run that ref means: the one with that id; else the one with that name; else the one whose id
// begins with it. If several fit it is an *Error "ambiguous" that lists them, if none does "not_found". If a supervisor didn't answer,
// only a whole id is found: what else would fit isn't known, and the verb that follows may be kill.
func Find(ctx context.Context, runDir, ref string) (Found, error) {
	if ref == "" {
		return Found{}, &Error{Status: 400, Code: CodeBadRequest, Message: "want a run's id, a prefix of one, or a name", Hint: "agentrun ps"}
	}
	// A run alone has its id for its supervisor's name: one question instead of thousands.
	if c, err := Open(runDir, ref); err == nil {
		asked, cancel := soon(ctx)
		defer cancel()
		if list, err := c.found(asked); err == nil {
			if f, ok := byID(list, ref); ok {
				return f, nil
			}
		}
	}
	all, err := All(ctx, runDir)
	if f, ok := byID(all, ref); ok {
		return f, nil
	}
	if err != nil {
		return Found{}, &Error{Status: 504, Code: CodeUnreached, Message: "find " + strconv.Quote(ref) + ": " + err.Error(), Hint: "give the whole id"}
	}
	fits := those(all, func(s Sandbox) bool { return s.Name == ref })
	if len(fits) == 0 {
		fits = those(all, func(s Sandbox) bool { return strings.HasPrefix(s.ID, ref) })
	}
	switch len(fits) {
	case 1:
		return fits[0], nil
	case 0:
		return Found{}, notFound(ref)
	}
	return Found{}, ambiguous(ref, fits)
}

func byID(all []Found, id string) (Found, bool) {
	fits := those(all, func(s Sandbox) bool { return s.ID == id })
	if len(fits) == 0 {
		return Found{}, false
	}
	return fits[0], true
}

func those(all []Found, is func(Sandbox) bool) []Found {
	var fits []Found
	for _, f := range all {
		if is(f.Sandbox) {
			fits = append(fits, f)
		}
	}
	return fits
}

func ambiguous(ref string, fits []Found) *Error {
	var text []string
	for _, f := range fits[:min(len(fits), maxListed)] {
		s := f.ID
		if f.Name != "" {
			s += " (" + f.Name + ")"
		}
		text = append(text, s)
	}
	if more := len(fits) - maxListed; more > 0 {
		text = append(text, fmt.Sprintf("%d more", more))
	}
	return &Error{Status: 409, Code: CodeAmbiguous, Message: fmt.Sprintf("%q fits %d runs: %s", ref, len(fits), strings.Join(text, ", ")), Hint: "give more of the id"}
}
