// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// soon is within what a socket is most likely ready that is waited for: so long the thread keeps its place among those that run goroutines.
const soon = 20 * time.Millisecond

// Await waits until fd is ready for one of the events, or broken. os.ErrDeadlineExceeded: it wasn't until then. It is for a descriptor that the
// netpoller shall not know: that has a thread woken for whatever the other side says, reads or closes, beside the one that waits here, and most
// likely on the other side's own processor, and before it.
func Await(fd int, events int16, until time.Time) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}} //nolint:gosec // a descriptor
	for within := soon; ; within = 0 {
		left := time.Until(until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		var n int
		var err error
		if within > 0 {
			length := unix.NsecToTimespec(min(within, left).Nanoseconds())
			n, err = unix.Ppoll(fds, &length, nil)
		} else {
			length := unix.NsecToTimespec(left.Nanoseconds())
			n, err = Poll(fds, &length)
		}
		if err != nil && err != unix.EINTR { //nolint:errorlint // as the kernel says it
			return os.NewSyscallError("ppoll", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// Send writes all of b to a socket, with rights beside its first byte. To a side that is gone that is EPIPE and no signal.
func Send(fd int, b, rights []byte, until time.Time) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(fd, b, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch err { //nolint:errorlint // as the kernel says it
		case nil:
			b, rights = b[n:], nil
		case unix.EINTR:
		case unix.EAGAIN:
			if err := Await(fd, unix.POLLOUT, until); err != nil {
				return err
			}
		default:
			return os.NewSyscallError("sendmsg", err)
		}
	}
	return nil
}
