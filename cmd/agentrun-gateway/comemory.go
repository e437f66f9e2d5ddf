// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"agentrun/toolproxy/builtin"
	"agentrun/toolproxy/link"
)

// memoryOf gives the tool `memory` a store that outlives the run (M-14), if the run has an agent whose it can be. nil: the tool
// has its own, which ends with the run.
func memoryOf(c link.Caller, supervisor link.Supervisor) builtin.MemoryStore {
	keeper, ok := supervisor.(link.Memory)
	if !ok || c.Agent == "" {
		return nil
	}
	return &coMemory{keeper: keeper, scope: builtin.ScopeOf(c), author: c.Agent, turn: make(chan struct{}, 1)}
}

// contextOf gives the context tools the run's session (H-32); nil: it has none.
func contextOf(c link.Caller, supervisor link.Supervisor) link.Contexts {
	to, ok := supervisor.(link.Contexts)
	if !ok || c.Agent == "" || c.Session == "" {
		return nil
	}
	return to
}

// filesOf gives the tool `file` the folder of the run's session (M-11); nil: it has none.
func filesOf(c link.Caller, supervisor link.Supervisor) link.Files {
	to, ok := supervisor.(link.Files)
	if !ok || c.Agent == "" || c.Session == "" {
		return nil
	}
	return to
}

// coMemory asks the supervisor. It keeps what it was told last, so that a memory which hasn't changed isn't told again; each
// question asks whether it has.
type coMemory struct {
	keeper link.Memory
	scope  builtin.Scope
	author string

	turn    chan struct{} // held while it asks
	version uint64        // of items; 0: nothing is known
	items   []builtin.Item
}

var (
	errScope  = errors.New("memory of another scope")
	errAnswer = errors.New("the supervisor's answer about the memory makes no sense")
)

func (m *coMemory) hold(ctx context.Context, s builtin.Scope) (release func(), err error) {
	if s != m.scope {
		return nil, errScope
	}
	select {
	case m.turn <- struct{}{}:
		return func() { <-m.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// List implements builtin.MemoryStore.
func (m *coMemory) List(ctx context.Context, s builtin.Scope) ([]builtin.Item, error) {
	release, err := m.hold(ctx, s)
	if err != nil {
		return nil, err
	}
	defer release()
	var items []builtin.Item
	var version uint64
	q := link.MemoryRequest{Op: link.MemoryList, Version: m.version}
	for {
		a, err := m.ask(ctx, q)
		if err != nil {
			return nil, err
		}
		if q.After == "" {
			if a.Same && q.Version != 0 {
				return m.items, nil
			}
			version = a.Version
		} else if a.Version != version {
			version = 0 // changed meanwhile: true as of now, page by page, and nothing to keep
		}
		for _, i := range a.Items {
			item, err := itemOf(i)
			if err != nil {
				return nil, err
			}
			if len(items) > 0 && item.ID <= items[len(items)-1].ID || len(items) >= 2*builtin.MaxItems {
				return nil, errAnswer
			}
			items = append(items, item)
		}
		if !a.More {
			m.version, m.items = version, items
			return items, nil
		}
		if len(a.Items) == 0 {
			return nil, errAnswer
		}
		q.After = items[len(items)-1].ID
	}
}

// ask gives an answer that allows, or an error of package builtin's.
func (m *coMemory) ask(ctx context.Context, q link.MemoryRequest) (link.MemoryAnswer, error) {
	a, err := m.keeper.Memory(ctx, q)
	switch {
	case err != nil:
		return link.MemoryAnswer{}, err
	case a.Allowed:
		return a, nil
	case a.Refused == link.MemoryFull:
		err = builtin.ErrFull
	case a.Refused == link.MemoryMissing:
		err = builtin.ErrNoItem
	case a.Refused == link.MemoryOthers:
		err = builtin.ErrOthers
	default:
		err = errAnswer
	}
	return link.MemoryAnswer{}, err
}

func itemOf(i link.MemoryItem) (builtin.Item, error) {
	if err := i.Check(); err != nil || i.ID == "" {
		return builtin.Item{}, errors.Join(errAnswer, err)
	}
	numbers, err := link.UnpackEmbedding(i.Embedding)
	return builtin.Item{ID: i.ID, Kind: i.Kind, Summary: i.Summary, Embedding: numbers, Tags: i.Tags, Author: i.Author, At: i.At}, err
}

// Put implements builtin.MemoryStore.
func (m *coMemory) Put(ctx context.Context, s builtin.Scope, item builtin.Item) (string, error) {
	release, err := m.hold(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	a, err := m.ask(ctx, link.MemoryRequest{Op: link.MemoryPut, Item: link.MemoryItem{
		ID: item.ID, Kind: item.Kind, Summary: item.Summary, Embedding: link.PackEmbedding(item.Embedding), Tags: item.Tags,
	}})
	if err != nil {
		return "", err
	}
	if a.ID == "" || item.ID != "" && a.ID != item.ID {
		return "", fmt.Errorf("%w: id %.80q for %.80q", errAnswer, a.ID, item.ID)
	}
	item.ID, item.At, item.Author = a.ID, a.At, m.author
	m.note(a.Version, item.ID, &item)
	return a.ID, nil
}

// Delete implements builtin.MemoryStore. Who asks is known to the supervisor, which holds to it.
func (m *coMemory) Delete(ctx context.Context, s builtin.Scope, id, _ string) error {
	release, err := m.hold(ctx, s)
	if err != nil {
		return err
	}
	defer release()
	a, err := m.ask(ctx, link.MemoryRequest{Op: link.MemoryDelete, Item: link.MemoryItem{ID: id}})
	if err != nil {
		return err
	}
	m.note(a.Version, id, nil)
	return nil
}

// note changes what is known by one change of our own, if there was no other. Lists that were given out stay as they are.
func (m *coMemory) note(version uint64, id string, item *builtin.Item) {
	if m.version == 0 || version != m.version+1 {
		m.version, m.items = 0, nil
		return
	}
	m.version = version
	at, found := slices.BinarySearchFunc(m.items, id, func(i builtin.Item, id string) int { return cmp.Compare(i.ID, id) })
	items := slices.Clone(m.items)
	switch {
	case found && item == nil:
		items = slices.Delete(items, at, at+1)
	case found:
		items[at] = *item
	case item != nil:
		items = slices.Insert(items, at, *item)
	}
	m.items = items
}
