// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_PID", "1") // somebody else's
	s := Started()
	if s.watchdog != 1500*time.Millisecond || len(s.Sockets) != 0 {
		t.Errorf("got %+v", s)
	}
	if v, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
		t.Errorf("our children would speak to systemd: %s", v)
	}
	s.Tell("READY=1", "STATUS=x")
	s.Reloading()
	for _, want := range []string{"READY=1\nSTATUS=x", "RELOADING=1\nMONOTONIC_USEC="} {
		b := make([]byte, 256)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Errorf("got %q, %v, want %q", b[:n], err, want)
		}
	}
	s.conn.Close()
	Manager{}.Tell("READY=1") // nobody: nothing
}
