// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gateways are the gateway processes below this test.
func gateways() []process {
	var own []process
	all := processes()
	byPID := map[int]process{}
	for _, p := range all {
		byPID[p.pid] = p
	}
	for _, p := range all {
		if !strings.HasPrefix(gatewayProc, strings.TrimSpace(p.comm)) || len(p.comm) < 12 || p.state == "Z" {
			continue
		}
		for up := p; up.pid > 1; up = byPID[up.ppid] {
			if up.pid == os.Getpid() {
				own = append(own, p)
				break
			}
		}
	}
	return own
}

// gatewayOf waits for the one gateway of a running call.
func gatewayOf(t *testing.T) process {
	t.Helper()
	var all []process
	eventually(t, 10*time.Second, "the gateway", func() bool { all = gateways(); return len(all) == 1 })
	if len(all) != 1 {
		t.Fatalf("gateways: %v", all)
	}
	return all[0]
}

// tunnel is a host whose answer never ends, and how many of its clients are still there.
func (x *exit) tunnel(name string) *atomic.Int64 {
	x.t.Helper()
	var open atomic.Int64
	x.host(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		for i := 0; r.Context().Err() == nil; i++ {
			fmt.Fprintf(w, "drop %d\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}))
	return &open
}

// M-5: nothing is left when the supervisor is killed while a tunnel is open: no gateway, no connection, no socket.
func TestM5SupervisorKilledWithOpenTunnel(t *testing.T) {
	before := takeStock()
	x := newExit(t)
	open := x.tunnel("repo.test")
	c := x.prepare(x.opts("ring2", "--allow", "repo.test"), "curl", "-sSN", "https://repo.test/")
	c.startUntil(t, "drop 3")
	g := gatewayOf(t)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	noAgents(t)
	eventually(t, 5*time.Second, "end of the gateway", func() bool { return unix.Kill(g.pid, 0) != nil || len(gateways()) == 0 })
	eventually(t, 5*time.Second, "end of the tunnel", func() bool { return open.Load() == 0 })
	if r := x.n.do("gc"); r.exit != 0 {
		t.Errorf("gc: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if left := before.leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// M-5, M-6: a run whose gateway dies has no account of its exits any more, so it is ended, with the true cause.
func TestM6GatewayKilled(t *testing.T) {
	before := takeStock()
	for _, tt := range []struct {
		name string
		sig  unix.Signal
	}{{"kill", unix.SIGKILL}, {"abort", unix.SIGABRT}, {"stop", unix.SIGTERM}} {
		t.Run(tt.name, func(t *testing.T) {
			x := newExit(t)
			open := x.tunnel("repo.test")
			c := x.prepare(x.opts("ring2", "--allow", "repo.test"), "sh", "-c", "curl -sSN https://repo.test/; echo cut; sleep 100")
			c.startUntil(t, "drop 3")
			if err := unix.Kill(gatewayOf(t).pid, tt.sig); err != nil {
				t.Fatal(err)
			}
			r := c.finish(t)
			if r.exit == 0 || !strings.Contains(r.status.Reason, gatewayEnded) {
				t.Errorf("exit %d, state %s, reason %q, want an end that names the gateway", r.exit, r.status.State, r.status.Reason)
			}
			eventually(t, 5*time.Second, "end of the tunnel", func() bool { return open.Load() == 0 })
			x.n.audit("node")
		})
	}
	if left := before.leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// M-22: an open tunnel ends with the right to it.
func TestM22QuarantineCutsTunnels(t *testing.T) {
	x := newExit(t)
	x.n.must("agent", "score", "walker", "0.8")
	open := x.tunnel("repo.test")
	c := x.prepare(x.opts("ring2", "--agent", "walker", "--allow", "repo.test"), "curl", "-sSN", "https://repo.test/")
	c.startUntil(t, "drop 3")
	x.n.must("agent", "quarantine", "walker", "--reason", "test")
	took := eventually(t, 10*time.Second, "end of the tunnel", func() bool { return open.Load() == 0 })
	t.Logf("cut %v after the command had ended", took)
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
}

// M-5: a gateway that was never needed was never started, and a run without exit has none.
func TestM5NoGatewayWithoutNeed(t *testing.T) {
	x := newExit(t)
	c := x.prepare(x.opts("ring2"), "/probe", "stubborn")
	c.startUntil(t, "ready")
	if g := gateways(); len(g) != 0 {
		t.Errorf("gateways before the first connection: %v", g)
	}
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
}
