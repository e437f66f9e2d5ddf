// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// lookup asks the proxy's responder over UDP.
func (w *world) lookup(t *testing.T, name string) (netip.Addr, dnsmessage.RCode) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = w.ServeDNS(server) }()
	c, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 1}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	raw, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(raw); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	if len(m.Answers) == 0 {
		return netip.Addr{}, m.RCode
	}
	return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A), m.RCode
}

// elsewhere is a connection that says it was made to another address, as a captured one does.
type elsewhere struct {
	*net.TCPConn
	local net.Addr
}

func (e elsewhere) LocalAddr() net.Addr { return e.local }

type elsewhereListener struct {
	net.Listener
	local net.Addr
}

func (l elsewhereListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return elsewhere{c.(*net.TCPConn), l.local}, nil
}

func (w *world) captured(t *testing.T, to string) net.Conn {
	t.Helper()
	l := listen(t)
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to))
	go func() { _ = w.ServeCapture(elsewhereListener{l, at}) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestM8Capture(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example", "allowed.example:22", "8.8.8.8:80"))
	w.web(t, 80, hello)
	w.echo(t, 22)
	roots := w.tlsSite(t, 443, hello)
	addr, _ := w.lookup(t, "allowed.example")
	if !addr.IsValid() {
		t.Fatal("no address for an allowed name")
	}
	if got, code := w.lookup(t, "evil.example"); got.IsValid() || code != dnsmessage.RCodeNameError {
		t.Errorf("got %v, %v, want NXDOMAIN", got, code)
	}
	w.sup.await(t, func(r link.Record) bool { return r.Kind == "dns" && r.Name == "evil.example" && !r.Allowed })

	for request, want := range map[string]string{
		"GET /x HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                       "",
		"GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n":                          "name_mismatch",
		"GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n":     "name_mismatch",
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n":    "bad_method",
		"GET /x HTTP/1.1\r\nHost: allowed.example\r\nHost: evil.example\r\n\r\n": "bad_message",
	} {
		c := w.captured(t, addr.String()+":80")
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if resp, body := response(t, bufio.NewReader(c), "GET"); resp.Header.Get("X-Agentrun-Reason") != want {
			t.Errorf("%q: got %v %q, want %s", request, resp.Header, body, want)
		}
	}

	_, err := clientTLS(t, w.captured(t, addr.String()+":443"), "allowed.example", roots)
	if err == nil || !strings.Contains(err.Error(), "certificate is valid for") {
		t.Errorf("got %v, want the server's certificate", err)
	}
	_, err = clientTLS(t, w.captured(t, addr.String()+":443"), "evil.example", roots)
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("got %v, want an alert", err)
	}
	for _, to := range []string{"1.1.1.1:443", "169.254.169.254:443"} {
		if _, err = clientTLS(t, w.captured(t, to), "allowed.example", roots); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("%s: got %v, want an alert", to, err)
		}
	}
	c := w.captured(t, addr.String()+":22")
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Errorf("operator's port: %v", err)
	}
	for to, want := range map[string]string{"198.18.9.9:80": "bad_name", "1.1.1.1:80": "not_listed", "169.254.169.254:80": "metadata_address", "192.0.0.8:80": "private_address"} {
		resp, body := response(t, bufio.NewReader(w.captured(t, to)), "GET")
		wantDenied(t, resp, body, 403, want)
	}
}
