// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Memory is a Store that ends with the process. It passes the same suite as DB (storetest.Run). Use NewMemory.
type Memory struct {
	sem   chan struct{} // held by the one transaction
	data  map[string]*sortedMap
	mu    sync.Mutex
	locks map[string]bool
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sem: make(chan struct{}, 1), data: map[string]*sortedMap{}, locks: map[string]bool{}}
}

// Update runs fn in a transaction that can write.
func (m *Memory) Update(ctx context.Context, fn func(*Tx) error) error { return m.run(ctx, true, fn) }

// View runs fn in a transaction that can't.
func (m *Memory) View(ctx context.Context, fn func(*Tx) error) error { return m.run(ctx, false, fn) }

func (m *Memory) run(ctx context.Context, writable bool, fn func(*Tx) error) error {
	if err := take(ctx, m.sem, DefaultLockTimeout); err != nil {
		return fmt.Errorf("state in memory: %w", err)
	}
	defer func() { <-m.sem }()
	back := &memoryTx{m: m}
	tx := &Tx{kv: back, writable: writable}
	kept := false
	defer func() {
		tx.kv = nil
		if !kept {
			back.rollback()
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	kept = true
	return nil
}

// TryLock takes a lock that ends with the process at the latest.
func (m *Memory) TryLock(name string) (*Lock, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] {
		return nil, fmt.Errorf("lock %q: %w", name, ErrBusy)
	}
	m.locks[name] = true
	return &Lock{release: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.locks, name)
	}}, nil
}

// Close does nothing.
func (m *Memory) Close() error { return nil }

// take waits for the semaphore at most limit.
func take(ctx context.Context, sem chan struct{}, limit time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case sem <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%w: another transaction of this process is running for over %v", ErrBusy, limit)
	}
}

// sortedMap keeps its keys in order, as the file does.
type sortedMap struct {
	keys   []string
	values map[string][]byte
}

func (s *sortedMap) set(key string, value []byte) {
	if _, has := s.values[key]; !has {
		i, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, i, key)
	}
	s.values[key] = value
}

func (s *sortedMap) drop(key string) {
	if i, has := slices.BinarySearch(s.keys, key); has {
		s.keys = slices.Delete(s.keys, i, i+1)
		delete(s.values, key)
	}
}

// memoryTx writes in place and remembers what was there.
type memoryTx struct {
	m    *Memory
	undo []change
}

type change struct {
	bucket, key string
	old         []byte // nil: there was none
}

func (t *memoryTx) bucket(name string) *sortedMap {
	b := t.m.data[name]
	if b == nil {
		b = &sortedMap{values: map[string][]byte{}}
		t.m.data[name] = b
	}
	return b
}

func (t *memoryTx) get(bucket, key string) []byte {
	if v := t.bucket(bucket).values[key]; v != nil {
		return append([]byte{}, v...)
	}
	return nil
}

func (t *memoryTx) put(bucket, key string, value []byte) error {
	b := t.bucket(bucket)
	t.undo = append(t.undo, change{bucket, key, b.values[key]})
	b.set(key, value)
	return nil
}

func (t *memoryTx) remove(bucket, key string) error {
	b := t.bucket(bucket)
	t.undo = append(t.undo, change{bucket, key, b.values[key]})
	b.drop(key)
	return nil
}

func (t *memoryTx) seek(bucket, key string) (string, []byte) {
	b := t.bucket(bucket)
	if i, _ := slices.BinarySearch(b.keys, key); i < len(b.keys) {
		return b.keys[i], append([]byte{}, b.values[b.keys[i]]...)
	}
	return "", nil
}

func (t *memoryTx) rollback() {
	for _, c := range slices.Backward(t.undo) {
		if c.old == nil {
			t.bucket(c.bucket).drop(c.key)
		} else {
			t.bucket(c.bucket).set(c.key, c.old)
		}
	}
}
