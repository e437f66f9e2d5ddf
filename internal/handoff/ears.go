// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ears hear all callers, by an epoll instance of their own that is told of one who ends no more before he is answered. The netpoller's would
// have a thread woken when he reads his answer, and once more when he closes the socket: he does both on the way to whoever waits for him.
type ears struct {
	fd    int
	epoll *os.File // fd, in the netpoller itself

	mu    sync.Mutex
	conns map[int32]*Conn // by descriptor
}

var allEars = sync.OnceValues(func() (*ears, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that the netpoller takes it
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	e := &ears{fd: fd, epoll: os.NewFile(uintptr(fd), "epoll"), conns: map[int32]*Conn{}}
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return nil, err
	}
	go func() {
		var events [64]unix.EpollEvent
		for {
			n := 0
			if err := raw.Read(func(fd uintptr) bool {
				err := error(unix.EINTR)
				for err == unix.EINTR { //nolint:errorlint // as the kernel says it
					n, err = unix.EpollWait(int(fd), events[:], 0)
				}
				return n > 0
			}); err != nil {
				panic(err) // of a file that nobody closes: without ears no run would end with its caller
			}
			for _, ev := range events[:n] {
				e.mu.Lock()
				c := e.conns[ev.Fd]
				e.mu.Unlock()
				if c != nil {
					c.hear()
				}
			}
		}
	}()
	return e, nil
})

func (e *ears) add(c *Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	fd := int32(c.fd) //nolint:gosec // a descriptor
	e.conns[fd] = c
	err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: fd})
	if err != nil {
		delete(e.conns, fd)
	}
	return os.NewSyscallError("epoll_ctl", err)
}

func (e *ears) remove(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, int32(c.fd))                           //nolint:gosec // a descriptor
	_ = unix.EpollCtl(e.fd, unix.EPOLL_CTL_DEL, c.fd, nil) // it was added, so it is there
}
