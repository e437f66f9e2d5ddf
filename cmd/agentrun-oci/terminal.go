// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"github.com/containerd/console"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// terminal makes one, and gives the engine its end by the socket; without a socket it is the caller's.
func terminal(socket string, size *specs.Box) (slave, master *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil || socket != "" {
			master.Close()
			master = nil
		}
	}()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil && size != nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}) //nolint:gosec // as runc
	}
	if err != nil {
		return nil, nil, os.NewSyscallError("ioctl", err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	if slave, err = os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0); err != nil || socket == "" {
		return slave, master, err
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		defer conn.Close()
		_, _, err = conn.(*net.UnixConn).WriteMsgUnix([]byte(name), unix.UnixRights(int(master.Fd())), nil)
	}
	if err != nil {
		slave.Close()
		return nil, nil, fmt.Errorf("--console-socket: %w", err)
	}
	return slave, nil, nil
}

// relay joins a terminal to this process's own streams. The function that it returns waits until whoever has the terminal has closed it.
func relay(master *os.File) (finish func()) {
	_ = console.ClearONLCR(master.Fd()) // the agent's own translates line ends
	restore := func() {}
	if own, err := console.ConsoleFromFile(os.Stdin); err == nil {
		resize := func() {
			if size, err := unix.IoctlGetWinsize(int(own.Fd()), unix.TIOCGWINSZ); err == nil {
				_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size)
			}
		}
		resize()
		changes := make(chan os.Signal, 1)
		signal.Notify(changes, unix.SIGWINCH)
		go func() {
			for range changes {
				resize()
			}
		}()
		_ = own.SetRaw()
		restore = func() { _ = own.Reset() }
	}
	go func() { _, _ = io.Copy(master, os.Stdin) }()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(os.Stdout, master)
	}()
	return func() {
		<-closed
		restore()
	}
}
