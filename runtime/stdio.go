// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// stdio carries the agent's input and output. The agent never holds a descriptor of the caller's: it
// gets pipes (or a pty of its own devpts), so that it can neither reopen the caller's files through
// /proc/self/fd, nor push characters into the caller's terminal, nor write past its output limit.
type stdio struct {
	// It has three lives: made, when both ends are ours; handed over; and pumped, when each copy closes what
	// it reads.
	in, out, err *os.File   // the agent's ends, closed once it has them
	held         []*os.File // those of its outputs, to the end of the run; none of a pty, or of who shares a run
	hold         bool
	idle         chan struct{} // holds one, when a copy has nothing to do
	feed         *os.File      // our end of stdin
	dead         atomic.Bool   // every process is: what a read doesn't find from then on is no output of theirs
	taps         []*tap
	limit        int64
	over         func() // called once when the limit is passed
	written      atomic.Int64
	overOnce     sync.Once
	lost         atomic.Pointer[error] // why something that was written could not be passed on
	wg           sync.WaitGroup
}

type tap struct {
	from *os.File
	to   io.Writer
	busy atomic.Bool // something was read that isn't passed on yet, or is being
}

// newPipes makes the three pipes. They belong to the agent's uid so that /dev/stdout can be opened.
func newPipes(uid, gid int) (_ *stdio, err error) {
	s := &stdio{idle: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			s.closeAll()
		}
	}()
	if s.in, s.feed, err = os.Pipe(); err != nil {
		return nil, err
	}
	var r *os.File
	if r, s.out, err = os.Pipe(); err != nil {
		return nil, err
	}
	s.taps = append(s.taps, &tap{from: r})
	if r, s.err, err = os.Pipe(); err != nil {
		return nil, err
	}
	s.taps = append(s.taps, &tap{from: r})
	for _, f := range []*os.File{s.feed, s.out, s.err} {
		if err := unix.Fchown(int(f.Fd()), uid, gid); err != nil {
			return nil, os.NewSyscallError("fchown pipe", err)
		}
	}
	return s, nil
}

// newNull is the stdio of a run with a pty: the stub replaces it by the terminal.
func newNull() (*stdio, error) {
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &stdio{in: f, out: f, err: f}, nil
}

// usePTY takes the master that the stub opened in the sandbox's devpts.
func (s *stdio) usePTY(master *os.File) {
	s.feed = master
	s.taps = []*tap{{from: master}}
}

// handedOver closes the agent's ends here: without that no end of file would ever come. With hold it comes with closeAll: who dies is not to
// wake us before it is dead, most likely on its own processor, for what we hear of anyway (drain).
func (s *stdio) handedOver() {
	if s.hold && s.out != nil {
		s.held = []*os.File{s.out, s.err}
		s.out, s.err = nil, nil
	}
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			f.Close()
		}
	}
	s.in, s.out, s.err = nil, nil, nil
}

func (s *stdio) closeAll() {
	s.handedOver()
	if s.feed != nil {
		s.feed.Close()
	}
	for _, t := range s.taps {
		t.from.Close()
	}
	for _, f := range s.held {
		f.Close()
	}
}

// pump starts copying. limit ≤ 0 is never passed in: the plan always has one. Without a stdin the agent reads
// its end at once.
func (s *stdio) pump(stdin io.Reader, stdout, stderr io.Writer, limit int64, over func()) {
	s.limit, s.over = limit, over
	for i, to := range []io.Writer{stdout, stderr}[:len(s.taps)] {
		s.taps[i].to = to
		s.taps[i].busy.Store(true)
		s.wg.Go(func() { s.copyOut(s.taps[i]) })
	}
	tty := len(s.taps) == 1
	if s.feed != nil && stdin == nil && !tty {
		s.feed.Close()
		return
	}
	if s.feed != nil && stdin != nil {
		feed := s.feed
		// Not waited for: it may sit in a read on the caller's stdin for ever.
		go func() {
			buf := takeBuffer()
			n, err := io.CopyBuffer(struct{ io.Writer }{feed}, struct{ io.Reader }{stdin}, buf[:])
			if err != nil {
				n = int64(len(buf)) // some of it may not have been written
			}
			buf.give(int(min(n, int64(len(buf)))))
			if !tty { // closing the master would hang up the terminal
				feed.Close()
			}
		}()
	}
}

// copyOut passes on what the agent writes until its end, the limit, or the reader's end. It goes on
// reading past a reader that went away (EPIPE) no longer than that: the agent then gets SIGPIPE
// itself, as it would without us between.
func (s *stdio) copyOut(t *tap) {
	ended := false
	defer func() {
		if t.from != s.feed && !ended { // at its end closeAll closes it: who wrote is dying, and most likely waits for this processor
			t.from.Close()
		}
		s.rests(t)
	}()
	buf, used := takeBuffer(), 0
	defer func() { buf.give(used) }()
	for {
		n, err := s.read(t, buf[:])
		if n > 0 {
			used = max(used, n)
			total := s.written.Add(int64(n))
			if excess := total - s.limit; excess > 0 {
				keep := max(0, int64(n)-excess)
				_, _ = t.to.Write(buf[:keep])
				s.written.Add(-(int64(n) - keep))
				s.overOnce.Do(s.over)
				return
			}
			if _, werr := t.to.Write(buf[:n]); werr != nil {
				// A reader that went away wants no more. A disk that is full is nobody's wish, nor a supervisor that waits no longer.
				if errors.Is(werr, unix.ENOSPC) || errors.Is(werr, unix.EDQUOT) || errors.Is(werr, unix.EFBIG) || errors.Is(werr, unix.ECANCELED) {
					s.lost.CompareAndSwap(nil, &werr)
				}
				return
			}
		}
		if err != nil { // io.EOF, or EIO of a pty whose last user is gone
			ended = errors.Is(err, io.EOF)
			return
		}
	}
}

// buffers are those of streams that have ended. A new one costs the allocator a search for 32 KiB, just when
// the agent waits for the answer to its exec.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

type buffer [32 << 10]byte

func takeBuffer() *buffer { return buffers.Get().(*buffer) }

// give empties what was used of it: what one run wrote is never where another's is.
func (b *buffer) give(used int) {
	clear(b[:used])
	buffers.Put(b)
}

// read is that of the file, and notes whether something is on its way: from before it is read, until there is nothing more.
func (s *stdio) read(t *tap, b []byte) (n int, err error) {
	raw, err := t.from.SyscallConn()
	if err != nil {
		return 0, err
	}
	look := func(fd uintptr) bool {
		t.busy.Store(true)
		dead := s.dead.Load() // before it is read: what was written until then is found
		for n, err = unix.Read(int(fd), b); err == unix.EINTR; {
			n, err = unix.Read(int(fd), b)
		}
		if err == unix.EAGAIN && !dead {
			s.rests(t)
			return false
		}
		return true
	}
	werr := raw.Read(look)
	if errors.Is(werr, os.ErrDeadlineExceeded) && s.dead.Load() { // drain has woken it
		_ = t.from.SetReadDeadline(time.Time{})
		werr = raw.Read(look)
	}
	switch {
	case werr != nil:
		return 0, werr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s *stdio) rests(t *tap) {
	t.busy.Store(false)
	select {
	case s.idle <- struct{}{}:
	default:
	}
}

// drain waits until everything written has been passed on. Call it when every process is dead. Where an end is held that is when the pipes
// are empty, and of a terminal when there is nothing more to read, whoever else may have got one from the agent; the copies of pipes end with
// closeAll.
func (s *stdio) drain() {
	if s.held == nil {
		// What is written to a terminal can be on its way still, which only a read waits for (n_tty_read): each copy makes one more.
		s.dead.Store(true)
		s.noMore()
		s.wg.Wait()
	}
	for s.held != nil && !s.quiet() {
		<-s.idle
	}
	if s.feed != nil {
		s.feed.Close()
	}
}

// quiet: what isn't in a pipe was read, and who has read it is through with it.
func (s *stdio) quiet() bool {
	return s.empty() && !slices.ContainsFunc(s.taps, func(t *tap) bool { return t.busy.Load() })
}

// empty says that nothing waits to be read from the agent's ends.
func (s *stdio) empty() bool {
	for _, t := range s.taps {
		raw, err := t.from.SyscallConn()
		waiting := 0
		if err == nil && raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) == nil && waiting > 0 {
			return false
		}
	}
	return true
}

// noMore ends the copies where nothing more is to come.
func (s *stdio) noMore() {
	for _, t := range s.taps {
		_ = t.from.SetReadDeadline(time.Now())
	}
}
