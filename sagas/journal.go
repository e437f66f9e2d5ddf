// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"agentrun/internal/fault"
	"agentrun/store"
)

// Journal keeps records. What Create and Put have acknowledged lasts as long as the journal does.
type Journal interface {
	// Create keeps a new record, or returns ErrExists.
	Create(ctx context.Context, rec *Record, definition []byte) error
	// Put replaces a record. The journal keeps a copy.
	Put(ctx context.Context, rec *Record) error
	// Get returns a record, or ErrNotFound.
	Get(ctx context.Context, id string) (Record, error)
	// Definition returns what Create was given.
	Definition(ctx context.Context, id string) ([]byte, error)
	// List calls fn for each record, by id.
	List(ctx context.Context, fn func(Record) error) error
	// Lock returns ErrBusy while somebody has the lock of the id.
	Lock(id string) (*store.Lock, error)
}

// Durable is the Journal in a store.
type Durable struct{ store store.Store }

const (
	recordBucket     = "sagas"
	definitionBucket = "saga_definitions" // apart: the record is written at each transition, this once
	lockPrefix       = "saga/"
)

// NewDurable returns a journal that lasts as long as s does.
func NewDurable(s store.Store) *Durable { return &Durable{s} }

// Create keeps a new record.
func (d *Durable) Create(ctx context.Context, rec *Record, definition []byte) error {
	return d.store.Update(ctx, func(tx *store.Tx) error {
		if _, found, err := tx.Bucket(recordBucket).Get(rec.ID); err != nil || found {
			if found {
				err = fmt.Errorf("saga %s: %w", rec.ID, ErrExists)
			}
			return err
		}
		if err := tx.Bucket(definitionBucket).Put(rec.ID, definition); err != nil {
			return err
		}
		if err := fault.At("journal/create"); err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(recordBucket), rec.ID, rec)
	})
}

// Put replaces a record.
func (d *Durable) Put(ctx context.Context, rec *Record) error {
	return d.store.Update(ctx, func(tx *store.Tx) error {
		if err := fault.At("journal/put"); err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(recordBucket), rec.ID, rec)
	})
}

// Get returns a record.
func (d *Durable) Get(ctx context.Context, id string) (rec Record, err error) {
	err = d.store.View(ctx, func(tx *store.Tx) error {
		found, err := store.GetJSON(tx.Bucket(recordBucket), id, &rec)
		if err == nil && !found {
			err = fmt.Errorf("saga %.300q: %w", id, ErrNotFound)
		}
		return err
	})
	return rec, err
}

// Definition returns what Create was given.
func (d *Durable) Definition(ctx context.Context, id string) (definition []byte, err error) {
	err = d.store.View(ctx, func(tx *store.Tx) error {
		var found bool
		definition, found, err = tx.Bucket(definitionBucket).Get(id)
		if err == nil && !found {
			err = fmt.Errorf("saga %.300q: %w", id, ErrNotFound)
		}
		return err
	})
	return definition, err
}

// List calls fn for each record after reading all of them: fn may take its time, and use the store.
func (d *Durable) List(ctx context.Context, fn func(Record) error) error {
	var all []Record
	err := d.store.View(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(recordBucket), "", func(_ string, rec Record) error {
			all = append(all, rec)
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, rec := range all {
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

// Lock takes the lock of an id.
func (d *Durable) Lock(id string) (*store.Lock, error) {
	l, err := d.store.TryLock(lockPrefix + id)
	if errors.Is(err, store.ErrBusy) {
		err = fmt.Errorf("saga %s: %w", id, ErrBusy)
	}
	return l, err
}

// Memory is a Journal that ends with the process: for tests and for work that needs no yesterday. It costs no encoding.
type Memory struct {
	mu   sync.Mutex
	recs map[string]*memoryRecord
}

type memoryRecord struct {
	rec        Record
	definition []byte
	locked     bool
	created    bool
}

// NewMemory returns an empty journal.
func NewMemory() *Memory { return &Memory{recs: map[string]*memoryRecord{}} }

// Create keeps a new record.
func (m *Memory) Create(_ context.Context, rec *Record, definition []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recs[rec.ID]
	if r == nil {
		r = &memoryRecord{}
		m.recs[rec.ID] = r
	}
	if r.created {
		return fmt.Errorf("saga %s: %w", rec.ID, ErrExists)
	}
	r.rec, r.definition, r.created = rec.clone(), append([]byte(nil), definition...), true
	return nil
}

// Put replaces a record.
func (m *Memory) Put(_ context.Context, rec *Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recs[rec.ID]
	if r == nil || !r.created {
		return fmt.Errorf("saga %s: %w", rec.ID, ErrNotFound)
	}
	steps := append(r.rec.Steps[:0], rec.Steps...)
	r.rec = *rec
	r.rec.Steps = steps
	r.rec.Unresolved = append([]string(nil), rec.Unresolved...)
	r.rec.Unaudited = append([]Transition(nil), rec.Unaudited...)
	return nil
}

// Get returns a record.
func (m *Memory) Get(_ context.Context, id string) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.recs[id]; r != nil && r.created {
		return r.rec.clone(), nil
	}
	return Record{}, fmt.Errorf("saga %.300q: %w", id, ErrNotFound)
}

// Definition returns what Create was given.
func (m *Memory) Definition(_ context.Context, id string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.recs[id]; r != nil && r.created {
		return append([]byte(nil), r.definition...), nil
	}
	return nil, fmt.Errorf("saga %.300q: %w", id, ErrNotFound)
}

// List calls fn for each record.
func (m *Memory) List(_ context.Context, fn func(Record) error) error {
	for _, rec := range m.sorted() {
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

// Lock takes the lock of an id.
func (m *Memory) Lock(id string) (*store.Lock, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recs[id]
	if r == nil {
		r = &memoryRecord{}
		m.recs[id] = r
	}
	if r.locked {
		return nil, fmt.Errorf("saga %s: %w", id, ErrBusy)
	}
	r.locked = true
	return store.NewLock(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		r.locked = false
		if !r.created {
			delete(m.recs, id)
		}
	}), nil
}

func (m *Memory) sorted() []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Record
	for _, r := range m.recs {
		if r.created {
			all = append(all, r.rec.clone())
		}
	}
	slices.SortFunc(all, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	return all
}
