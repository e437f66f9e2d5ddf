// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"agentrun/rings"
)

// Contexts is what a Supervisor may implement besides: the tools context.get, context.put and context.list reach the key/value context
// of the run's session by it (H-32). Which session, and as which participant, follows from the link and from nothing in the request.
type Contexts interface {
	Context(ctx context.Context, q ContextRequest) (ContextAnswer, error)
}

// What a ContextRequest may ask for.
const (
	ContextGet  = "get"
	ContextPut  = "put"
	ContextList = "list"
)

// Why a ContextAnswer refuses.
const (
	ContextVersion = "version" // strong: the version is another by now
	ContextFull    = "full"    // a bound of rings.Shared
	ContextWrong   = "wrong"   // what the session's mode doesn't know, or a clock of writes that never were
	ContextLarge   = "large"   // what stands there is too large for an answer
)

// ContextRequest asks for a key's values, a page of the keys, or writes one.
type ContextRequest struct {
	Op      string            `json:"op"`
	Key     string            `json:"key,omitempty"`
	Value   []byte            `json:"value,omitempty"`
	Version uint64            `json:"version,omitempty"` // strong: what a put replaces
	Clock   rings.VectorClock `json:"clock,omitempty"`   // causal: what a put has read
	From    int               `json:"from,omitempty"`    // get: values from this one on
	After   string            `json:"after,omitempty"`   // list: keys after this one
}

// ContextValue is a value with its origin.
type ContextValue struct {
	Agent string    `json:"agent"`
	At    time.Time `json:"at"`
	Value []byte    `json:"value"`
}

// ContextKey is a key without its values.
type ContextKey struct {
	Key     string `json:"key"`
	Bytes   int    `json:"bytes"`
	Values  int    `json:"values"`
	Version uint64 `json:"version,omitempty"`
}

// ContextAnswer is the answer. The zero value refuses.
type ContextAnswer struct {
	Allowed  bool               `json:"allowed"`
	Refused  string             `json:"refused,omitempty"` // ContextVersion, …; else it is not said why
	Values   []ContextValue     `json:"values,omitempty"`  // get
	Keys     []ContextKey       `json:"keys,omitempty"`    // list
	More     bool               `json:"more,omitempty"`    // get, list: there are others after the last
	Version  uint64             `json:"version,omitempty"` // strong
	Clock    rings.VectorClock  `json:"clock,omitempty"`   // causal
	Conflict rings.ConflictKind `json:"conflict,omitempty"`
	Standing int                `json:"standing,omitempty"` // put: how many values stand under the key now
}

// ErrContext is a request that can't be.
var ErrContext = errors.New("link: impossible request to a session's context")

// Check holds a request to its form, whoever sent it: a gateway may have been taken over. The bounds are those of rings.Shared.
func (q ContextRequest) Check() error {
	key := func(s string) bool { return s != "" && len(s) <= rings.MaxSharedKeyBytes && utf8.ValidString(s) }
	switch {
	case q.Op == ContextGet && key(q.Key) && q.From >= 0 && q.From <= rings.MaxSharedSiblings,
		q.Op == ContextPut && key(q.Key) && len(q.Value) <= rings.MaxSharedValueBytes && len(q.Clock) <= maxContextClock,
		q.Op == ContextList && (q.After == "" || key(q.After)):
		return nil
	}
	return fmt.Errorf("%w: op %.20q, a key of %d bytes, a value of %d", ErrContext, q.Op, len(q.Key), len(q.Value))
}

// maxContextClock is more than a key's clock can have: rings bounds it by four times the participants.
const maxContextClock = 4 * rings.MaxParticipants

// Context implements Contexts. What may have happened when ctx ended isn't known: a put can be asked about by a get.
func (l *Client) Context(ctx context.Context, q ContextRequest) (ContextAnswer, error) {
	return asked[ContextAnswer](ctx, l, opContext, q, nil)
}

var errNoContext = errors.New("there is no session's context here")
