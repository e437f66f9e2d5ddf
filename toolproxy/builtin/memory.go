// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"slices"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// How many items a list or a search gives. The bounds of an item (M-14) are those of package link.
const (
	maxListed = 100
	listed    = 20
)

// Item is what the memory keeps (`comemory_items`, M-14): a summary or an embedding, never a message.
type Item struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Summary   string    `json:"summary,omitempty"`
	Embedding []float32 `json:"embedding,omitempty"`
	Tags      []string  `json:"tags,omitempty"`
	Author    string    `json:"author,omitempty"` // the agent; only it may replace or delete the item
	At        time.Time `json:"at"`
}

// Size is what an item counts against a quota, in bytes.
func (i Item) Size() int64 {
	n := len(i.ID) + len(i.Summary) + 4*len(i.Embedding) + len(i.Author)
	for _, tag := range i.Tags {
		n += len(tag)
	}
	return int64(n) + 64
}

// Scope is whose memory it is. It comes from the Caller, never from an argument.
type Scope struct {
	Kind string // "session", "agent" or "run"
	ID   string
}

// ScopeOf gives a session's runs their session's memory, which its participants share; an agent without session its own;
// and a run without either one that ends with it.
func ScopeOf(c link.Caller) Scope {
	switch {
	case c.Session != "":
		return Scope{"session", c.Session}
	case c.Agent != "":
		return Scope{"agent", c.Agent}
	}
	return Scope{"run", c.Run}
}

// memoryArgs names the fields of raw messages only to refuse them, with a sentence that says why: the schema
// (tools.json) has no place for a message.
type memoryArgs struct {
	Op        string    `json:"op"`
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Summary   string    `json:"summary"`
	Embedding []float64 `json:"embedding"`
	Tags      []string  `json:"tags"`
	Tag       string    `json:"tag"`
	Limit     int       `json:"limit"`

	Messages   any `json:"messages"`
	Raw        any `json:"raw"`
	Transcript any `json:"transcript"`
}

type memory struct {
	store MemoryStore
	clock func() time.Time
}

func (m memory) run(ctx context.Context, c tools.Call, args memoryArgs) (any, error) {
	if args.Messages != nil || args.Raw != nil || args.Transcript != nil {
		return nil, rawMessage()
	}
	if args.Limit == 0 {
		args.Limit = listed
	}
	if args.Limit < 1 || args.Limit > maxListed {
		return nil, tools.BadArguments("limit is 1 to %d", maxListed)
	}
	scope := ScopeOf(c.Caller)
	if scope.ID == "" {
		return nil, refuse(gate.CodeUnavailable, "", "the run has no identity, so it has no memory")
	}
	switch args.Op {
	case "put":
		return m.put(ctx, scope, c.Caller, args)
	case "get":
		return m.get(ctx, scope, args.ID)
	case "list":
		return m.list(ctx, scope, args)
	case "delete":
		return m.remove(ctx, scope, c.Caller, args.ID)
	case "search":
		return m.search(ctx, scope, args)
	}
	return nil, tools.BadArguments("op %.20q is not one of the schema's", args.Op)
}

func rawMessage() *gate.Error {
	e := refuse(gate.CodeBadArguments, "put a summary in your own words, or an embedding of it", "the memory keeps summaries and embeddings, never raw messages")
	e.Rule = "M-14"
	return e
}

func (m memory) put(ctx context.Context, scope Scope, caller link.Caller, args memoryArgs) (any, error) {
	item := Item{ID: args.ID, Kind: args.Kind, Summary: args.Summary, Tags: args.Tags, Author: authorOf(caller), At: m.clock().UTC()}
	if err := item.setEmbedding(args.Embedding); err != nil {
		return nil, err
	}
	if err := item.check(); err != nil {
		return nil, err
	}
	id, err := m.store.Put(ctx, scope, item)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return map[string]any{"id": id}, nil
}

func authorOf(c link.Caller) string {
	if c.Agent != "" {
		return c.Agent
	}
	return c.Run
}

// setEmbedding takes numbers that float32 can hold: an infinity would make every similarity NaN, which compares as neither
// less nor more and would leave the order of a search to chance.
func (i *Item) setEmbedding(numbers []float64) *gate.Error {
	if len(numbers) > link.MaxMemoryEmbedding {
		return tools.BadArguments("the embedding has %d numbers, at most %d are allowed", len(numbers),
			link.MaxMemoryEmbedding)
	}
	for _, n := range numbers {
		f := float32(n)
		if f-f != 0 {
			return tools.BadArguments("a number of the embedding is too large")
		}
		i.Embedding = append(i.Embedding, f)
	}
	return nil
}

func (i *Item) check() *gate.Error {
	switch {
	case i.ID != "" && (len(i.ID) > link.MaxMemoryID || rings.CheckSessionID(i.ID) != nil):
		return tools.BadArguments("id is letters, digits, _ and -, at most %d", link.MaxMemoryID)
	case i.Kind == link.MemorySummary && (i.Summary == "" || len(i.Embedding) > 0):
		return tools.BadArguments("an item of kind summary has a summary and no embedding")
	case i.Kind == link.MemoryEmbedding && (i.Summary != "" || len(i.Embedding) == 0):
		return tools.BadArguments("an item of kind embedding has an embedding and no summary")
	case i.Kind != link.MemorySummary && i.Kind != link.MemoryEmbedding:
		return tools.BadArguments("kind is summary or embedding")
	case len(i.Summary) > link.MaxMemorySummary:
		return tools.BadArguments("the summary has %d bytes, at most %d are allowed",
			len(i.Summary), link.MaxMemorySummary)
	case link.Transcript(i.Summary):
		return rawMessage()
	case len(i.Tags) > link.MaxMemoryTags,
		slices.ContainsFunc(i.Tags, func(t string) bool { return !link.MemoryTag(t) }):
		return tools.BadArguments("tags are at most %d, of 1 to %d bytes without control characters",
			link.MaxMemoryTags, link.MaxMemoryTag)
	}
	return nil
}

func (m memory) get(ctx context.Context, scope Scope, id string) (any, error) {
	items, err := m.store.List(ctx, scope)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	for _, item := range items {
		if item.ID == id && id != "" {
			return item, nil
		}
	}
	return nil, noItem()
}

func noItem() *gate.Error {
	return refuse(gate.CodeNotFound, "op list tells what is there", "the memory has no such item")
}

func (m memory) list(ctx context.Context, scope Scope, args memoryArgs) (any, error) {
	items, err := m.store.List(ctx, scope)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	kept := []Item{}
	more := false
	for _, item := range items {
		if args.Tag != "" && !slices.Contains(item.Tags, args.Tag) {
			continue
		}
		if more = len(kept) == args.Limit; more {
			break
		}
		item.Embedding = nil // get has it
		kept = append(kept, item)
	}
	return map[string]any{"items": kept, "more": more}, nil
}

func (m memory) remove(ctx context.Context, scope Scope, caller link.Caller, id string) (any, error) {
	if id == "" {
		return nil, tools.BadArguments("delete needs an id")
	}
	if err := m.store.Delete(ctx, scope, id, authorOf(caller)); err != nil {
		return nil, storeError(ctx, err)
	}
	return map[string]any{"deleted": id}, nil
}

// storeError says what an agent may know of a store's error.
func storeError(ctx context.Context, err error) *gate.Error {
	var e *gate.Error
	switch {
	case errors.Is(err, ErrFull):
		e = refuse(gate.CodeQuota, "delete what is no longer needed", "the memory is full")
	case errors.Is(err, ErrNoItem):
		e = noItem()
	case errors.Is(err, ErrOthers):
		e = refuse(gate.CodeToolRestricted, "put it under another id", "the item is another agent's")
	case ctx.Err() != nil:
		e = ended(ctx)
	default:
		e = refuse(gate.CodeUnavailable, "try again later", "the memory can't be reached")
	}
	e.Cause = err
	return e
}
