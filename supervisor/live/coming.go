// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"

	"agentrun/control"
	"agentrun/internal/shown"
)

// Coming is a run that operators can't see yet: it waits for room, or is planned.
type Coming struct {
	Agent, Session string // empty: none
	End            context.CancelCauseFunc
}

// Expect has a kill of all runs, of the agent's or of the session's end the one that comes, until gone is called, which may be called again:
// when Begin has made it known, or nothing will.
func (s *Runs) Expect(c *Coming) (gone func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.coming, c)
	}
}

func (s *Runs) endComing(sel control.Selector, by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.coming {
		if sel.All || sel.Agent != "" && c.Agent == sel.Agent || sel.Session != "" && c.Session == sel.Session {
			c.End(fmt.Errorf("killed by %s before it began", shown.Line(by)))
		}
	}
}
