// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// MaxFrame bounds a message, in bytes. It fits the send buffer of a unix socket, so that one is never cut.
const MaxFrame = 128 << 10

// ErrFrame is a message that can't be read. The link ends with it.
var ErrFrame = errors.New("link: malformed message")

// frame is one message. Requests and their answers have the same number; what the supervisor says unasked has none.
type frame struct {
	ID    uint64          `json:"id,omitempty"`
	Op    op              `json:"op,omitempty"` // empty in an answer
	Body  json.RawMessage `json:"body,omitempty"`
	Error string          `json:"error,omitempty"`
}

type op string

// What a gateway says, and after them what a supervisor says.
const (
	opHello   op = "hello" // the commands; nothing hostile was read yet
	opCheck   op = "check"
	opReserve op = "reserve"
	opSettle  op = "settle"
	opClose   op = "close" // a call
	opBudget  op = "budget"
	opRecord  op = "record"
	opApprove op = "approve"
	opMemory  op = "memory"
	opContext op = "context"
	opFile    op = "file"
	opElevate op = "elevate"
	opAlarm   op = "alarm"
	opSafety  op = "safety"
	opIntent  op = "intent"
	opBlocked op = "blocked"
	opExecute op = "execute"
	opKill    op = "kill"
	opCancel  op = "cancel"

	opStart  op = "start"
	opRing   op = "ring"
	opEnds   op = "ends" // when the run's time is over; zero: never
	opExited op = "exited"
	opEnd    op = "end"
)

// Pair makes a link: the supervisor's end, and the one a gateway inherits.
func Pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	peer := os.NewFile(uintptr(fds[1]), "gateway-link")
	ours := os.NewFile(uintptr(fds[0]), "supervisor-link")
	conn, err := connOf(ours)
	if err != nil {
		peer.Close()
		return nil, nil, err
	}
	return conn, peer, nil
}

// connOf takes over f.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("link: descriptor is a %s, not a unix socket", c.LocalAddr().Network())
	}
	return u, nil
}

func send(c *net.UnixConn, f frame, files ...*os.File) error {
	b, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if len(b) > MaxFrame {
		return fmt.Errorf("link: message of %d bytes, at most %d: %w", len(b), MaxFrame, unix.EMSGSIZE)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			// Not Fd: that would make it block, for the receiver too, and a read that nothing can end.
			raw, err := file.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
			}
			if err != nil {
				return fmt.Errorf("link: %w", err)
			}
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// receive reads one message into buf, which has MaxFrame bytes. io.EOF: the other side is gone.
func receive(c *net.UnixConn, buf []byte) (frame, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return frame{}, nil, err
	}
	files, err := rights(oob[:oobn])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: cut", ErrFrame)
	}
	var f frame
	if err == nil {
		if uerr := json.Unmarshal(buf[:n], &f); uerr != nil {
			err = fmt.Errorf("%w: %w", ErrFrame, uerr)
		}
	}
	if err != nil {
		closeAll(files)
		return frame{}, nil, err
	}
	return f, files, nil
}

func rights(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("%w: %w", ErrFrame, err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "from-supervisor"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
