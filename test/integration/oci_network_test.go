// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"agentrun/netns"
	"agentrun/test/exit"
)

// ociNetwork is a network as an engine makes it: the namespace of a container, with a cable to another host's, and the files that name it.
type ociNetwork struct {
	own      *netns.NS
	resolver *exittest.Resolver // that the engine's resolv.conf names
	visits   atomic.Int64       // of the other host's servers
	hosts    string
	mounts   []map[string]any
}

const (
	ociOwn  = "10.214.7.1"
	ociFar  = "10.214.7.2"
	ociFar3 = "10.214.7.3" // the same host, at an address that isn't allowed
)

func newOCINetwork(t *testing.T) *ociNetwork {
	t.Helper()
	needProgram(t, "ip")
	n := &ociNetwork{}
	var site *netns.NS
	var last *exittest.Resolver
	for _, ns := range []**netns.NS{&n.own, &site} {
		var err error
		if *ns, err = netns.New(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*ns).Close() })
	}
	ip := func(command string) error {
		out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, out)
		}
		return nil
	}
	serve := func(at string) error {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.visits.Add(1)
			fmt.Fprintln(w, "hello at", at)
		})}
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.Serve(l) }()
		return nil
	}
	err := errors.Join(
		n.own.Do(func() (err error) {
			n.resolver, err = exittest.NewResolver()
			if err == nil {
				last, err = exittest.NewResolver()
			}
			return errors.Join(err, ip("link add here type veth peer name there"),
				ip(fmt.Sprintf("link set there netns /proc/%d/fd/%d", os.Getpid(), site.Fd())), ip("addr add "+ociOwn+"/24 dev here"), ip("link set here up"))
		}),
		site.Do(func() error {
			return errors.Join(ip("addr add "+ociFar+"/24 dev there"), ip("addr add "+ociFar3+"/24 dev there"), ip("link set there up"),
				serve(ociFar+":80"), serve(ociFar+":81"), serve(ociFar3+":80"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = n.resolver.Close(), last.Close() })
	last.Answer("later", []netip.Addr{netip.MustParseAddr(ociFar)})
	for name, addr := range map[string]string{"web": ociFar, "other": ociFar, "moved": ociFar3, "meta": "169.254.169.254", "self": ociOwn} {
		n.resolver.Answer(name, []netip.Addr{netip.MustParseAddr(addr)})
	}
	// The first server doesn't answer; the last one knows more, as the host's does.
	servers := "nameserver 127.66.66.66\n" + n.resolver.File() + last.File()
	dir := t.TempDir()
	n.hosts = write(t, filepath.Join(dir, "hosts"), "127.0.0.1 localhost loop\n"+ociFar+"\tapi\n", 0o644)
	for name, file := range map[string]string{"/etc/hosts": n.hosts, "/etc/resolv.conf": write(t, filepath.Join(dir, "resolv.conf"), servers, 0o644)} {
		n.mounts = append(n.mounts, map[string]any{"destination": name, "source": file, "type": "bind", "options": []string{"rbind", "rprivate"}})
	}
	return n
}

// use puts a bundle into the network.
func (n *ociNetwork) use(c map[string]any) {
	c["mounts"] = n.mounts
	c["linux"].(map[string]any)["namespaces"].([]map[string]string)[1]["path"] = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.own.Fd())
}

// M-7, M-8: the gateway is in the engine's network and knows its names; the agent reaches what the operator's list has there, by the gateway
// only, and names lead to no more than addresses do.
func TestOCINetwork(t *testing.T) {
	e, n := newEngine(t, "agentrun-ring2"), newOCINetwork(t)
	etc := t.TempDir()
	gateway := write(t, filepath.Join(etc, "gateway.yaml"),
		"egress:\n  allow: [web, api, moved, meta, loop, self, later]\n  private: [\""+ociFar+":80\"]\n", 0o600)
	if err := os.Mkdir(filepath.Join(etc, "agentrun"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(etc, "agentrun/config.yaml"), "gateway: "+gateway+"\n", 0o600)
	t.Setenv("XDG_CONFIG_HOME", etc)
	for _, tc := range []struct{ name, command, want string }{
		{"by the engine's resolver", "busybox wget -q -O - http://web/", "hello at " + ociFar + ":80"},
		{"by its hosts file", "busybox wget -q -O - http://api/", "hello at " + ociFar + ":80"},
		{"by its address", "busybox wget -q -O - http://" + ociFar + "/", "hello at " + ociFar + ":80"},
		{"without a proxy", "unset http_proxy; busybox wget -q -O - http://web/", "hello at " + ociFar + ":80"},
		{"a name that isn't listed", "busybox wget -q -O - http://other/", "other:80 (not_listed)"},
		{"a port that isn't listed", "busybox wget -q -O - http://" + ociFar + ":81/", ociFar + ":81 (private_address)"},
		{"a name for an address that isn't listed", "busybox wget -q -O - http://moved/", "moved:80 (private_address)"},
		{"a name for cloud metadata", "busybox wget -q -O - http://meta/", "meta:80 (metadata_address)"},
		{"a name for loopback", "busybox wget -q -O - http://loop/", "loop:80 (own_address)"},
		{"a name for the container itself", "busybox wget -q -O - http://self/", "self:80 (own_address)"},
		{"past the gateway", "unset http_proxy; busybox nc -w 2 " + ociFar + " 81 </dev/null || echo no way", "no way"},
		{"a name that only a later server has", "busybox wget -q -O - http://later/", "502 Bad Gateway"},
		{"another interface", "busybox ip link | busybox grep -c ^[0-9]", "1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := n.visits.Load()
			r := e.oci("run", "--bundle", e.bundle(n.use, "/bin/sh", "-c", tc.command), "box")
			if !strings.Contains(r.stdout+r.stderr, tc.want) {
				t.Errorf("exit %d, %q %q, want %q", r.exit, r.stdout, r.stderr, tc.want)
			}
			if got := n.visits.Load() - before; (got > 0) != strings.HasPrefix(tc.want, "hello") {
				t.Errorf("%d visits", got)
			}
		})
	}
	if asked := n.resolver.Asked(); slices.Contains(asked, "other") || !slices.Contains(asked, "web") {
		t.Errorf("asked for: %v", asked)
	}
	noAgents(t)
}

// Two containers with one network (--network container:X) are two sandboxes: neither reaches the other's loopback.
func TestOCISharedNetwork(t *testing.T) {
	e, n := newEngine(t, "agentrun-ring2"), newOCINetwork(t)
	e.good("create", "--bundle", e.bundle(n.use, "/bin/sh", "-c", "while :; do busybox nc -l -p 8000 -e busybox echo hello; done"), "server")
	t.Cleanup(func() { e.oci("delete", "--force", "server") })
	e.good("start", "server")
	eventually(t, hang(), "it listens", func() bool {
		return strings.Contains(e.oci("exec", "server", "/bin/busybox", "nc", "-w", "2", "127.0.0.1", "8000").stdout, "hello")
	})
	if r := e.oci("run", "--bundle", e.bundle(n.use, "/bin/sh", "-c", "busybox nc -w 2 127.0.0.1 8000 </dev/null; busybox nc -w 2 "+ociOwn+" 8000 </dev/null"), "client"); strings.Contains(r.stdout, "hello") {
		t.Errorf("it reached the other: %s%s", r.stdout, r.stderr)
	}
	// A port that an engine publishes (-p) leads to the container's address. What listens there is in the sandbox, until an operator says that it
	// may be reached.
	reach := func() (text string) {
		_ = n.own.Do(func() error {
			conn, err := net.Dial("tcp", ociOwn+":8000")
			if err == nil {
				b, _ := io.ReadAll(conn)
				text = string(b)
				conn.Close()
			}
			return nil
		})
		return text
	}
	if text := reach(); text != "" {
		t.Errorf("a server was reached from the engine's network: %q", text)
	}
	e.must("port", "publish", "c-server", "8000", "--to", ociOwn+":8000", "--anywhere", "--no-token")
	eventually(t, hang(), "it is reached", func() bool { return reach() == "hello\n" })
	e.must("port", "rm", "c-server", "8000")
	if text := reach(); text != "" {
		t.Errorf("it is reached after that: %q", text)
	}
	e.good("delete", "--force", "server")
	noAgents(t)
}

// A file of names that can't be used is told by name, before anything of the container runs.
func TestOCINamesThatCannotBeRead(t *testing.T) {
	e, n := newEngine(t, "agentrun-ring2"), newOCINetwork(t)
	for _, row := range []struct {
		name, want string
		change     func() error
	}{
		{"missing", "no such file", func() error { return os.Remove(n.hosts) }},
		{"a FIFO", "not a regular file", func() error { return exec.Command("mkfifo", n.hosts).Run() }},
		{"too long", "longer than", func() error {
			return errors.Join(os.Remove(n.hosts), os.WriteFile(n.hosts, make([]byte, 40<<10), 0o600))
		}},
	} {
		if err := row.change(); err != nil {
			t.Fatal(err)
		}
		r := e.oci("run", "--bundle", e.bundle(n.use, "/bin/sh", "-c", "echo ran"), "box")
		if r.exit == 0 || strings.Contains(r.stdout, "ran") || !strings.Contains(r.stderr, "/etc/hosts") || !strings.Contains(r.stderr, row.want) {
			t.Errorf("%s: exit %d %q %q, want %q", row.name, r.exit, r.stdout, r.stderr, row.want)
		}
	}
	noAgents(t)
}

// M-1: a further container that an engine puts into this one's namespaces (docker run --ipc container:X, Podman's pods) goes by its process: the
// run's supervisor, or what holds a pod's place. Neither is in the host's, but for the pid and mount namespaces.
func TestOCINamespacesOfOthers(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	for name, bundle := range map[string]string{"box": e.bundle(nil, "/bin/sleep", "1000"), "pod": e.holder(nil)} {
		e.good("create", "--bundle", bundle, name)
		for _, ns := range []string{"ipc", "uts", "net"} {
			own, err := os.Readlink("/proc/self/ns/" + ns)
			its, errs := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", e.status(name).PID, ns))
			if err != nil || errs != nil || its == own {
				t.Errorf("%s: its %s is the host's, %s (%v, %v)", name, ns, own, err, errs)
			}
		}
		e.good("delete", "--force", name)
	}
	noAgents(t)
}
