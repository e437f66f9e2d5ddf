// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/agentuid"
	"agentrun/internal/thread"
)

// SocketName is the file of the socket in the folder of control sockets.
const SocketName = "exec.handoff"

// Listener accepts callers.
type Listener struct{ socket *os.File }

// Listen makes the socket in dir, mode 0600. One that a dead daemon left is replaced: hold the daemon's lock.
func Listen(dir string) (*Listener, error) {
	if _, err := allEars(); err != nil {
		return nil, err
	}
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	// By descriptor: a run folder may lie deeper than the 107 bytes of an address.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", d, SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	l := &Listener{os.NewFile(uintptr(fd), SocketName)}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = cmp.Or(unix.Chmod(path, 0o600), unix.Listen(fd, unix.SOMAXCONN))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", filepath.Join(dir, SocketName), err), l.Close())
	}
	return l, nil
}

// FromFile takes a socket that systemd made (sd_listen_fds(3)).
func FromFile(f *os.File) (*Listener, error) {
	if _, err := allEars(); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", f.Name(), err)
	}
	for _, want := range [...]struct{ option, is int }{{unix.SO_DOMAIN, unix.AF_UNIX}, {unix.SO_TYPE, unix.SOCK_STREAM}, {unix.SO_ACCEPTCONN, 1}} {
		if is, serr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.option); serr != nil || is != want.is {
			err = cmp.Or(serr, errors.New("it is no unix stream that listens"))
			break
		}
	}
	if err = cmp.Or(err, unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", f.Name(), err), unix.Close(fd))
	}
	return &Listener{os.NewFile(uintptr(fd), f.Name())}, nil
}

// Close ends Accept. The socket's file stays.
func (l *Listener) Close() error { return l.socket.Close() }

// PeerError is a caller that may not be one.
type PeerError struct{ UID uint32 }

func (e *PeerError) Error() string { return fmt.Sprintf("hand-off: refused to uid %d", e.UID) }

// Accept waits for a caller. After a *PeerError it may be called again. net.ErrClosed: the listener is closed.
func (l *Listener) Accept() (*Conn, error) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, aerr := -1, error(nil)
	err = raw.Read(func(s uintptr) bool {
		for aerr = unix.EINTR; aerr == unix.EINTR; { //nolint:errorlint // as the kernel says it
			fd, _, aerr = unix.Accept4(int(s), unix.SOCK_CLOEXEC)
		}
		return aerr != unix.EAGAIN //nolint:errorlint // as the kernel says it
	})
	switch {
	case errors.Is(err, os.ErrClosed):
		return nil, net.ErrClosed
	case err != nil:
		return nil, err
	case aerr != nil:
		return nil, os.NewSyscallError("accept4", aerr)
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && !allowed(cred.Uid, uint32(os.Geteuid())) { //nolint:gosec // uids have 32 bits
		err = &PeerError{cred.Uid}
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Conn{fd: fd, PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

func allowed(peer, own uint32) bool { return peer < agentuid.First && (peer == 0 || peer == own) }

// Conn is one caller.
type Conn struct {
	Request
	PID, UID              int
	Stdin, Stdout, Stderr *Stream

	fd   int // the netpoller doesn't know it (thread.Await); -1: closed
	cwd  int
	held []int // what came with the request

	elsewhere error // what sameNamespaces has said
	looked    bool

	mu sync.Mutex // one frame at a time

	ear    sync.Mutex
	all    *ears
	heard  func(syscall.Signal) // nil: nobody hears
	gone   func()
	frame  [8]byte // of which so much has come
	framed int
}

// Receive reads the request, which must be whole within the time.
func (c *Conn) Receive(within time.Duration) error {
	until := time.Now().Add(within)
	c.elsewhere, c.looked = c.sameNamespaces(), true // while the caller is still writing
	var head [8]byte
	oob := make([]byte, unix.CmsgSpace(fds*4))
	n, oobn, flags, err := c.receive(head[:], oob, until)
	if err != nil {
		return err
	}
	// What came is ours to close, whatever else is wrong.
	if c.held, err = passed(oob[:oobn]); err != nil {
		return err
	}
	size := order.Uint32(head[4:])
	switch {
	case n != len(head) || order.Uint32(head[:]) != magic:
		return errors.New("hand-off: no request")
	case flags&unix.MSG_CTRUNC != 0 || len(c.held) != fds:
		return fmt.Errorf("hand-off: %d descriptors, want %d", len(c.held), fds)
	case size > maxBody:
		return fmt.Errorf("hand-off: %d bytes, at most %d", size, maxBody)
	}
	c.cwd = c.held[3]
	for i, s := range []**Stream{&c.Stdin, &c.Stdout, &c.Stderr} { // before the request is read whole: without descriptors the caller goes on alone
		if *s, err = NewStream(c.held[i]); err != nil {
			return err
		}
	}
	body := make([]byte, size)
	for at := 0; at < len(body); {
		n, _, _, err := c.receive(body[at:], nil, until)
		if err != nil {
			return errors.Join(errCut, err)
		}
		at += n
	}
	if c.Request, err = Decode(body); err != nil {
		return err
	}
	if _, err := unix.IoctlGetTermios(c.held[0], unix.TCGETS); err == nil {
		c.Stdin.away = c.away
	}
	return nil
}

// receive waits for something, with what is beside it.
func (c *Conn) receive(b, oob []byte, until time.Time) (n, oobn, flags int, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(c.fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN: //nolint:errorlint // as the kernel says it
			if err := thread.Await(c.fd, unix.POLLIN, until); err != nil {
				return 0, 0, 0, err
			}
		case err == unix.EINTR: //nolint:errorlint // as the kernel says it
		case err != nil:
			return 0, 0, 0, os.NewSyscallError("recvmsg", err)
		case n == 0 && len(b) > 0:
			return 0, 0, 0, io.EOF
		default:
			return n, oobn, flags, nil
		}
	}
}

// away tells whether the caller is stopped, or in the background of its terminal. What is typed there is for others then: the shell, a
// command that asks for a password. Of the caller itself the kernel asks that with each read (SIGTTIN, credentials(7)), of us not: the
// terminal isn't ours.
func (c *Conn) away() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID))
	if err != nil {
		return true // it is gone
	}
	// Behind the name: state, parent, process group, session, terminal, the terminal's foreground group.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return len(f) < 6 || f[0] == "T" || f[0] == "t" || f[5] != f[2] && f[5] != "-1"
}

func passed(oob []byte) (all []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		list, perr := unix.ParseUnixRights(&msgs[i])
		if perr != nil {
			err = perr
			continue
		}
		all = append(all, list...)
	}
	return all, err
}

// namespaces are those that the outcome of a run depends on.
var namespaces = [...]string{"mnt", "user", "net", "pid", "cgroup"}

// own are ours, of the main thread. They stay: only threads that end with a run enter others (package thread).
var own = sync.OnceValues(func() (links [len(namespaces)]string, err error) {
	for i, ns := range namespaces {
		if links[i], err = os.Readlink("/proc/self/ns/" + ns); err != nil {
			return links, err
		}
	}
	return links, nil
})

// Same tells in what the caller's view of the host differs from ours; nil: in nothing that a run would show. A caller whose folder
// is another here must run alone: its paths would lead elsewhere.
func (c *Conn) Same() error {
	elsewhere := c.elsewhere
	if !c.looked {
		elsewhere = c.sameNamespaces()
	}
	if elsewhere != nil {
		return elsewhere
	}
	if same, err := sameFile(c.cwd, "", c.Dir); err != nil || !same {
		return errors.Join(fmt.Errorf("%s is another folder here", c.Dir), err)
	}
	return nil
}

func (c *Conn) sameNamespaces() error {
	ours, err := own()
	if err != nil {
		return err
	}
	proc := fmt.Sprintf("/proc/%d", c.PID)
	for i, ns := range namespaces {
		theirs, err := os.Readlink(proc + "/ns/" + ns)
		if err != nil {
			return err
		}
		if theirs != ours[i] {
			return fmt.Errorf("the caller is in another %s namespace", ns)
		}
	}
	if same, err := sameFile(unix.AT_FDCWD, proc+"/root", "/"); err != nil || !same {
		return errors.Join(errors.New("the caller has another root"), err)
	}
	return nil
}

func sameFile(dir int, name, other string) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstatat(dir, name, &a, unix.AT_EMPTY_PATH); err != nil {
		return false, os.NewSyscallError("fstatat", err)
	}
	if err := unix.Stat(other, &b); err != nil {
		return false, &os.PathError{Op: "stat", Path: other, Err: err}
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// Decline lets the caller run alone. Nothing may have been written to its output.
func (c *Conn) Decline(why string) error {
	return c.send(kindDecline, uint32(min(len(why), 1000)), why[:min(len(why), 1000)])
} //nolint:gosec // bounded

// Raw asks the caller to put its terminal into raw mode; it ends that itself.
func (c *Conn) Raw() error { return c.send(kindRaw, 0, "") }

// Exit ends the caller with the code. Nobody hears him from then on.
func (c *Conn) Exit(code int) error {
	c.deafen()
	return c.send(kindExit, uint32(code)&0xff, "") //nolint:gosec // a byte
}

func (c *Conn) send(kind, value uint32, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return os.ErrClosed
	}
	b := order.AppendUint32(order.AppendUint32(nil, kind), value)
	// A caller that doesn't read its few bytes is stopped, not slow.
	return thread.Send(c.fd, append(b, text...), nil, time.Now().Add(10*time.Second))
}

// signals are those that a caller may pass on.
var signals = []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH}

// Hear has fn called for each signal of the caller's, and gone when he is. Neither may wait: others are heard by the same goroutine. They are
// called no more when Exit or Close has returned.
func (c *Conn) Hear(fn func(syscall.Signal), gone func()) error {
	all, err := allEars()
	if err != nil {
		return err
	}
	c.ear.Lock()
	defer c.ear.Unlock()
	if err := all.add(c); err != nil {
		return err
	}
	c.all, c.heard, c.gone = all, fn, gone
	return nil
}

// hear takes a signal that has come; the next is another event, so that no caller keeps the others from being heard.
func (c *Conn) hear() {
	c.ear.Lock()
	defer c.ear.Unlock()
	for c.heard != nil {
		n, _, err := unix.Recvfrom(c.fd, c.frame[c.framed:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR: //nolint:errorlint // as the kernel says it
			continue
		case err == unix.EAGAIN: //nolint:errorlint // as the kernel says it
			return
		case err != nil, n == 0:
			c.leave()
			return
		}
		if c.framed += n; c.framed < len(c.frame) {
			continue
		}
		c.framed = 0
		s := syscall.Signal(order.Uint32(c.frame[4:]))
		if order.Uint32(c.frame[:]) != kindSignal || !slices.Contains(signals, s) {
			c.leave() // no caller of ours says that
			return
		}
		c.heard(s)
		return
	}
}

// leave is of a caller who is gone. Whoever calls it holds ear.
func (c *Conn) leave() {
	gone := c.gone
	c.stopHearing()
	gone()
}

func (c *Conn) stopHearing() {
	if c.heard == nil {
		return
	}
	c.all.remove(c)
	c.heard, c.gone = nil, nil
}

func (c *Conn) deafen() {
	c.ear.Lock()
	defer c.ear.Unlock()
	c.stopHearing()
}

// Stop ends every read of the caller's streams, and every write with why.
func (c *Conn) Stop(why error) {
	for _, s := range []*Stream{c.Stdin, c.Stdout, c.Stderr} {
		if s != nil {
			s.Stop(why)
		}
	}
}

// Release closes the caller's files here, and waits for those who still use them.
func (c *Conn) Release() {
	c.Stop(unix.EPIPE)
	for _, s := range []*Stream{c.Stdin, c.Stdout, c.Stderr} {
		if s != nil {
			s.wait()
		}
	}
	for _, fd := range c.held {
		unix.Close(fd)
	}
	c.held = nil
}

// Close releases and hangs up.
func (c *Conn) Close() error {
	c.Release()
	c.deafen()
	c.mu.Lock()
	defer c.mu.Unlock()
	fd := c.fd
	if c.fd = -1; fd < 0 {
		return os.ErrClosed
	}
	return os.NewSyscallError("close", unix.Close(fd))
}
