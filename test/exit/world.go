// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// World is the outside of one test.
type World struct {
	CA     *CA
	CAFile string // its certificate, readable by everybody
	dir    string

	mu    sync.Mutex
	hosts []*Host
	stop  []func()
}

// New makes a world without hosts. Files go to dir, which is the caller's.
func New(dir string) (*World, error) {
	ca, err := NewCA()
	if err != nil {
		return nil, err
	}
	w := &World{CA: ca, CAFile: filepath.Join(dir, "ca.pem"), dir: dir}
	return w, os.WriteFile(w.CAFile, ca.PEM(), 0o644)
}

// taken counts addresses within this process.
var taken atomic.Uint32

// address is on the loopback and, most likely, nobody's: the pid keeps two runs of the tests apart.
func address() netip.Addr {
	n, pid := taken.Add(1), uint32(os.Getpid())
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>6&63), byte(pid&63<<2 | n>>8&3), byte(n)})
}

// Host is one server with a name.
type Host struct {
	Name string
	Addr netip.Addr

	connections atomic.Int64
	received    atomic.Int64
	mu          sync.Mutex
	visits      []Visit
	hellos      []string
	within      func(func() error) error // nil: here
}

// Visit is one request that has reached a host.
type Visit struct {
	TLS    bool
	SNI    string
	Method string
	Host   string
	URI    string
	Header http.Header
	Body   []byte // its first MiB
}

// Host starts a server for name at ports 80 and 443.
func (w *World) Host(name string, handler http.Handler) (*Host, error) {
	return w.host(&Host{Name: name, Addr: address()}, handler)
}

// HostWithin is a host at an address of its own, whose sockets are made by functions that within runs: on a thread in another
// network namespace.
func (w *World) HostWithin(name string, addr netip.Addr, within func(func() error) error, handler http.Handler) (*Host, error) {
	return w.host(&Host{Name: name, Addr: addr, within: within}, handler)
}

func (w *World) host(h *Host, handler http.Handler) (*Host, error) {
	name := h.Name
	plain, err := w.listen(h, 80)
	if err != nil {
		return nil, err
	}
	secret, err := w.listen(h, 443)
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	cert, err := w.CA.Issue([]string{name}, h.Addr)
	if err != nil {
		return nil, errors.Join(err, plain.Close(), secret.Close())
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.hellos = append(h.hellos, i.ServerName)
		return nil, nil
	}}
	// Two servers: whichever of the two ports were served first would settle for both whether there is HTTP/2.
	for _, serve := range []func(*http.Server) error{
		func(s *http.Server) error { return s.Serve(plain) },
		func(s *http.Server) error { s.TLSConfig = config; return s.ServeTLS(secret, "", "") },
	} {
		server := &http.Server{Handler: h.record(handler), ReadHeaderTimeout: 10 * time.Second, ErrorLog: silent()}
		go func() { _ = serve(server) }()
		w.onClose(func() { _ = server.Close() })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, h)
	return h, nil
}

func (w *World) onClose(stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop = append(w.stop, stop)
}

// silent drops what net/http says about clients that are cut off: here they are, on purpose.
func silent() *log.Logger { return log.New(io.Discard, "", 0) }

// Raw is a host whose connections on port 80 and 443 are handed over as they come. The connection is closed when serve
// returns.
func (w *World) Raw(name string, serve func(net.Conn)) (*Host, error) {
	h := &Host{Name: name, Addr: address()}
	for _, port := range []uint16{80, 443} {
		l, err := w.listen(h, port)
		if err != nil {
			return nil, err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = c.Close() }()
					serve(c)
				}()
			}
		}()
		w.onClose(func() { _ = l.Close() })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, h)
	return h, nil
}

func (w *World) listen(h *Host, port uint16) (net.Listener, error) {
	at := netip.AddrPortFrom(h.Addr, port)
	var l net.Listener
	open := func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", at.String())
		return err
	}
	var err error
	if h.within != nil {
		err = h.within(open)
	} else {
		err = open()
	}
	if err != nil {
		return nil, fmt.Errorf("test host %s: %w", h.Name, err)
	}
	return &counted{l, h}, nil
}

type counted struct {
	net.Listener
	host *Host
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.host.connections.Add(1)
	return &counting{c, l.host}, nil
}

type counting struct {
	net.Conn
	host *Host
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.host.received.Add(int64(n))
	return n, err
}

const maxBody = 1 << 20

// record keeps a request before it is answered. The body is read first and given to the handler again.
func (h *Host) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		v := Visit{TLS: r.TLS != nil, Method: r.Method, Host: r.Host, URI: r.RequestURI, Header: r.Header.Clone()}
		if r.TLS != nil {
			v.SNI = r.TLS.ServerName
		}
		kept := &keeping{ReadCloser: r.Body}
		r.Body = kept
		h.mu.Lock()
		h.visits = append(h.visits, v)
		at := len(h.visits) - 1
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if at < len(h.visits) {
				h.visits[at].Body = kept.b
			}
		}()
		next.ServeHTTP(rw, r)
	})
}

type keeping struct {
	io.ReadCloser
	b []byte
}

func (k *keeping) Read(b []byte) (int, error) {
	n, err := k.ReadCloser.Read(b)
	k.b = append(k.b, b[:min(n, maxBody-len(k.b))]...)
	return n, err
}

// Visits are the requests that have come so far.
func (h *Host) Visits() []Visit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.visits)
}

// Hellos are the names in the TLS hellos that have come so far.
func (h *Host) Hellos() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.hellos)
}

// Connections is how many have been accepted, whatever became of them.
func (h *Host) Connections() int64 { return h.connections.Load() }

// Received is how many bytes have come.
func (h *Host) Received() int64 { return h.received.Load() }

// Hosts maps names to addresses, as a resolver would.
func (w *World) Hosts() map[string][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := map[string][]string{}
	for _, h := range w.hosts {
		m[h.Name] = append(m[h.Name], h.Addr.String())
	}
	return m
}

// Private lists the addresses as networks of one address, for those who must name private addresses singly.
func (w *World) Private() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, h := range w.hosts {
		all = append(all, netip.PrefixFrom(h.Addr, h.Addr.BitLen()).String())
	}
	return all
}

// HostsFile is the world as the text of /etc/hosts.
func (w *World) HostsFile() string {
	text := "127.0.0.1 localhost\n"
	for name, addrs := range w.Hosts() {
		for _, a := range addrs {
			text += a + " " + name + "\n"
		}
	}
	return text
}

// Close ends every server with its connections.
func (w *World) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, stop := range w.stop {
		stop()
	}
	w.stop = nil
}
