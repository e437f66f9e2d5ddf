// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// THREATS "sockets"; M-1, M-4, M-7.

func TestSocketFamilies(t *testing.T) {
	var attacks []attack
	for _, s := range []string{
		"vsock stream", "vsock dgram", "packet raw", "packet dgram", "alg seqpacket", "bluetooth raw", "bluetooth stream",
		"inet raw 1", "inet raw 255", "inet6 raw 58", "inet dgram 1", "inet stream 132", "inet dgram 136",
		"can raw", "tipc dgram", "kcm dgram", "smc stream", "xdp raw", "key raw 2", "rds seqpacket", "x25 seqpacket", "ax25 dgram",
		"nfc raw", "qipcrtr dgram", "mctp dgram", "pppox dgram", "unix raw", "unix seqpacket",
		"netlink raw 16", "netlink raw 9", "netlink raw 12", "netlink raw 15", // generic, audit, netfilter, uevent
		// A 33rd bit beside the family: the kernel doesn't see it.
		"vsock stream 0 1", "packet raw 0 1", "alg seqpacket 0 1",
	} {
		attacks = append(attacks, attack{try: "socket " + s, want: "EAFNOSUPPORT@socket"})
	}
	// MPTCP is asked for by ordinary Go programs: no, but no alarm.
	attacks = append(attacks, attack{try: "socket inet stream 262", want: "EPROTONOSUPPORT|EAFNOSUPPORT@socket"})
	attempt(t, opts{}, attacks)
}

// The namespace has a loopback and nothing else, and nobody inside may change
// that.
func TestNetworkIsClosed(t *testing.T) {
	needSandbox(t)
	// A listener of the host's on every address the sandbox might try.
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	_, port, _ := net.SplitHostPort(host.Addr().String())
	abstract := fmt.Sprintf("@agentrun-test-%d", os.Getpid())
	un, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer un.Close()
	none := func(words string) attack {
		return attack{try: words, want: "ENETUNREACH", in: same("EAFNOSUPPORT@socket", "strict")}
	}
	noUnix := map[string]string{"ring3": "ECONNREFUSED|EAFNOSUPPORT|EAFNOSUPPORT@socket", "strict": "EAFNOSUPPORT@socket"}
	refused := func(words string) attack {
		return attack{try: words, want: "ECONNREFUSED", in: same("EAFNOSUPPORT@socket", "strict")}
	}
	attempt(t, opts{flags: []string{"--no-gateway"}}, []attack{
		refused("tcp-connect 127.0.0.1 " + port),
		refused("tcp-connect ::1 " + port),
		refused("tcp-connect 0.0.0.0 " + port),
		refused("tcp-connect ::ffff:127.0.0.1 " + port),
		{try: "unix-connect " + abstract, want: "ECONNREFUSED", in: noUnix},
		none("tcp-connect 169.254.169.254 80"),
		none("tcp-connect 10.0.0.1 80"),
		none("tcp-connect 192.168.0.1 80"),
		none("tcp-connect 192.0.2.1 443"), // documentation address: stands for any public one
		none("tcp-connect 2001:db8::1 443"),
		none("tcp-connect ::ffff:192.0.2.1 443"),
		none("udp-send 192.0.2.1 53"),
		none("udp-send 2001:db8::1 53"),
		none("udp-send 255.255.255.255 67"),
		none("udp-send 224.0.0.251 5353"),
		// Ring 3 has no netlink at all; above it the kernel says no, since
		// the namespace belongs to the host's user namespace.
		{try: "route-add", want: "EAFNOSUPPORT@socket", in: same("EPERM", "ring1", "ring2")},
		{try: "link-down", want: "EAFNOSUPPORT@socket", in: same("EPERM", "ring1", "ring2")},
		{try: "link-add", want: "EAFNOSUPPORT@socket", in: same("EPERM", "ring1", "ring2")},
	})
}

// With a way out every address is the namespace's own: a port that isn't captured is one where nobody listens, wherever it
// seems to be. What is behind the captured ones is in exit_egress_test.go.
func TestOtherPortsAreNobodys(t *testing.T) {
	needSandbox(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var attacks []attack
	for _, host := range []string{"127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "10.0.0.1", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "192.0.0.8"} {
		in := same("EAFNOSUPPORT@socket", "strict")
		if ip := net.ParseIP(host); !ip.IsLoopback() && !ip.IsUnspecified() {
			in["ring1"] = "-" // taken by the way out, which decides: TestH11Ring1ReachesEveryPort
		}
		attacks = append(attacks, attack{try: "tcp-connect " + host + " " + port, want: "ECONNREFUSED", in: in})
	}
	attempt(t, opts{}, attacks)
}

// Nothing but lo, in every ring. /proc/net is a link to self/net.
func TestOnlyLoopback(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		if got := observe(t, opts{profile: profile}, "links"); got != "lo" {
			t.Errorf("%s: interfaces: got %s, want lo", profile, got)
		}
	}
}

// Two sandboxes: the port and the abstract name that one listens on do not
// exist for the other, and neither sees the other's processes or files.
func TestNeighboursAreInvisible(t *testing.T) {
	needSandbox(t)
	stdin, hold := io.Pipe()
	server := prepare(t, opts{profile: "ring2", stdin: stdin, flags: []string{"-i"}}, "/probe", "serve", "4444", "@neighbour")
	server.startUntil(t, "ready")
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			want := "ECONNREFUSED"
			if profile == "strict" {
				want = "EAFNOSUPPORT"
			}
			got, r := try(t, opts{profile: profile}, "tcp-connect 127.0.0.1 4444", "unix-connect @neighbour", "pids", "ls /tmp/sandbox")
			for _, words := range []string{"tcp-connect 127.0.0.1 4444", "unix-connect @neighbour"} {
				if got[words] != want && !(profile == "ring3" && got[words] == "EAFNOSUPPORT") {
					t.Errorf("%s: got %s, want %s", words, got[words], want)
				}
			}
			if n := len(strings.Split(value(t, r, "pids"), "|")); n != 2 {
				t.Errorf("%d processes are visible, want 2", n)
			}
		})
	}
	hold.Close()
	if r := server.finish(t); answers(r.stdout)["serve 4444 @neighbour"] != "value=unreached" {
		t.Errorf("the neighbour was reached: %s", r.stdout)
	}
}

// SCM_RIGHTS smuggling: a socket of a host service in the workspace would hand
// descriptors of the host to the agent. Neither a read-only mount nor Landlock
// (before LANDLOCK_ACCESS_FS_RESOLVE_UNIX) keeps connect(2) from a socket file.
// Another user's is closed by its mode. The owner's own is open to an agent that
// acts as the owner; a ring 3 agent does not: it has no unix sockets but stream pairs.
func TestHostSocketInWorkspace(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	for name, uid := range map[string]int{"roots.sock": 0, "owners.sock": owner} {
		path := filepath.Join(ws, name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := errors.Join(os.Chown(path, uid, uid), os.Chmod(path, 0o660)); err != nil {
			t.Fatal(err)
		}
	}
	closed := map[string]string{"ring3": "EAFNOSUPPORT|EAFNOSUPPORT@socket", "strict": "EAFNOSUPPORT@socket"}
	attempt(t, opts{flags: []string{"--workspace", ws}}, []attack{
		{try: "unix-connect /workspace/roots.sock", want: "EACCES", in: map[string]string{"ring3": "EACCES|EAFNOSUPPORT", "strict": "EAFNOSUPPORT@socket"}},
		{try: "unix-connect /workspace/owners.sock", want: "ok", in: closed},
		{try: "socketpair unix", want: "ok", in: same("EAFNOSUPPORT@socketpair", "strict")},
	})
}

// An end of a datagram socketpair is a datagram socket: it sends to any socket file that it finds, and hands descriptors over. So a ring 3 agent
// could talk to a service of the host by its read-only workspace, and get a descriptor that writes it from a ring 2 agent. A stream
// pair is connected for good, also when its other end is closed.
func TestUnixPairs(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	listen := func(name string, kind int) int {
		t.Helper()
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		path := filepath.Join(ws, name)
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), os.Chown(path, owner, owner), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		if kind != unix.SOCK_DGRAM {
			if err := unix.Listen(fd, 8); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	dgram := listen("dgram", unix.SOCK_DGRAM)
	stream := listen("stream", unix.SOCK_STREAM)
	listen("seqpacket", unix.SOCK_SEQPACKET)
	pair := func(how, kind, path, above3 string) attack {
		want, strict := "EAFNOSUPPORT@socketpair", "EAFNOSUPPORT@socketpair"
		if kind == "stream" {
			want = above3
		}
		return attack{try: fmt.Sprintf("pair %s %s %s", how, kind, path), want: want,
			in: map[string]string{"ring1": above3, "ring2": above3, "strict": strict}}
	}
	attacks := []attack{
		{try: "socketpair unix", want: "ok", in: same("EAFNOSUPPORT@socketpair", "strict")},
		{try: "socketpair unix dgram", want: "EAFNOSUPPORT@socketpair", in: same("ok", "ring1", "ring2")},
		{try: "socketpair unix raw", want: "EAFNOSUPPORT@socketpair", in: same("ok", "ring1", "ring2")},
		{try: "socketpair unix seqpacket", want: "EAFNOSUPPORT@socketpair", in: same("ok", "ring1", "ring2")},
		{try: "socketpair tipc", want: "EAFNOSUPPORT@socketpair"},
	}
	for _, how := range []string{"sendto", "connect", "give", "orphan-sendto", "orphan-connect"} {
		attacks = append(attacks,
			pair(how, "dgram", "/workspace/dgram", "ok"), pair(how, "raw", "/workspace/dgram", "ok"),
			pair(how, "stream", "/workspace/stream", "EISCONN"))
	}
	attacks = append(attacks, pair("connect", "seqpacket", "/workspace/seqpacket", "EISCONN"), pair("orphan-connect", "seqpacket", "/workspace/seqpacket", "EISCONN"),
		pair("listen", "stream", "/tmp/sandbox/here", "EINVAL"), pair("listen", "stream", "@here", "EINVAL"))
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			attemptIn(t, opts{flags: []string{"--workspace", ws}}, profile, attacks)
			var got, descriptors int
			for b, control := make([]byte, 8), make([]byte, 64); ; got++ {
				_, n, _, _, err := unix.Recvmsg(dgram, b, control, unix.MSG_CMSG_CLOEXEC)
				if err != nil {
					break
				}
				if messages, err := unix.ParseSocketControlMessage(control[:n]); err == nil && len(messages) > 0 {
					descriptors++
					for _, m := range messages {
						fds, _ := unix.ParseUnixRights(&m)
						for _, fd := range fds {
							unix.Close(fd)
						}
					}
				}
			}
			if above3 := profile == "ring1" || profile == "ring2"; (got > 0) != above3 || (descriptors > 0) != above3 {
				t.Errorf("the host's datagram socket got %d messages and %d descriptors", got, descriptors)
			}
			if fd, _, err := unix.Accept(stream); err == nil {
				unix.Close(fd)
				t.Error("the host's stream socket got a connection")
			}
		})
	}
}
