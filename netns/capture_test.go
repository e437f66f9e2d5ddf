// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const patience = 10 * time.Second // never waited for where things work

func captured(t testing.TB) *NS {
	t.Helper()
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := ns.Capture(); err != nil {
		t.Fatal(err)
	}
	return ns
}

// listen takes over a socket of Sockets, as the gateway does.
func listen(t testing.TB, ns *NS, port uint16) net.Listener {
	t.Helper()
	l, err := net.FileListener(open(t, ns, Socket{Port: port}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// packets is listen for datagrams; only4 as on a kernel without IPv6.
func packets(t testing.TB, ns *NS, port uint16, only4 bool) net.PacketConn {
	t.Helper()
	s := Socket{Port: port, Datagram: true}
	var f *os.File
	if only4 {
		err := ns.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			f = os.NewFile(uintptr(fd), "only4")
			return s.prepare(fd, true)
		})
		if err != nil {
			t.Fatal(err)
		}
	} else {
		f = open(t, ns, s)
	}
	c, err := PacketConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t testing.TB, ns *NS, s Socket) *os.File {
	t.Helper()
	files, err := ns.Sockets([]Socket{s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files[0].Close() })
	return files[0]
}

// dial connects from inside, as the agent does. A numeric address: a lookup would run on another thread.
func dial(ns *NS, network, address string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = (&net.Dialer{Timeout: patience}).Dial(network, address)
		return err
	})
	return c, err
}

// M-8: whatever address the agent connects to, our listener gets it, and knows the address.
func TestM8TransparentCapture(t *testing.T) {
	ns := captured(t)
	listeners := map[string]net.Listener{}
	for _, port := range []uint16{80, 443, 8080} {
		listeners[fmt.Sprint(port)] = listen(t, ns, port)
	}
	for _, want := range []string{
		"93.184.216.34:443", "[2606:2800:220:1::1]:80", "10.0.0.1:8080", "169.254.169.254:80",
		"[fd61:6772:756e::1]:443", "198.18.0.1:443", "127.0.0.1:80", "[::1]:80", "255.255.255.254:80",
	} {
		t.Run(want, func(t *testing.T) {
			client, err := dial(ns, "tcp", want)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, port, _ := net.SplitHostPort(want)
			server, err := listeners[port].Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			if got := server.LocalAddr().String(); got != want {
				t.Errorf("original destination: got %s, want %s", got, want)
			}
			if _, err := server.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			_ = client.SetReadDeadline(time.Now().Add(patience))
			b := make([]byte, 5)
			if _, err := client.Read(b); err != nil || string(b) != "hello" {
				t.Errorf("client read %q, %v", b, err)
			}
		})
	}
}

// M-8: a datagram's destination is known, and the answer comes from there: a connected socket, as
// resolvers use, takes no other.
func TestM8DatagramAnsweredFromItsDestination(t *testing.T) {
	ns := captured(t)
	for _, tt := range []struct {
		to    string
		only4 bool
	}{
		{"8.8.8.8:53", false},
		{"[2001:4860:4860::8888]:53", false},
		{"127.0.0.1:53", false},
		{"[::1]:53", false},
		{"8.8.8.8:53", true},
		{"127.0.0.1:53", true},
	} {
		t.Run(fmt.Sprintf("%s only4=%v", tt.to, tt.only4), func(t *testing.T) {
			server := packets(t, ns, 53, tt.only4)
			defer server.Close()
			client, err := dial(ns, "udp", tt.to)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Write([]byte("question")); err != nil {
				t.Fatal(err)
			}
			_ = server.SetDeadline(time.Now().Add(patience))
			b := make([]byte, 64)
			n, from, err := server.ReadFrom(b)
			if err != nil || string(b[:n]) != "question" {
				t.Fatalf("server read %q, %v", b[:n], err)
			}
			want := PacketAddr{Remote: netip.MustParseAddrPort(client.LocalAddr().String()), Local: netip.MustParseAddrPort(tt.to)}
			if diff := cmp.Diff(want, from, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			if _, err := server.WriteTo([]byte("answer"), from); err != nil {
				t.Fatal(err)
			}
			_ = client.SetDeadline(time.Now().Add(patience))
			if n, err = client.Read(b); err != nil || string(b[:n]) != "answer" {
				t.Errorf("client read %q, %v", b[:n], err)
			}
		})
	}
}

// A source of the wrong family is an error, not a panic; none leaves the choice to the kernel.
func TestAnswerAsNobody(t *testing.T) {
	ns := captured(t)
	c := packets(t, ns, 53, true)
	to := netip.MustParseAddrPort("127.0.0.1:9")
	if _, err := c.WriteTo(nil, PacketAddr{Remote: to, Local: netip.MustParseAddrPort("[::1]:53")}); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("answer as ::1 on an IPv4 socket: got %v, want %v", err, unix.EAFNOSUPPORT)
	}
	if _, err := c.WriteTo(nil, PacketAddr{Remote: to}); err != nil {
		t.Errorf("answer as nobody in particular: %v", err)
	}
	if _, err := c.WriteTo(nil, net.UDPAddrFromAddrPort(to)); err != nil {
		t.Errorf("to a plain address: %v", err)
	}
}

// M-7: with capture on, nothing outside can be reached: not the host's own addresses, not another
// run's listeners; and the host reaches nothing inside.
func TestM7CaptureLetsNothingOut(t *testing.T) {
	a, b := captured(t), captured(t)
	inA := listen(t, a, 8080)
	outside, err := net.Listen("tcp", ":0") //nolint:gosec // reachable by all is what must not help
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	_, port, _ := net.SplitHostPort(outside.Addr().String())
	hosts := []string{"127.0.0.1", "::1"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if ip := addr.(*net.IPNet).IP; !ip.IsLinkLocalUnicast() {
			hosts = append(hosts, ip.String())
		}
	}
	for _, host := range hosts {
		if c, err := dial(a, "tcp", net.JoinHostPort(host, port)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("from inside to the host's %s: got %v %v, want %v", host, c, err, unix.ECONNREFUSED)
		}
	}
	for _, to := range []string{"127.0.0.1:8080", "192.0.0.8:8080", "93.184.216.34:8080", "[100:0:0:1::1]:8080"} {
		if c, err := dial(b, "tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("from another namespace to %s: got %v %v, want %v", to, c, err, unix.ECONNREFUSED)
		}
	}
	if c, err := net.Dial("tcp", "127.0.0.1:8080"); err == nil && c.RemoteAddr().String() == inA.Addr().String() {
		t.Errorf("the host reaches %v inside", inA.Addr())
	}
	err = a.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if l.Flags&net.FlagUp != 0 && l.Flags&net.FlagLoopback == 0 {
				t.Errorf("interface %s is up", l.Name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The host's routes stay as they are: a "local default" there would cut the machine off.
func TestCaptureLeavesTheHostAlone(t *testing.T) {
	routes := func() string {
		b, err := os.ReadFile("/proc/net/fib_trie")
		if err != nil {
			t.Fatal(err)
		}
		b6, err := os.ReadFile("/proc/net/ipv6_route")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %t %t", strings.Count(string(b), "\n"),
			strings.Contains(string(b), "192.0.0.8"), strings.Contains(string(b6), "01000000000000010000000000000001"))
	}
	before := routes()
	captured(t)
	if after := routes(); after != before {
		t.Errorf("routes of the host: got %s, want %s", after, before)
	}
}

// Called again it changes nothing; where IPv6 was switched off for new namespaces it is switched on.
func TestCaptureAgainAndWithoutIPv6(t *testing.T) {
	const sysctl = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"
	onHost, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}
	ns := captured(t)
	if err := ns.Do(func() error { return os.WriteFile(sysctl, []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ns.Capture(); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, ns, 80)
	c, err := dial(ns, "tcp", "[2606:2800:220:1::1]:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if after, _ := os.ReadFile(sysctl); string(after) != string(onHost) {
		t.Errorf("the host's sysctl: got %s, want %s", after, onHost)
	}
}

// What Sockets makes is ready before Capture as well; a port that is taken, and a namespace that is gone, are errors.
func TestSocketsBeforeCapture(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	l := listen(t, ns, 80)
	if _, err = ns.Sockets([]Socket{{Port: 80}}); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "port 80") {
		t.Errorf("port taken: got %v, want port 80 … %v", err, unix.EADDRINUSE)
	}
	if err := ns.Capture(); err != nil {
		t.Fatal(err)
	}
	c, err := dial(ns, "tcp", "93.184.216.34:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Sockets([]Socket{{Port: 82}}); err == nil {
		t.Error("sockets in a closed namespace: want an error")
	}
	if err := ns.Capture(); err == nil {
		t.Error("capture in a closed namespace: want an error")
	}
}

// M-5: what is closed leaves no descriptor and no thread inside.
func TestM5CloseRemovesAll(t *testing.T) {
	captured(t) // whatever the standard library opens once is open now
	before := descriptors(t)
	var inodes []string
	for range 10 {
		ns, err := New()
		if err != nil {
			t.Fatal(err)
		}
		ino, err := ns.Inode()
		if err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, fmt.Sprintf("net:[%d]", ino))
		if err := ns.Capture(); err != nil {
			t.Fatal(err)
		}
		files, err := ns.Sockets([]Socket{{Port: 80}, {Port: 53, Datagram: true}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []io.Closer{files[0], files[1], ns} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(before, descriptors(t)); diff != "" {
		t.Errorf("descriptors (-before +after):\n%s", diff)
	}
	// A thread ends a little after the goroutine on it: the test's time limit is the bound.
	for _, ino := range inodes {
		for threadIn(t, ino) {
			time.Sleep(time.Millisecond)
		}
	}
}

// What was begun for a run that never came holds nothing, and one that was made is whole although it is dropped afterwards.
func TestM5BegunAndDropped(t *testing.T) {
	captured(t)
	before := descriptors(t)
	for range 10 {
		b := Begin()
		b.Drop()
		<-b.over
		if b.ns != nil || !errors.Is(b.err, errDropped) {
			t.Fatalf("dropped: %v, %v", b.ns, b.err)
		}
		b.Drop()
		if ns, err := b.Make(); ns != nil || !errors.Is(err, errDropped) { // a launch that was given up, and comes back
			t.Fatalf("made after it was dropped: %v, %v", ns, err)
		}
	}
	b := Begin()
	ns, err := b.Make((*NS).Capture)
	if err != nil {
		t.Fatal(err)
	}
	b.Drop()
	if ino, err := ns.Inode(); err != nil || ino == 0 {
		t.Errorf("made and dropped: inode %d, %v", ino, err)
	}
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if ns, err := Begin().Make(func(*NS) error { return broken }); ns != nil || !errors.Is(err, broken) {
		t.Errorf("got %v and %v", ns, err)
	}
	if diff := cmp.Diff(before, descriptors(t)); diff != "" {
		t.Errorf("descriptors (-before +after):\n%s", diff)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func threadIn(t *testing.T, namespace string) bool {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if link, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && link == namespace {
			return true
		}
	}
	return false
}

// A step that can't be done is named, and the errno kept: here there is no right to add a route.
func TestCaptureNamesTheStep(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		return capture()
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "add address 192.0.0.8/32 to lo") {
		t.Errorf("got %v, want add address …: %v", err, unix.EPERM)
	}
}

// What a run pays before its start: the namespace, its routes, and three listeners.
func BenchmarkCaptureAndThreeListeners(b *testing.B) {
	for b.Loop() {
		ns, err := New()
		if err != nil {
			b.Fatal(err)
		}
		if err := ns.Capture(); err != nil {
			b.Fatal(err)
		}
		files, err := ns.Sockets([]Socket{{Port: 80}, {Port: 443}, {Port: 53, Datagram: true}})
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			f.Close()
		}
		if err := ns.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNamespaceOnly(b *testing.B) {
	for b.Loop() {
		ns, err := New()
		if err != nil {
			b.Fatal(err)
		}
		if err := ns.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
