// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
)

// File is the name of the state in its folder.
const File = "state.db"

const (
	fileName = File
	newName  = "state.db.new" // until it is whole

	metaBucket = "store"
	schemaKey  = "schema"

	// Schema is the version of what is in the file. A change that older versions would read wrongly raises it. A new
	// field of a record does: they refuse fields they don't know anyway, and should say why.
	Schema = 1

	// DefaultLockTimeout is how long a transaction waits for others. Theirs take milliseconds; a disk that has
	// stalled takes seconds.
	DefaultLockTimeout = 10 * time.Second
)

// Options are DB's.
type Options struct {
	// LockTimeout is how long a transaction waits for others, besides its context. 0: DefaultLockTimeout.
	LockTimeout time.Duration
}

// DB is a Store in the file state.db of a folder. It holds the file open only during a transaction, so that any number of
// processes can share it. Safe for concurrent use.
type DB struct {
	dir   *os.File
	limit time.Duration
	sem   chan struct{} // held by this process's one transaction

	mu   sync.Mutex
	late *waiter // for the lock; nil: there is none
}

// Open opens the state in dir. Folder (0700) and file (0600) are made if they aren't there; those that are there must be
// ours and nobody else's.
func Open(dir string, opt Options) (*DB, error) {
	if opt.LockTimeout < 0 {
		return nil, fmt.Errorf("state %s: lock time limit %v: %w", dir, opt.LockTimeout, ErrLimit)
	}
	f, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	d := &DB{dir: f, limit: opt.LockTimeout, sem: make(chan struct{}, 1)}
	if d.limit == 0 {
		d.limit = DefaultLockTimeout
	}
	if err := d.prepare(); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

// Close waits for the transaction that this process is in, as long as one would, and gives the folder up; a later one is an error.
func (d *DB) Close() error {
	err := take(context.Background(), d.sem, d.limit)
	if err == nil {
		defer func() { <-d.sem }()
	}
	return errors.Join(err, d.dir.Close())
}

func (d *DB) path(name string) string { return filepath.Join(d.dir.Name(), name) }

// prepare makes the file if there is none: under another name until it is whole, because a process that dies while
// bbolt writes the first pages would leave a file that every later one takes for damaged.
func (d *DB) prepare() error {
	if has, err := exists(d.dir, fileName); has || err != nil {
		return err // the first transaction looks closer
	}
	release, err := d.acquire(context.Background())
	if err != nil {
		return err
	}
	defer release()
	if has, err := exists(d.dir, fileName); has || err != nil {
		return err
	}
	fd := int(d.dir.Fd())
	if err := unix.Unlinkat(fd, newName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("state %s: %w", d.path(newName), err)
	}
	err = d.bolt(newName, true, func(btx *bolt.Tx) error {
		b, err := btx.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		return b.Put([]byte(schemaKey), []byte(strconv.Itoa(Schema)))
	})
	if err != nil {
		return err
	}
	if err := unix.Renameat(fd, newName, fd, fileName); err != nil {
		return fmt.Errorf("state %s: %w", d.path(fileName), err)
	}
	if err := d.dir.Sync(); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	return nil
}

// Update runs fn in a transaction that can write. When it returns nil, what fn did is on the disk.
func (d *DB) Update(ctx context.Context, fn func(*Tx) error) error { return d.run(ctx, true, fn) }

// View runs fn in a transaction that can't.
func (d *DB) View(ctx context.Context, fn func(*Tx) error) error { return d.run(ctx, false, fn) }

func (d *DB) run(ctx context.Context, writable bool, fn func(*Tx) error) error {
	release, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return d.bolt(fileName, writable, func(btx *bolt.Tx) error {
		if err := d.checkSchema(btx); err != nil {
			return err
		}
		tx := &Tx{kv: boltTx{btx}, writable: writable}
		defer func() { tx.kv = nil }()
		if err := fn(tx); err != nil || !writable {
			return err
		}
		return fault.At("store/commit")
	})
}

// checkSchema runs in every transaction: a newer agentrun may have been installed since the last one.
func (d *DB) checkSchema(btx *bolt.Tx) error {
	var raw []byte
	guard(func() {
		if b := btx.Bucket([]byte(metaBucket)); b != nil {
			raw = b.Get([]byte(schemaKey))
		}
	})
	n, err := strconv.Atoi(string(raw))
	switch {
	case err != nil || n < 1:
		return &CorruptError{d.path(fileName), fmt.Errorf("schema version %.20q", raw)}
	case n > Schema:
		return fmt.Errorf("state %s: schema %d, this version knows %d: %w", d.path(fileName), n, Schema, ErrSchema)
	}
	return nil
}

// bolt opens a file, runs fn in one transaction and closes it.
func (d *DB) bolt(name string, writable bool, fn func(*bolt.Tx) error) (err error) {
	var file *os.File
	var openErr error
	var db *bolt.DB
	// bbolt reads through a mapping: behind the end of a file that was cut off it gets SIGBUS, and it panics at pages
	// that make no sense. Either would take the supervisor, and its agents, down.
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		p := recover()
		if damage, ok := p.(damagePanic); ok {
			// bbolt may have died holding its mutexes, for which its Close would wait. What is left behind is a
			// mapping, which holds the file open: its lock has to be given up by name.
			if file != nil {
				_ = unix.Flock(int(file.Fd()), unix.LOCK_UN)
				file.Close()
			}
			err = &CorruptError{d.path(name), damage.err}
			return
		}
		if db != nil {
			if cerr := db.Close(); cerr != nil && err == nil {
				err = fmt.Errorf("state %s: close: %w", d.path(name), cerr)
			}
		}
		if p != nil {
			panic(p)
		}
	}()
	guard(func() {
		db, err = bolt.Open(d.path(name), 0o600, &bolt.Options{
			Timeout: d.limit, ReadOnly: !writable, NoStatistics: true, FreelistType: bolt.FreelistMapType,
			OpenFile: func(_ string, flag int, _ os.FileMode) (*os.File, error) {
				file, openErr = d.openData(name, flag)
				return file, openErr
			},
		})
	})
	if openErr != nil {
		return openErr
	}
	if err != nil {
		return d.boltError(name, err)
	}
	if writable {
		reserve(file)
	}
	return d.transact(name, db, writable, fn)
}

// A disk that an agent has filled must not keep a quarantine or a stop out of the state: so much room is the file's beforehand, which is some
// hundred of them, and as soon as less is left it is that much again.
const (
	reserved      = 1 << 20
	leastReserved = reserved / 2
)

// reserve changes no byte of the file, nor its size. Where there is no room, or the file system can't, it goes on without.
func reserve(f *os.File) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Blocks*512 < st.Size+leastReserved {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, st.Size+reserved)
	}
}

// transact ends the transaction whatever fn does; a panic of fn goes on to whoever called.
func (d *DB) transact(name string, db *bolt.DB, writable bool, fn func(*bolt.Tx) error) error {
	var btx *bolt.Tx
	var err error
	guard(func() { btx, err = db.Begin(writable) })
	if err != nil {
		return d.boltError(name, err)
	}
	committed := false
	defer func() {
		if !committed {
			guard(func() { _ = btx.Rollback() })
		}
	}()
	if err := fn(btx); err != nil || !writable {
		return err
	}
	guard(func() { err = btx.Commit() })
	if err != nil {
		return d.boltError(name, err)
	}
	committed = true
	return nil
}

// openData opens the file for bbolt. bbolt would begin an empty file anew.
func (d *DB) openData(name string, flag int) (*os.File, error) {
	if name == fileName {
		flag &^= os.O_CREATE
	}
	f, err := openFile(d.dir, name, flag)
	if err != nil || name != fileName {
		return f, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < int64(2*os.Getpagesize()) {
		err = &CorruptError{d.path(name), fmt.Errorf("%d bytes are too few", info.Size())}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// boltError sorts bbolt's errors: only what speaks about the file's content is damage.
func (d *DB) boltError(name string, err error) error {
	for _, damage := range []error{bolterrors.ErrInvalid, bolterrors.ErrVersionMismatch, bolterrors.ErrChecksum} {
		if errors.Is(err, damage) {
			return &CorruptError{d.path(name), err}
		}
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("state %s: %w: something other than agentrun has locked it", d.path(name), ErrBusy)
	}
	return fmt.Errorf("state %s: %w", d.path(name), err)
}

// damagePanic tells a panic inside bbolt from one of the caller's.
type damagePanic struct{ err error }

func guard(fn func()) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case damagePanic:
			panic(p)
		case error:
			panic(damagePanic{p})
		default:
			panic(damagePanic{fmt.Errorf("%v", p)})
		}
	}()
	fn()
}

type boltTx struct{ tx *bolt.Tx }

func (t boltTx) get(bucket, key string) (value []byte) {
	guard(func() {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			if v := b.Get([]byte(key)); v != nil {
				value = append([]byte{}, v...) // in here: reading the mapping is what faults
			}
		}
	})
	return value
}

func (t boltTx) put(bucket, key string, value []byte) (err error) {
	guard(func() {
		var b *bolt.Bucket
		if b, err = t.tx.CreateBucketIfNotExists([]byte(bucket)); err == nil {
			err = b.Put([]byte(key), value)
		}
	})
	return err
}

func (t boltTx) remove(bucket, key string) (err error) {
	guard(func() {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			err = b.Delete([]byte(key))
		}
	})
	return err
}

func (t boltTx) seek(bucket, key string) (k string, v []byte) {
	guard(func() {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			var raw []byte
			raw, v = b.Cursor().Seek([]byte(key))
			k, v = string(raw), append([]byte{}, v...)
		}
	})
	return k, v
}

func (t boltTx) size(bucket, key string) (k string, n int) {
	guard(func() {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			raw, v := b.Cursor().Seek([]byte(key))
			k, n = string(raw), len(v)
		}
	})
	return k, n
}
