// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"sync"

	"agentrun/store"
)

// ErrInjected is what Faulty breaks with.
var ErrInjected = errors.New("injected fault")

// Faulty is a Store whose nth Update breaks, counted from 1, and with it every later one: the disk is gone.
type Faulty struct {
	store.Store
	// FailAt is the Update that breaks; 0: none does.
	FailAt int
	// After lets the broken Update happen before it is reported as an error, as a disk does whose answer is lost.
	After bool

	mu      sync.Mutex
	updates int
}

// Updates tells how many there were, broken ones included.
func (f *Faulty) Updates() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.updates
}

// Update passes on, or breaks.
func (f *Faulty) Update(ctx context.Context, fn func(*store.Tx) error) error {
	f.mu.Lock()
	f.updates++
	n := f.updates
	f.mu.Unlock()
	if f.FailAt == 0 || n < f.FailAt {
		return f.Store.Update(ctx, fn)
	}
	if f.After && n == f.FailAt {
		if err := f.Store.Update(ctx, fn); err != nil {
			return err
		}
	}
	return ErrInjected
}
