// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Limits. A record is a decision or a name, not a document: what is larger is a mistake or an attack on the disk.
const (
	MaxBucketName = 64
	MaxKey        = 1024
	MaxValue      = 1 << 20
)

var (
	// ErrBusy is a lock that somebody else holds.
	ErrBusy = errors.New("busy")
	// ErrSchema is a file that a newer agentrun wrote.
	ErrSchema = errors.New("written by a newer agentrun")
	// ErrLimit is a name, key or value that is empty or over its limit.
	ErrLimit = errors.New("over the limit")
	// ErrReadOnly is a write in View.
	ErrReadOnly = errors.New("read-only transaction")
	// ErrEnded is a Tx used after its function returned, or the zero Tx.
	ErrEnded = errors.New("no transaction")
)

// Store is what DB and Memory have in common. Wrappers may stand in front: see storetest.Faulty.
type Store interface {
	// Update runs fn in a transaction that is kept if fn returns nil, and dropped if it returns an error or panics.
	// A transaction inside a transaction waits for itself until its time is up.
	Update(ctx context.Context, fn func(*Tx) error) error
	// View runs fn in a transaction that can't write.
	View(ctx context.Context, fn func(*Tx) error) error
	// TryLock takes the lock called name, or returns ErrBusy. Names are independent of transactions and buckets.
	TryLock(name string) (*Lock, error)
	// Close gives the store up. It doesn't release locks from TryLock.
	Close() error
}

// kv is what a transaction needs of whatever keeps the bytes. Names and keys have been checked.
type kv interface {
	get(bucket, key string) []byte // a copy; nil: there is none
	put(bucket, key string, value []byte) error
	remove(bucket, key string) error
	seek(bucket, key string) (string, []byte) // a copy of the first pair at or after key; "": there is none
	size(bucket, key string) (string, int)    // the same of the key alone, and how long its value is
}

// Tx is a transaction. It belongs to the function it was given to and to one goroutine.
type Tx struct {
	kv       kv
	writable bool
}

// Bucket names a set of keys. It need not exist: it is made by its first Put.
func (tx *Tx) Bucket(name string) *Bucket { return &Bucket{tx, name} }

// Bucket is a set of keys in a transaction, ordered by their bytes.
type Bucket struct {
	tx   *Tx
	name string
}

func (b *Bucket) check(key string, write bool) error {
	switch {
	case b == nil || b.tx == nil || b.tx.kv == nil:
		return ErrEnded
	case write && !b.tx.writable:
		return fmt.Errorf("bucket %s: %w", b.name, ErrReadOnly)
	case b.name == "" || len(b.name) > MaxBucketName || b.name == metaBucket:
		return fmt.Errorf("bucket name %.80q: %w", b.name, ErrLimit)
	case key == "" || len(key) > MaxKey:
		return fmt.Errorf("bucket %s: key of %d bytes: %w", b.name, len(key), ErrLimit)
	}
	return nil
}

// Get returns a copy of the value of key.
func (b *Bucket) Get(key string) (value []byte, found bool, err error) {
	if err := b.check(key, false); err != nil {
		return nil, false, err
	}
	v := b.tx.kv.get(b.name, key)
	if v == nil {
		return nil, false, nil
	}
	return v, true, nil
}

// Put sets the value of key. value is copied.
func (b *Bucket) Put(key string, value []byte) error {
	if err := b.check(key, true); err != nil {
		return err
	}
	if len(value) > MaxValue {
		return fmt.Errorf("bucket %s: value of %d bytes: %w", b.name, len(value), ErrLimit)
	}
	return b.tx.kv.put(b.name, key, append([]byte{}, value...))
}

// Delete removes key; it is no error if there is none.
func (b *Bucket) Delete(key string) error {
	if err := b.check(key, true); err != nil {
		return err
	}
	return b.tx.kv.remove(b.name, key)
}

// Each calls fn for every key that begins with prefix, in order, until fn returns an error, which it returns. fn may
// write to the bucket; keys that it adds behind the current one come up too.
func (b *Bucket) Each(prefix string, fn func(key string, value []byte) error) error {
	return b.EachAfter(prefix, "", fn)
}

// EachAfter is Each for the keys greater than after: what comes before isn't read.
func (b *Bucket) EachAfter(prefix, after string, fn func(key string, value []byte) error) error {
	return each(b, kv.seek, prefix, after, fn)
}

// Sizes is Each of how long the values are, of which it reads nothing: others wait for a transaction.
func (b *Bucket) Sizes(prefix string, fn func(key string, size int) error) error {
	return each(b, kv.size, prefix, "", fn)
}

func each[V any](b *Bucket, next func(from kv, bucket, at string) (key string, v V), prefix, after string, fn func(key string, v V) error) error {
	if err := b.check("x", false); err != nil {
		return err
	}
	at := prefix
	if after >= prefix && after != "" {
		at = after + "\x00"
	}
	for {
		// Each step seeks anew: a cursor of bbolt is void after a write, silently.
		k, v := next(b.tx.kv, b.name, at)
		if k == "" || len(k) < len(prefix) || k[:len(prefix)] != prefix {
			return nil
		}
		if err := fn(k, v); err != nil {
			return err
		}
		if b.tx.kv == nil {
			return ErrEnded
		}
		at = k + "\x00"
	}
}

// Lock is a lock that TryLock took.
type Lock struct {
	file    *os.File
	release func()
	once    sync.Once
}

// File is what holds the lock, for ExtraFiles of a child: the lock then lasts until the child is dead too, however we
// die. It is nil for a lock in memory.
func (l *Lock) File() *os.File { return l.file }

// Unlock gives the lock up, also for children that got File. Only the first call counts, whoever makes it.
func (l *Lock) Unlock() {
	if l != nil {
		l.once.Do(l.release)
	}
}

// NewLock returns a lock without a file that calls release once. It is for other implementations of TryLock.
func NewLock(release func()) *Lock { return &Lock{release: release} }
