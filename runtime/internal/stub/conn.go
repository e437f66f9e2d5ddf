// SPDX-License-Identifier: Apache-2.0

package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// Kind is what a report from the sandbox says; the order is that of init.c. Which one may come when is said
// at the package: who reads checks for the one it waits for, and any other is EPROTO.
type Kind uint32

// Kinds of report.
const (
	KindInvalid Kind = iota
	Hello
	PTY
	Started
	Listener
	Ready
	failed
	Exited
	Apart
	Forked
)

func (k Kind) String() string {
	names := [...]string{"invalid", "in its root", "with a terminal", "the agent's parent", "listened to", "ready", "failed", "over", "in its namespaces", "forked"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("unknown %d", uint32(k))
}

// Report is one message of the stub or of its child.
type Report struct {
	Kind Kind
	A    uint32 // Hello: protocol version; Forked: pid, in the supervisor's namespace; Listener: its number in the child; Exited: wait status
	// B is, of Listener: the number in the child of the Landlock ruleset that it enters with the command, plus one; 0: none. Of Started: that of
	// the listener of pid 1's own filter, likewise. Of Exited: 1 if the scratch is full.
	B    uint64
	File *os.File // PTY: the master; the receiver closes it
	PID  int      // of the sender, in our pid namespace, by the kernel's word (SCM_CREDENTIALS)
}

const reportSize = 16

// Conn is the supervisor's end of a socket to the sandbox. One goroutine has it, up to Share. A write to a side that is gone is EPIPE and no
// signal.
//
// The netpoller doesn't know it until then (thread.Await).
type Conn struct {
	fd    int
	until time.Time
	file  *os.File // from Share on
}

// Pair makes a socket: ours, and the end to hand over. SO_PASSCRED makes the kernel put the sender's
// pid, translated to our namespace, beside each report: the stub can't know it, the agent can't forge it.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("setsockopt SO_PASSCRED", err)
	}
	return &Conn{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "stub-peer"), nil
}

// Bound is for how long from now on all that is waited for here may take, until Share: os.ErrDeadlineExceeded. Without it nothing is waited for.
func (c *Conn) Bound(d time.Duration) { c.until = time.Now().Add(d) }

// Share has the netpoller wait from now on, without a bound: then Close may come from any goroutine, and ends Shared.
func (c *Conn) Share() error {
	if err := unix.SetNonblock(c.fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	c.file = os.NewFile(uintptr(c.fd), "stub-socket")
	return nil
}

// Close ends the conversation: on the control socket that ends the sandbox.
func (c *Conn) Close() error {
	if c.file != nil {
		return c.file.Close()
	}
	fd := c.fd
	if c.fd = -1; fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// Next waits for the next report. io.EOF: the other side closed (on the child socket: it executed the
// agent). A *Failure is what went wrong inside.
func (c *Conn) Next() (Report, error) {
	m := newMail()
	for !m.receive(c.fd) {
		if err := thread.Await(c.fd, unix.POLLIN, c.until); err != nil {
			return Report{}, err
		}
	}
	return m.report()
}

const execTime = 400 * time.Microsecond

// Executed is Next for the end of file with which the agent begins. As long as an execution takes it doesn't listen but sleeps: whom the agent
// wakes, the kernel likes to put on the agent's processor, and before it, while the others are idle.
func (c *Conn) Executed() (Report, error) {
	m := newMail()
	if m.receive(c.fd) {
		return m.report()
	}
	length := unix.NsecToTimespec(execTime.Nanoseconds())
	_, _ = unix.Ppoll(nil, &length, nil)
	return c.Next()
}

// Shared is Next after Share.
func (c *Conn) Shared() (Report, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return Report{}, err
	}
	m := newMail()
	if err := raw.Read(func(fd uintptr) bool { return m.receive(int(fd)) }); err != nil {
		return Report{}, err
	}
	return m.report()
}

// mail is what a report comes as.
type mail struct {
	buf            [reportSize]byte
	oob            []byte
	n, oobn, flags int
	err            error
}

func newMail() *mail {
	return &mail{oob: make([]byte, unix.CmsgSpace(4*4)+unix.CmsgSpace(unix.SizeofUcred))}
}

// receive answers whether there was something, if only an error.
func (m *mail) receive(fd int) bool {
	for {
		m.n, m.oobn, m.flags, _, m.err = unix.Recvmsg(fd, m.buf[:], m.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if m.err != unix.EINTR { //nolint:errorlint // as the kernel says it
			return m.err != unix.EAGAIN //nolint:errorlint // as the kernel says it
		}
	}
}

func (m *mail) report() (Report, error) {
	if errors.Is(m.err, unix.ECONNRESET) {
		return Report{}, io.EOF
	}
	if m.err != nil {
		return Report{}, os.NewSyscallError("recvmsg", m.err)
	}
	n, buf := m.n, m.buf
	files, pid, err := ancillary(m.oob[:m.oobn])
	r := Report{PID: pid}
	if len(files) > 0 {
		r.File = files[0]
	}
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n != reportSize || m.flags&unix.MSG_CTRUNC != 0 || len(files) > 1:
		err = fmt.Errorf("report of %d bytes and %d descriptors: %w", n, len(files), unix.EPROTO)
	default:
		r.Kind = Kind(binary.NativeEndian.Uint32(buf[0:]))
		r.A = binary.NativeEndian.Uint32(buf[4:])
		b := binary.NativeEndian.Uint64(buf[8:])
		r.B = b
		switch r.Kind {
		case failed:
			err = &Failure{Step: Step(r.A), Errno: unix.Errno(b & 0xffffffff), Index: int(b >> 32)}
		case PTY:
			if r.File == nil {
				err = fmt.Errorf("report %d without its descriptor: %w", r.Kind, unix.EPROTO)
			}
		case Hello, Started, Listener, Ready, Exited, Apart, Forked:
		default:
			err = fmt.Errorf("report of kind %d: %w", r.Kind, unix.EPROTO)
		}
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return Report{}, err
	}
	return r, nil
}

func ancillary(oob []byte) (files []*os.File, pid int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
		case m.Header.Type == unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				return files, pid, err
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "from-sandbox"))
			}
		case m.Header.Type == unix.SCM_CREDENTIALS:
			cred, err := unix.ParseUnixCredentials(&m)
			if err != nil {
				return files, pid, err
			}
			pid = int(cred.Pid)
		}
	}
	return files, pid, nil
}

// Make sends what the sandbox is made of. When the namespaces are made come Forked and Apart, and after Go Hello.
func (c *Conn) Make(s *Sandbox) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	return c.message(b)
}

// message is its length and the bytes.
func (c *Conn) message(b []byte) error {
	head := make([]byte, 8, 8+len(b))
	binary.NativeEndian.PutUint64(head, uint64(len(b)))
	return thread.Send(c.fd, append(head, b...), nil, c.until)
}

// Confine sends the confinement with stdin, stdout, stderr and the child's socket. fd3, if not nil, becomes
// the agent's descriptor 3.
func (c *Conn) Confine(m *Confinement, stdin, stdout, stderr, child, fd3 *os.File) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	head := binary.NativeEndian.AppendUint64(nil, uint64(len(b)))
	fds := []int{int(stdin.Fd()), int(stdout.Fd()), int(stderr.Fd()), int(child.Fd())}
	if fd3 != nil {
		fds = append(fds, int(fd3.Fd()))
	}
	err = thread.Send(c.fd, head, unix.UnixRights(fds...), c.until)
	if err == nil {
		err = thread.Send(c.fd, b, nil, c.until)
	}
	if err != nil {
		return fmt.Errorf("send the confinement: %w", err)
	}
	return nil
}

// Go answers Apart, when the ids are mapped, and Listener, when its descriptors are ours too.
func (c *Conn) Go() error { return thread.Send(c.fd, []byte{'G'}, nil, c.until) }

// Execute answers the child after Ready.
func (c *Conn) Execute(m *Command) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	return c.message(b)
}
