// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server is a proxy that runs as long as it is measured.
type server struct {
	name, note string
	at         string // empty: no proxy, straight to the upstream
	cmd        *exec.Cmd
	optional   bool
	notRun     string
}

const (
	gatewayName = "agentrun"
	squidName   = "squid"
	tinyName    = "tinyproxy"
	directName  = "direct"
)

// againstProxies: of latencies less is better, of rates more.
var againstProxies = []reference{{name: squidName, label: squidName}, {name: tinyName, label: tinyName}, {name: directName, label: directName}}

var addedToDirect = []reference{{name: directName, label: directName, added: true}, {name: squidName, label: squidName}, {name: tinyName, label: tinyName}}

// proxies measures what a forward proxy adds: latency and rate of small plain requests over kept connections, and the
// throughput of a tunnel.
func (b *bench) proxies() (_ []Row, err error) {
	o, err := newOrigin(b.ctx)
	if err != nil {
		return nil, err
	}
	defer o.close()
	servers := []*server{
		{name: gatewayName, note: "the gateway's forward proxy, without namespace, link and drop of privileges"},
		{name: squidName, note: "no cache, no log"},
		{name: tinyName, note: "no log; closes after each answer"},
		{name: directName},
	}
	for i, start := range []func(*server, *origin) error{b.startGateway, b.startSquid, b.startTinyproxy} {
		s := servers[i]
		defer func() { err = errors.Join(err, s.stop()) }()
		if err := start(s, o); err != nil {
			s.notRun = err.Error()
		}
	}
	var rows, absent []Row
	able := servers[:0:0]
	for _, s := range servers {
		if s.notRun == "" {
			able = append(able, s)
		} else {
			absent = append(absent, Row{Name: s.name, NotRun: s.notRun, Optional: s.optional})
		}
	}
	rows, err = b.loadProxies(o, able)
	if err != nil {
		return absent, err
	}
	weights, err := weighProxies(able)
	return append(append(rows, weights...), absent...), err
}

func (b *bench) loadProxies(o *origin, able []*server) ([]Row, error) {
	clients := []int{1, 64}
	figures := map[string]samples{}
	add := func(what string, s *server, v float64) {
		if figures[what] == nil {
			figures[what] = samples{}
		}
		figures[what].add(s.name, v)
	}
	target, bulk := o.http.Addr().String(), o.bulk.Addr().String()
	order := rand.New(rand.NewPCG(5, 8))
	warm := min(1, b.size.warmUp)
	for round := range b.size.proxy + warm {
		for _, i := range order.Perm(len(able)) {
			if b.ctx.Err() != nil {
				return nil, b.ctx.Err()
			}
			s := able[i]
			for _, n := range clients {
				at, line := s.at, "http://"+target+"/x"
				if at == "" {
					at, line = target, "/x"
				}
				got, err := crowd(b.ctx, n, at, []byte("GET "+line+" HTTP/1.1\r\nHost: "+target+"\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"), b.size.proxyTime)
				if err != nil {
					return nil, fmt.Errorf("%s, %d connections: %w", s.name, n, err)
				}
				if round < warm {
					continue
				}
				add(fmt.Sprintf("%d: latency p50", n), s, quantileSorted(got.latency, 0.5))
				add(fmt.Sprintf("%d: latency p99", n), s, quantileSorted(got.latency, 0.99))
				add(fmt.Sprintf("%d: requests/s", n), s, float64(len(got.latency))/b.size.proxyTime.Seconds())
			}
			rate, err := pull(b.ctx, s.at, bulk, b.size.proxyTime)
			if err != nil {
				return nil, fmt.Errorf("%s, tunnel: %w", s.name, err)
			}
			if round >= warm {
				add("tunnel", s, rate)
			}
		}
	}
	var rows []Row
	table := func(what, title, unit string, refs []reference) {
		for _, s := range able {
			row := figures[what].row(s.name, unit, refs)
			row.Name, row.Note = s.name+", "+title, s.note
			rows = append(rows, row)
		}
	}
	for _, n := range clients {
		on := fmt.Sprintf("%d connections", n)
		if n == 1 {
			on = "1 connection"
		}
		table(fmt.Sprintf("%d: latency p50", n), "GET, "+on+", p50", "µs", addedToDirect)
		table(fmt.Sprintf("%d: latency p99", n), "GET, "+on+", p99", "µs", addedToDirect)
		table(fmt.Sprintf("%d: requests/s", n), "GET, "+on, "req/s", againstProxies)
	}
	table("tunnel", "CONNECT, one tunnel", "MB/s", againstProxies)
	return rows, nil
}

// weighProxies is what the processes hold after the load, children included.
func weighProxies(able []*server) ([]Row, error) {
	var rows []Row
	for _, s := range able {
		if s.cmd == nil {
			continue
		}
		below, err := descendants(s.cmd.Process.Pid)
		if err != nil {
			return rows, err
		}
		w := samples{}
		var rss, pss float64
		for _, pid := range append(below, s.cmd.Process.Pid) {
			r, err := memoryField(pid, "status", "VmRSS:")
			if err != nil {
				return rows, err
			}
			p, err := memoryField(pid, "smaps_rollup", "Pss:")
			if err != nil {
				return rows, err
			}
			rss, pss = rss+r, pss+p
		}
		w.add("resident", rss)
		w.add("proportional", pss)
		for _, what := range []string{"resident", "proportional"} {
			row := w.row(what, "MiB", nil)
			row.Name, row.Note = s.name+", memory after the load, "+what, fmt.Sprintf("%d processes", len(below)+1)
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func (b *bench) startGateway(s *server, o *origin) error {
	bin := b.path("gatewayproxy")
	cmd := exec.CommandContext(b.ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./test/bench/gatewayproxy")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./test/bench/gatewayproxy (from the root of the sources): %w: %s", err, msg)
	}
	s.cmd = b.serving(bin, o.http.Addr().String(), o.bulk.Addr().String())
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("gatewayproxy says no address: %w", err)
	}
	s.at = strings.TrimSpace(line)
	return nil
}

// serving is a server's process, without our outputs, and gone when we are.
func (b *bench) serving(argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

const squidConf = `
http_port 127.0.0.1:%PORT%
cache deny all
cache_mem 0 MB
access_log none
cache_log %DIR%/cache.log
cache_store_log none
pid_filename %DIR%/squid.pid
coredump_dir %DIR%
pinger_enable off
netdb_filename none
shutdown_lifetime 0 seconds
cache_effective_user proxy
visible_hostname bench
workers 1
max_filedescriptors 4096
acl all_methods method GET CONNECT
http_access allow all_methods
http_access deny all
via off
forwarded_for delete
`

func (b *bench) startSquid(s *server, _ *origin) error {
	path, err := findServer("squid")
	if err != nil {
		return err
	}
	// -N: one process in the foreground, as the others.
	return b.startPeer(s, squidConf, "squid.conf", func(conf string) []string { return []string{path, "-N", "-f", conf} })
}

const tinyConf = `
Listen 127.0.0.1
Port %PORT%
User nobody
Group nogroup
LogLevel Critical
LogFile "%DIR%/tinyproxy.log"
PidFile "%DIR%/tinyproxy.pid"
MaxClients 1000
Timeout 60
DisableViaHeader Yes
Allow 127.0.0.1
`

func (b *bench) startTinyproxy(s *server, _ *origin) error {
	path, err := findServer("tinyproxy")
	if err != nil {
		return err
	}
	return b.startPeer(s, tinyConf, "tinyproxy.conf", func(conf string) []string { return []string{path, "-d", "-c", conf} })
}

func findServer(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin"} {
		p := filepath.Join(dir, name)
		if unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is missing: scripts/install-deps.sh test installs it", name)
}

// startPeer writes the configuration into a folder that the peer's own user can write, starts it and waits until it listens.
func (b *bench) startPeer(s *server, conf, name string, argv func(conf string) []string) error {
	dir := filepath.Join(b.dir, s.name)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil { // ours alone, for minutes; the peers drop to users of their own
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, name)
	text := strings.NewReplacer("%PORT%", strconv.Itoa(port), "%DIR%", dir).Replace(conf)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	s.cmd = b.serving(argv(file)...)
	var complaint strings.Builder
	s.cmd.Stderr = &complaint
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.at = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		c, err := new(net.Dialer).DialContext(b.ctx, "tcp4", s.at)
		if err == nil {
			return c.Close()
		}
		if unix.Kill(s.cmd.Process.Pid, 0) != nil || b.ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("%s doesn't listen: %s", s.name, lastLine(complaint.String()))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// freePort is free now; that somebody takes it before the peer does shows as a row that could not be run.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// stop ends a server and all that it has started.
func (s *server) stop() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL) // a group of its own
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("wait for %s: %w", s.name, err)
	}
	return nil
}
