// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

var _ link.Contexts = (*Broker)(nil)

// contextPage is how many keys an answer lists: with each character of each escaped they fit a frame.
const contextPage = 64

// Context implements link.Contexts: the run's agent reads and writes in the run's session, and nowhere else (H-32). The gateway has
// decided about the tool call; as with the memory, what the supervisor knows is asked again here.
func (b *Broker) Context(ctx context.Context, q link.ContextRequest) (link.ContextAnswer, error) {
	if b.adm.Agent == "" || b.adm.Session == "" {
		return link.ContextAnswer{}, errors.New("the run has no session")
	}
	if err := b.mayKeep(q.Check(), "context."+q.Op); err != nil {
		return link.ContextAnswer{}, err
	}
	// One at a time: a transaction keeps all other runs of the node from theirs.
	b.memory.Lock()
	defer b.memory.Unlock()
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	a, err := b.context(ctx, q)
	for refused, why := range map[string]error{
		link.ContextVersion: rings.ErrVersion, link.ContextFull: rings.ErrSharedBounds, link.ContextWrong: rings.ErrMode,
	} {
		if errors.Is(err, why) {
			return link.ContextAnswer{Refused: refused}, nil
		}
	}
	if errors.Is(err, rings.ErrFuture) {
		return link.ContextAnswer{Refused: link.ContextWrong}, nil
	}
	if err != nil {
		return link.ContextAnswer{}, err
	}
	if text, err := json.Marshal(a); err != nil || len(text) > link.MaxFrame-contextFrame {
		return link.ContextAnswer{Refused: link.ContextLarge}, err
	}
	a.Allowed = true
	return a, nil
}

// contextFrame is left for what is around an answer: one that is longer than a frame would end the link, and with it the run.
const contextFrame = 4 << 10

func (b *Broker) context(ctx context.Context, q link.ContextRequest) (a link.ContextAnswer, err error) {
	session, agent := b.adm.Session, b.adm.Agent
	switch q.Op {
	case link.ContextPut:
		if err := b.countWrite(); err != nil {
			return a, err
		}
		r, err := b.h.PutShared(ctx, session, rings.SharedWrite{Agent: agent, Key: q.Key, Value: q.Value, Version: q.Version, Clock: q.Clock})
		return link.ContextAnswer{Conflict: r.Conflict, Version: r.Version, Clock: r.Clock, Standing: len(r.Values)}, err
	case link.ContextGet:
		r, err := b.h.GetShared(ctx, session, agent, q.Key)
		a = link.ContextAnswer{Version: r.Version, Clock: r.Clock}
		size := 0
		for _, v := range r.Values[min(q.From, len(r.Values)):] {
			if size += len(v.Value); size > rings.MaxSharedValueBytes && len(a.Values) > 0 {
				a.More = true
				break
			}
			a.Values = append(a.Values, link.ContextValue{Agent: v.Agent, At: v.At, Value: v.Value})
		}
		return a, err
	}
	keys, more, err := b.h.ListShared(ctx, session, agent, q.After, contextPage)
	for _, k := range keys {
		a.Keys = append(a.Keys, link.ContextKey{Key: k.Key, Bytes: k.Size().Bytes, Values: len(k.Values), Version: k.Version})
	}
	a.More = more
	return a, err
}

// mayKeep asks what holds for every tool that keeps something beyond the run; malformed is what is wrong with the request.
func (b *Broker) mayKeep(malformed error, tool string) error {
	switch {
	case malformed != nil:
		return malformed
	case b.over():
		return errors.New("the run has ended")
	case b.live.isStopped():
		return errStopped
	case !b.adm.Grant.Allows(tool):
		return fmt.Errorf("plan %s or the agent's role doesn't include the tool %s", b.adm.Grant.Plan, tool)
	}
	return nil
}
