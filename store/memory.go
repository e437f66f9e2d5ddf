// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store that ends with the process. It passes the same suite as DB (storetest.Run). Use NewMemory.
type Memory struct {
	sem   chan struct{} // held by the one transaction
	data  map[string]sorted
	mu    sync.Mutex
	locks map[string]bool
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sem: make(chan struct{}, 1), data: map[string]sorted{}, locks: map[string]bool{}}
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

// sorted are pairs in the order of their keys, as the file has them.
type sorted []pair

type pair struct {
	key   string
	value []byte
}

// find returns where key is, or belongs.
func (s sorted) find(key string) (i int, has bool) {
	return slices.BinarySearchFunc(s, key, func(p pair, key string) int { return strings.Compare(p.key, key) })
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

func (t *memoryTx) get(bucket, key string) []byte {
	b := t.m.data[bucket]
	if i, has := b.find(key); has {
		return append([]byte{}, b[i].value...)
	}
	return nil
}

func (t *memoryTx) put(bucket, key string, value []byte) error {
	t.undo = append(t.undo, change{bucket, key, t.m.set(bucket, key, value)})
	return nil
}

func (t *memoryTx) remove(bucket, key string) error { return t.put(bucket, key, nil) }

func (t *memoryTx) seek(bucket, key string) (string, []byte) {
	b := t.m.data[bucket]
	if i, _ := b.find(key); i < len(b) {
		return b[i].key, append([]byte{}, b[i].value...)
	}
	return "", nil
}

func (t *memoryTx) size(bucket, key string) (string, int) {
	b := t.m.data[bucket]
	if i, _ := b.find(key); i < len(b) {
		return b[i].key, len(b[i].value)
	}
	return "", 0
}

func (t *memoryTx) rollback() {
	for _, c := range slices.Backward(t.undo) {
		t.m.set(c.bucket, c.key, c.old)
	}
}

// set returns the value that was there; nil, there and as value: none.
func (m *Memory) set(bucket, key string, value []byte) (old []byte) {
	b := m.data[bucket]
	i, has := b.find(key)
	if has {
		old = b[i].value
	}
	switch {
	case has && value == nil:
		b = slices.Delete(b, i, i+1)
	case has:
		b[i].value = value
	case value != nil:
		b = slices.Insert(b, i, pair{key, value})
	}
	m.data[bucket] = b
	return old
}
