// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Begin is what is said on the socket of a run that is held, and Begun with the run's id and a line's end what is answered when its agent has
// been executed. Without an answer the connection ends with the run.
const (
	Begin = "begin\n"
	Begun = "begun "
)

// sayTime is for whoever connects to say what it wants.
const sayTime = 5 * time.Second

// hold waits until the run's start is told on its socket, which is there from the moment it can be (Request.Hold). Whoever asked for the
// run says so on HoldFor when it is known; if that ends without a word, so does the run. Nothing of it exists yet but what is on record. Who
// may connect is told by its folder.
func (s *run) hold() error {
	if s.want.Hold == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	dir, err := os.Open(filepath.Dir(s.want.Hold)) // engines' folders are deeper than a socket's address is long
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	defer dir.Close()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(s.want.Hold)))
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	signals := s.host.Signals()
	if fd := s.want.HoldFor; fd > 0 {
		unix.CloseOnExec(fd)
		asks := os.NewFile(uintptr(fd), "who asks for it") //nolint:gosec // a descriptor
		go func() {
			defer asks.Close()
			if n, _ := asks.Read(make([]byte, 1)); n == 0 {
				s.end(errHeld)
			}
		}()
	}
	go func() {
		select {
		case <-signals:
			s.end(errHeld)
		case <-ctx.Done():
		}
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return errors.Join(context.Cause(s.ctx), os.NewSyscallError("accept", err))
		}
		_ = conn.SetReadDeadline(time.Now().Add(sayTime)) // the end of the run must not wait for who says nothing
		said := make([]byte, len(Begin))
		if n, _ := conn.Read(said); string(said[:n]) == Begin {
			s.starts = conn
			return s.useNames() // an engine gives them with the network, which it makes after the run is held
		}
		conn.Close()
	}
}

// begun answers whoever has started it.
func (s *run) begun() {
	if s.starts != nil {
		_, _ = s.starts.Write([]byte(Begun + s.plan.ID + "\n")) // who doesn't listen any more needn't know
		s.starts.Close()
	}
}

var errHeld = errors.New("it was ended before its start")

// or is what was said, or else the other.
func or[T any](said *T, other T) T {
	if said == nil {
		return other
	}
	return *said
}
