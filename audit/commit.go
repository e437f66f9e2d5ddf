// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
)

// request is an entry on its way into the file.
type request struct {
	kind  Kind
	data  []byte // canonical
	sync  bool
	entry Entry
	batch uint64 // that it was written with
	err   error

	wake  chan struct{} // it is done, or
	leads bool          // it is its turn to lead
}

// request takes one from those that this Log has used before.
func (l *Log) request() *request {
	if q, ok := l.used.Get().(*request); ok {
		return q
	}
	return &request{wake: make(chan struct{}, 1)}
}

// submit returns when the request is in the file. The first to come writes for itself; those who come while it does are
// written together by the first of them. Nobody leads more than one batch, so nobody's call is held up by those after it.
func (l *Log) submit(q *request) error {
	l.queueMu.Lock()
	l.queue = append(l.queue, q)
	if l.leading {
		l.queueMu.Unlock()
		if <-q.wake; !q.leads {
			return q.err
		}
		l.queueMu.Lock()
	}
	l.leading = true
	batch := l.takeBatch()
	l.queueMu.Unlock()

	l.commit(batch)
	err := q.err // q is ours alone: it is the first of the batch

	l.queueMu.Lock()
	if l.leading = len(l.queue) > 0; l.leading {
		l.queue[0].leads = true
		l.queue[0].wake <- struct{}{}
	}
	l.queueMu.Unlock()
	for _, other := range batch[1:] {
		other.wake <- struct{}{}
	}
	return err
}

// takeBatch wants queueMu. A batch is at most maxBatch bytes of data and one entry more.
func (l *Log) takeBatch() []*request {
	n, size := 0, 0
	for n < len(l.queue) && size < maxBatch {
		size += len(l.queue[n].data)
		n++
	}
	batch := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return batch
}

// commit writes a batch, or gives every request its error.
func (l *Log) commit(batch []*request) {
	err := l.check()
	if err == nil {
		err = l.locked(func() error { return l.write(batch) })
		if err != nil {
			err = l.fail(err)
		}
	}
	for _, q := range batch {
		if err != nil {
			q.err = err
		} else if q.err == nil && !q.sync {
			l.syncSoon()
		}
	}
}

// write wants the lock. An error is the log's end.
func (l *Log) write(batch []*request) error {
	if err := l.refresh(); err != nil {
		return err
	}
	head, buf := l.head, l.buf[:0]
	for _, q := range batch {
		// An error here is of this entry alone (its length, the clock): the others are good.
		buf, q.entry, q.err = head.add(buf, l.chain, l.opt.Now(), q.kind, q.data)
	}
	if err := l.put(buf, head); err != nil {
		return err
	}
	n := l.written.Add(1)
	for _, q := range batch {
		q.batch = n
	}
	if l.size >= l.opt.RotateBytes {
		return l.rotate()
	}
	return nil
}

// put appends whole lines to the current file; then they are the chain's head.
func (l *Log) put(buf []byte, head Head) error {
	if err := fault.At("audit/write"); err != nil {
		return l.dir.error("write", fileName(l.number), err)
	}
	for rest := buf; len(rest) > 0; {
		n, err := retry(func() (int, error) { return l.sys.write(l.file, rest) })
		if err == nil && n <= 0 {
			err = io.ErrShortWrite
		}
		// A short write with no error is tried again: if it was the disk's end, the next one says so. What is in the
		// file by then stays, and is closed by the next opener's repair.
		if err != nil {
			return l.dir.error("write", fileName(l.number), err)
		}
		rest = rest[n:]
	}
	l.head, l.size, l.buf = head, l.size+int64(len(buf)), buf[:0]
	if cap(l.buf) > maxBatch {
		l.buf = nil
	}
	return nil
}

// refresh wants the lock. It brings head and size up to what other processes have written since; when there was nobody,
// that takes one system call.
func (l *Log) refresh() error {
	if l.file < 0 {
		return l.start()
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.file, &st); err != nil {
		return l.dir.error("stat", fileName(l.number), err)
	}
	switch {
	case st.Nlink == 0:
		return &DamagedError{File: l.dir.path + "/" + fileName(l.number), Reason: "the file was removed while it was in use"}
	case st.Size < l.size:
		return &DamagedError{File: l.dir.path + "/" + fileName(l.number), Offset: st.Size, Reason: "the file was truncated while it was in use"}
	case st.Size == l.size:
		return nil
	}
	return l.load(st.Size)
}

// start opens the last file of the chain.
func (l *Log) start() error {
	numbers, err := l.dir.files()
	if err != nil {
		return err
	}
	switch len(numbers) {
	case 0:
		if err := l.createFile(1); err != nil {
			return err
		}
		return l.enter(1)
	case 1:
		return l.enter(numbers[0])
	}
	// A rotation makes the new file first and says so in the old one then. Cut off in between, it leaves an empty file:
	// the chain's end is in the one before.
	last := numbers[len(numbers)-1]
	if err := l.enter(numbers[len(numbers)-2]); err != nil || l.number == last {
		return err
	}
	fd, err := l.dir.open(fileName(last), unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return l.mustBeEmpty(fd, last)
}

// enter makes file n the current one and reads its end.
func (l *Log) enter(n int) error {
	fd, err := l.dir.open(fileName(n), unix.O_RDWR|unix.O_APPEND)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return l.dir.error("stat", fileName(n), err)
	}
	if err := l.swap(fd, n); err != nil {
		unix.Close(fd)
		return err
	}
	return l.load(st.Size)
}

// swap syncs the file it leaves, through the descriptor that wrote to it: the kernel reports a lost write once to each
// descriptor, and this is the last chance to hear it.
func (l *Log) swap(fd, n int) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	for l.syncing {
		l.syncEnd.Wait()
	}
	if l.file >= 0 {
		if err := l.syncFile(); err != nil {
			return err
		}
		unix.Close(l.file)
	}
	l.file, l.number, l.size = fd, n, 0
	return nil
}

// load reads the end of the current file, repairs it if a writer died there, and follows the chain into the next file.
func (l *Log) load(size int64) error {
	t, damage, err := readTail(fileAt(l.file), size)
	name := fileName(l.number)
	if err != nil {
		return l.dir.error("read", name, err)
	}
	head := l.head // from the file before; empty for the first
	if damage == nil && t.last.Data != nil {
		head = Head{Size: t.last.Seq + 1, Hash: t.last.Hash}
		if t.last.Chain != l.chain {
			damage = &DamagedError{Reason: "the last entry belongs to chain " + t.last.Chain}
		}
	} else if damage == nil && l.number > 1 && l.head.Size == 0 {
		damage = &DamagedError{Reason: "a file with no entry, and nothing that leads to it"}
	}
	if damage != nil {
		damage.File = l.dir.path + "/" + name
		return damage
	}
	l.head, l.size = head, size
	if r, ok := t.last.Data.(*Rotation); ok && t.good == size {
		return l.follow(r.Next)
	}
	if t.good < size {
		return l.repair(t)
	}
	return nil
}

func (l *Log) follow(next string) error {
	n := fileNumber(next)
	if n != l.number+1 {
		return &DamagedError{File: l.dir.path + "/" + fileName(l.number), Reason: "the chain goes on in " + next}
	}
	err := l.enter(n)
	if errors.Is(err, os.ErrNotExist) {
		return &DamagedError{File: l.dir.path + "/" + next, Reason: "the chain goes on in this file, and it is gone"}
	}
	return err
}

// repair closes the bytes behind the last entry with the mark and writes down what they are. Nothing is taken away: what
// was cut off may be all that is left of an attempt.
func (l *Log) repair(t tail) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(fileAt(l.file), t.good, t.size-t.good)); err != nil {
		return l.dir.error("read", fileName(l.number), err)
	}
	var last [1]byte
	if _, err := fileAt(l.file).ReadAt(last[:], t.size-1); err != nil {
		return l.dir.error("read", fileName(l.number), err)
	}
	buf := l.buf[:0]
	if last[0] != '\n' {
		buf = append(buf, tornMark+"\n"...)
		sum.Write(buf)
	}
	r := &Repair{File: fileName(l.number), Offset: t.good, Length: t.size - t.good + int64(len(buf))}
	sum.Sum(r.SHA256[:0])
	return l.putOwn(buf, r)
}

// putOwn appends an entry of the log's own.
func (l *Log) putOwn(buf []byte, r Record) error {
	data, err := appendData(nil, r)
	if err != nil {
		return err
	}
	head := l.head
	if buf, _, err = head.add(buf, l.chain, l.opt.Now(), r.Kind(), data); err != nil {
		return err
	}
	if err := l.put(buf, head); err != nil {
		return err
	}
	l.written.Add(1)
	l.syncSoon()
	return nil
}

// rotate begins the next file. The order is what makes every moment of it safe to die in: the new file exists and its
// name is on disk before the old one names it, so a chain that names a file that isn't there was truncated, always.
func (l *Log) rotate() error {
	n := l.number + 1
	if n > maxFiles {
		return errors.New("the chain has 999999 files; archive it and begin another")
	}
	if err := l.createFile(n); err != nil {
		return err
	}
	if err := fault.At("audit/rotate"); err != nil {
		return err
	}
	if err := l.putOwn(l.buf[:0], &Rotation{Next: fileName(n)}); err != nil {
		return err
	}
	return l.enter(n)
}

// createFile makes an empty file and its name lasting. One that is there already is a rotation's that was cut off; if it
// isn't empty, it is none of ours.
func (l *Log) createFile(n int) error {
	name := fileName(n)
	fd, err := l.dir.open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := l.mustBeEmpty(fd, n); err != nil {
		return err
	}
	if err := unix.Fsync(l.dir.fd); err != nil {
		return l.dir.error("sync", "", err)
	}
	return nil
}

func (l *Log) mustBeEmpty(fd, n int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return l.dir.error("stat", fileName(n), err)
	}
	if st.Size > 0 {
		return &DamagedError{File: l.dir.path + "/" + fileName(n), Reason: "it holds entries, and no rotation leads to it"}
	}
	return nil
}

// fileAt reads a descriptor at offsets.
type fileAt int

func (f fileAt) ReadAt(b []byte, off int64) (done int, err error) {
	for done < len(b) {
		n, err := retry(func() (int, error) { return unix.Pread(int(f), b[done:], off+int64(done)) })
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}
