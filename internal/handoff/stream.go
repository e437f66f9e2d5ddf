// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"cmp"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// Stream is input or output of a caller's. Its file is shared with the caller, so it is never made non-blocking, which the caller
// would feel; and reads and writes end at Stop all the same, which those of os.File on a blocking file don't: a caller that
// went away would leave a thread behind.
type Stream struct {
	fd   int
	mode uint32      // file type
	away func() bool // whether what can be read is not for us now; nil: it always is

	mu   sync.Mutex
	ops  sync.WaitGroup
	end  error // why writes end; nil: they don't yet
	stop int   // eventfd, readable from Stop on; -1: closed
}

// NewStream wraps fd, which stays the caller's to close, after Stop. What reads and writes need is there then: one that failed for want of a
// descriptor would look like an end of the input, or like a reader that went away.
func NewStream(fd int) (*Stream, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Stream{fd: fd, mode: st.Mode & unix.S_IFMT, stop: stop}, nil
}

// FD is the file's number, for what a terminal can be asked.
func (s *Stream) FD() int { return s.fd }

// Stop ends reads and writes, those that come later too: with io.EOF, and with why, of which the first counts.
func (s *Stream) Stop(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	s.end = why
}

func (s *Stream) stopped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// wait is for the owner of the descriptors: when it returns nobody uses them.
func (s *Stream) wait() {
	s.ops.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop >= 0 {
		unix.Close(s.stop)
	}
	s.stop = -1
}

func (s *Stream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return false
	}
	s.ops.Add(1)
	return true
}

// ready waits for the file, or for Stop.
func (s *Stream) ready(events int16) bool {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: events}, {Fd: int32(s.stop), Events: unix.POLLIN}} //nolint:gosec // descriptors
	for {
		if _, err := thread.Poll(p, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		switch {
		case p[1].Revents != 0:
			return false
		case p[0].Revents != 0:
			return true
		}
	}
}

// rest waits a little, or for Stop.
func (s *Stream) rest() {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.stop), Events: unix.POLLIN}}, 50) //nolint:gosec // a descriptor
}

func (s *Stream) Read(b []byte) (int, error) {
	if !s.begin() {
		return 0, io.EOF
	}
	defer s.ops.Done()
	if len(b) == 0 {
		return 0, nil
	}
	for {
		if !s.ready(unix.POLLIN) {
			return 0, io.EOF
		}
		if s.away != nil && s.away() {
			s.rest()
			continue
		}
		n, err := s.read(b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Others may use the file at the same time, so each call says for itself that it doesn't wait. Pipes know that since Linux 6.5
// (before it is EOPNOTSUPP); on an older kernel a call that found the pipe ready waits only if another reader or writer was quicker.
func (s *Stream) read(b []byte) (n int, err error) {
	switch s.mode {
	case unix.S_IFSOCK:
		n, _, err = unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
		return n, err
	case unix.S_IFIFO:
		if n, err = unix.Preadv2(s.fd, [][]byte{b}, -1, unix.RWF_NOWAIT); !errors.Is(err, unix.EOPNOTSUPP) {
			return n, err
		}
	}
	return unix.Read(s.fd, b)
}

// piece is what a terminal that is ready takes without waiting for long.
const piece = 1024

func (s *Stream) Write(b []byte) (done int, err error) {
	if !s.begin() {
		return 0, s.stopped()
	}
	defer s.ops.Done()
	for done < len(b) {
		if !s.ready(unix.POLLOUT) {
			return done, cmp.Or(s.stopped(), error(unix.EPIPE))
		}
		n, err := s.write(b[done:])
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return done, os.NewSyscallError("write", err)
		default:
			done += n
		}
	}
	return done, nil
}

func (s *Stream) write(b []byte) (int, error) {
	switch s.mode {
	case unix.S_IFSOCK:
		return unix.SendmsgN(s.fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	case unix.S_IFIFO:
		n, err := unix.Pwritev2(s.fd, [][]byte{b}, -1, unix.RWF_NOWAIT)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return n, err
		}
		b = b[:min(len(b), atomicPiece)]
	case unix.S_IFCHR:
		b = b[:min(len(b), piece)]
	}
	return unix.Write(s.fd, b)
}

// atomicPiece is PIPE_BUF: what a pipe that is ready takes whole (pipe(7)).
const atomicPiece = 4096
