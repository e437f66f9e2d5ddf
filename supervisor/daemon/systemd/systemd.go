// SPDX-License-Identifier: Apache-2.0

// Package systemd speaks to the service manager that started this process (sd_notify(3), sd_listen_fds(3)).
package systemd

import (
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Manager is the service manager that started us. The zero value is nobody.
type Manager struct {
	conn     *net.UnixConn
	watchdog time.Duration // half of what it waits for a sign of life; 0: it doesn't
	Sockets  map[string]*os.File
}

// StartedBy looks at the environment, and takes out of it what must not reach our children.
func Started() Manager {
	s := Manager{Sockets: map[string]*os.File{}}
	if name := os.Getenv("NOTIFY_SOCKET"); strings.HasPrefix(name, "/") || strings.HasPrefix(name, "@") {
		if conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"}); err == nil {
			s.conn = conn
		}
	}
	if forUs("WATCHDOG_PID", true) {
		if us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
			s.watchdog = time.Duration(us) * time.Microsecond / 2
		}
	}
	if n, err := strconv.Atoi(os.Getenv("LISTEN_FDS")); err == nil && forUs("LISTEN_PID", false) {
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		for i := range min(n, len(names)) {
			unix.CloseOnExec(firstListenFD + i)
			s.Sockets[names[i]] = os.NewFile(uintptr(firstListenFD+i), names[i]) //nolint:gosec // a descriptor
		}
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	return s
}

// firstListenFD is SD_LISTEN_FDS_START.
const firstListenFD = 3

// forUs tells whether the process that the variable names is this one; unset counts where the protocol says so.
func forUs(name string, unset bool) bool {
	v, ok := os.LookupEnv(name)
	return ok && v == strconv.Itoa(os.Getpid()) || !ok && unset
}

// Tell sends a state. A manager that isn't there or listening is no reason to stop.
func (s Manager) Tell(lines ...string) {
	if s.conn != nil {
		_, _ = s.conn.Write([]byte(strings.Join(lines, "\n")))
	}
}

// Reloading says when, as Type=notify-reload asks for.
func (s Manager) Reloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		s.Tell("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
	}
}

// Alive ticks as often as the service manager wants to hear of us.
func (s Manager) Alive() *time.Ticker {
	if s.watchdog > 0 {
		return time.NewTicker(s.watchdog)
	}
	return time.NewTicker(time.Minute)
}
