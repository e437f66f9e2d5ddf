// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/netns"
	"agentrun/toolproxy/dns"
)

// resolve asks libc, as any program does, and prints what it said.
const resolve = `
import json, socket, sys
def look(name, family=0, flags=0):
    try:
        return sorted({a[4][0] for a in socket.getaddrinfo(name, 443, family, socket.SOCK_STREAM, 0, flags)})
    except socket.gaierror as e:
        return [errors.get(e.errno, str(e))]
errors = {socket.EAI_NONAME: "no such name", socket.EAI_AGAIN: "try again"}
print(json.dumps({
    "both": look("allowed.test"),
    "capitals": look("ALLOWED.Test."),
    "ipv4, if configured": look("allowed.test", socket.AF_INET, socket.AI_ADDRCONFIG),
    "ipv6, if configured": look("allowed.test", socket.AF_INET6, socket.AI_ADDRCONFIG),
    "refused": look("secret-4711.evil.test"),
    "below": look("x.allowed.test"),
}))
c = socket.create_connection(("allowed.test", 443), 10)
print(json.dumps(c.recv(100).decode()))
`

// needPython finds one that is there for everybody: a version manager's shim would look for its own files first.
func needPython(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "/usr/local/bin/python3"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	p, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("need: program python3: not in PATH")
	}
	return p
}

// M-8: in a captured namespace glibc's getaddrinfo, through whatever server resolv.conf names, gets
// addresses of allowed names and no others, over UDP and over TCP, and a connection to one comes to the
// proxy, which knows the name.
func TestM8LibcInNamespace(t *testing.T) {
	python := needPython(t)
	for name, conf := range map[string]string{
		"loopback":          "nameserver 127.0.0.1\n",
		"a public server":   "nameserver 8.8.8.8\n",
		"IPv6":              "nameserver 2001:4860:4860::8888\n",
		"EDNS":              "nameserver 8.8.8.8\noptions edns0 trust-ad\n",
		"over TCP":          "nameserver 1.1.1.1\noptions use-vc\n",
		"a search suffix":   "nameserver 127.0.0.1\nsearch evil.test\n",
		"one by one":        "nameserver 9.9.9.9\noptions single-request-reopen\n",
		"several, the same": "nameserver 8.8.8.8\nnameserver 8.8.4.4\noptions rotate\n",
	} {
		t.Run(name, func(t *testing.T) {
			ns, err := netns.New()
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			if err := ns.Capture(); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var refused []string
			r := dns.New(dns.Config{
				Allow: func(name string) bool { return name == "allowed.test" },
				Observe: func(one dns.Refusal) {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, one.Name)
				},
			})
			stop := serve(t, ns, r)
			got := runInside(t, ns, python, conf)
			stop()
			want := libcSaid{
				Lookups: map[string][]string{
					"both":                {"198.18.1.0", "fd61:6772:756e::100"},
					"capitals":            {"198.18.1.0", "fd61:6772:756e::100"},
					"ipv4, if configured": {"198.18.1.0"},
					"ipv6, if configured": {"fd61:6772:756e::100"},
					"refused":             {"no such name"},
					"below":               {"no such name"},
				},
				Connected: "you asked for allowed.test",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !slices.Contains(refused, "secret-4711.evil.test") {
				t.Errorf("the observer heard of %q", refused)
			}
		})
	}
}

// serve runs the responder, and on port 443 what stands for the proxy, until the function it returns is called.
func serve(t *testing.T, ns *netns.NS, r *dns.Responder) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	files, err := ns.Sockets([]netns.Socket{{Port: 53, Datagram: true}, {Port: 53}, {Port: 443}})
	if err != nil {
		t.Fatal(err)
	}
	udp, err := netns.PacketConn(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var listeners [2]net.Listener
	for i, f := range files[1:] {
		if listeners[i], err = net.FileListener(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	tcp, proxy := listeners[0], listeners[1]
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Serve(ctx, udp); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := r.ServeTCP(ctx, tcp); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			name, _ := r.Name(c.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
			_, _ = c.Write([]byte("you asked for " + name))
			_ = c.Close()
		}
	})
	return func() {
		cancel()
		_ = proxy.Close()
		wg.Wait()
	}
}

type libcSaid struct {
	Lookups   map[string][]string
	Connected string
}

// runInside starts python with conf as its /etc/resolv.conf, in a mount namespace of the starting
// thread's: the child inherits that and the network namespace, and no other thread has either.
func runInside(t *testing.T, ns *netns.NS, python, conf string) libcSaid {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"/etc/resolv.conf": conf, "/etc/hosts": "127.0.0.1 localhost\n", "/etc/nsswitch.conf": "hosts: files dns\n"}
	var out []byte
	err := ns.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare CLONE_NEWNS", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount / private", err)
		}
		for target, text := range files {
			source := filepath.Join(dir, filepath.Base(target))
			if err := os.WriteFile(source, []byte(text), 0o644); err != nil { //nolint:gosec // as in /etc
				return err
			}
			if real, err := filepath.EvalSymlinks(target); err == nil {
				target = real
			}
			if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
				return &os.PathError{Op: "bind mount", Path: target, Err: err}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, "-I", "-c", resolve)
		cmd.Stderr = os.Stderr
		var err error
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var said libcSaid
	d := json.NewDecoder(strings.NewReader(string(out)))
	if err := d.Decode(&said.Lookups); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if err := d.Decode(&said.Connected); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return said
}

// An address stands for a name once the name was asked for, and allowed.
func ExampleResponder_Name() {
	r := dns.New(dns.Config{Allow: func(name string) bool { return name == "example.test" }})
	name, ok := r.Name(netip.MustParseAddr("198.18.1.0"))
	fmt.Printf("%q %v\n", name, ok)
	// Output: "" false
}
