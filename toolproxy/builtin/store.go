// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
)

// Errors of a MemoryStore.
var (
	ErrFull   = errors.New("memory quota is used up")
	ErrNoItem = errors.New("no such memory item")
	ErrOthers = errors.New("memory item of another author")
)

// MemoryStore keeps items by scope. The gateway has no privilege to keep anything itself, so one that outlives the run asks
// the supervisor. It must hold each scope apart from all others, bound it, and end with ctx.
type MemoryStore interface {
	// List returns a scope's items by id. The caller doesn't change them.
	List(ctx context.Context, s Scope) ([]Item, error)
	// Put adds an item, or replaces the one of this id and author; without an id it gives one. ErrFull, ErrOthers.
	Put(ctx context.Context, s Scope, item Item) (id string, err error)
	// Delete removes the item of this id and author. ErrNoItem, ErrOthers.
	Delete(ctx context.Context, s Scope, id, author string) error
}

// Quotas of NewMemory, for each scope.
const (
	MaxItems       = 1000
	MaxMemoryBytes = 4 << 20
	maxScopes      = 64 // a gateway serves one run and so one scope; this is in case it ever doesn't
)

type memoryScope struct {
	items map[string]Item
	bytes int64
	last  uint64 // number of the last id given
}

type inMemory struct {
	mu     sync.Mutex
	scopes map[Scope]*memoryScope
}

// NewMemory returns a store in memory: it is gone with the gateway, that is, with the run.
func NewMemory() MemoryStore { return &inMemory{scopes: map[Scope]*memoryScope{}} }

func (m *inMemory) List(_ context.Context, s Scope) ([]Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	scope := m.scopes[s]
	if scope == nil {
		return nil, nil
	}
	items := make([]Item, 0, len(scope.items))
	for _, item := range scope.items {
		items = append(items, item)
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	return items, nil
}

func (m *inMemory) Put(_ context.Context, s Scope, item Item) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	scope := m.scopes[s]
	if scope == nil {
		if len(m.scopes) >= maxScopes {
			return "", ErrFull
		}
		scope = &memoryScope{items: map[string]Item{}}
		m.scopes[s] = scope
	}
	old, replaces := scope.items[item.ID]
	if replaces && old.Author != item.Author {
		return "", ErrOthers
	}
	if item.ID == "" {
		item.ID = scope.freeIDLocked()
	}
	size := item.Size()
	if replaces {
		size -= old.Size()
	}
	if !replaces && len(scope.items) >= MaxItems || scope.bytes+size > MaxMemoryBytes {
		return "", ErrFull
	}
	scope.items[item.ID] = item
	scope.bytes += size
	return item.ID, nil
}

// freeIDLocked counts on past ids that an agent took itself; each is skipped once.
func (s *memoryScope) freeIDLocked() string {
	for {
		s.last++
		id := "m" + strconv.FormatUint(s.last, 10)
		if _, taken := s.items[id]; !taken {
			return id
		}
	}
}

func (m *inMemory) Delete(_ context.Context, s Scope, id, author string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	scope := m.scopes[s]
	if scope == nil {
		return ErrNoItem
	}
	item, found := scope.items[id]
	switch {
	case !found:
		return ErrNoItem
	case item.Author != author:
		return ErrOthers
	}
	delete(scope.items, id)
	scope.bytes -= item.Size()
	return nil
}
