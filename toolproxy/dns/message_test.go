// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"agentrun/internal/pace"
)

func responder(t testing.TB, c Config) *Responder {
	t.Helper()
	r := New(c)
	r.pace = pace.New(1_000_000, burst)
	return r
}

// sum is how many refusals there were.
func (r *refusals) sum() (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.known {
		n += one
	}
	return n
}

func only(names ...string) func(string) bool {
	return func(name string) bool {
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
}

// query is what a resolver sends. edit changes the message before it is packed.
func query(t testing.TB, name string, qtype dnsmessage.Type, edit ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0xbeef, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: qtype, Class: dnsmessage.ClassINET}},
	}
	for _, e := range edit {
		e(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func opt(options ...dnsmessage.Option) dnsmessage.Resource {
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(4096, 0, true); err != nil {
		panic(err)
	}
	return dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{Options: options}}
}

func withOPT(options ...dnsmessage.Option) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(options...)} }
}

func unpack(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("answer % x: %v", b, err)
	}
	return m
}

func addresses(m dnsmessage.Message) string {
	var s []string
	for _, a := range m.Answers {
		switch body := a.Body.(type) {
		case *dnsmessage.AResource:
			s = append(s, netip.AddrFrom4(body.A).String())
		case *dnsmessage.AAAAResource:
			s = append(s, netip.AddrFrom16(body.AAAA).String())
		default:
			s = append(s, a.GoString())
		}
	}
	return strings.Join(s, " ")
}

// M-8: one row for each line of the package comment's table.
func TestM8Answers(t *testing.T) {
	r := responder(t, Config{Allow: only("a.test", "b.test", "_x.a-1.test")})
	r.names.max = 3
	const A, AAAA = dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, tt := range []struct {
		name, question string
		qtype          dnsmessage.Type
		edit           func(*dnsmessage.Message)
		code           dnsmessage.RCode
		want           string
	}{
		{"first name", "a.test.", A, nil, dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"its IPv6", "a.test.", AAAA, nil, dnsmessage.RCodeSuccess, "fd61:6772:756e::100"},
		{"IPv6 first", "b.test.", AAAA, nil, dnsmessage.RCodeSuccess, "fd61:6772:756e::101"},
		{"then IPv4", "b.test.", A, nil, dnsmessage.RCodeSuccess, "198.18.1.1"},
		{"in capitals", "A.TEST.", A, nil, dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"as some resolvers mix", "_X.a-1.TeSt.", A, nil, dnsmessage.RCodeSuccess, "198.18.1.2"},
		{"HTTPS of an allowed name", "a.test.", dnsmessage.TypeHTTPS, nil, dnsmessage.RCodeSuccess, ""},
		{"TXT of an allowed name", "a.test.", dnsmessage.TypeTXT, nil, dnsmessage.RCodeSuccess, ""},
		{"unknown type", "a.test.", 65280, nil, dnsmessage.RCodeSuccess, ""},
		{"another name", "c.test.", A, nil, dnsmessage.RCodeNameError, ""},
		{"TXT of another name", "secret.c.test.", dnsmessage.TypeTXT, nil, dnsmessage.RCodeNameError, ""},
		{"below an allowed name", "x.a.test.", A, nil, dnsmessage.RCodeNameError, ""},
		{"localhost", "localhost.", A, nil, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"its IPv6", "LOCALHOST.", AAAA, nil, dnsmessage.RCodeSuccess, "::1"},
		{"below localhost", "app.localhost.", A, nil, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"TXT of localhost", "localhost.", dnsmessage.TypeTXT, nil, dnsmessage.RCodeSuccess, ""},
		{"not below localhost", "notlocalhost.", A, nil, dnsmessage.RCodeNameError, ""},
		{"localhost elsewhere", "localhost.test.", A, nil, dnsmessage.RCodeNameError, ""},
		{"reverse", "0.1.18.198.in-addr.arpa.", dnsmessage.TypePTR, nil, dnsmessage.RCodeNameError, ""},
		{"root", ".", A, nil, dnsmessage.RCodeNameError, ""},
		{"NUL", "a.test\x00.", A, nil, dnsmessage.RCodeNameError, ""},
		{"space", "a.test .", A, nil, dnsmessage.RCodeNameError, ""},
		{"not ASCII", "ä.test.", A, nil, dnsmessage.RCodeNameError, ""},
		{"Kelvin sign, k in lower case", "\u212a.test.", A, nil, dnsmessage.RCodeNameError, ""},
		{"ANY", "a.test.", dnsmessage.TypeALL, nil, dnsmessage.RCodeNotImplemented, ""},
		{"ANY of another name", "c.test.", dnsmessage.TypeALL, nil, dnsmessage.RCodeNotImplemented, ""},
		{"AXFR", "a.test.", dnsmessage.TypeAXFR, nil, dnsmessage.RCodeNotImplemented, ""},
		{"type 0", "a.test.", 0, nil, dnsmessage.RCodeNotImplemented, ""},
		{"OPT as a question", "a.test.", dnsmessage.TypeOPT, nil, dnsmessage.RCodeFormatError, ""},
		{"class CHAOS", "version.bind.", dnsmessage.TypeTXT, func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }, dnsmessage.RCodeRefused, ""},
		{"class ANY", "a.test.", A, func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassANY }, dnsmessage.RCodeRefused, ""},
		{"UPDATE", "a.test.", A, func(m *dnsmessage.Message) { m.OpCode = 5 }, dnsmessage.RCodeNotImplemented, ""},
		{"truncated flag", "a.test.", A, func(m *dnsmessage.Message) { m.Truncated = true }, dnsmessage.RCodeFormatError, ""},
		{"two questions", "a.test.", A, func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }, dnsmessage.RCodeFormatError, ""},
		{"no question", "a.test.", A, func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError, ""},
		{"an answer in the query", "a.test.", A, func(m *dnsmessage.Message) { m.Answers = []dnsmessage.Resource{opt()} }, dnsmessage.RCodeFormatError, ""},
		{"an authority", "a.test.", A, func(m *dnsmessage.Message) { m.Authorities = []dnsmessage.Resource{opt()} }, dnsmessage.RCodeFormatError, ""},
		{"two OPT", "a.test.", A, func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(), opt()} }, dnsmessage.RCodeFormatError, ""},
		{"not OPT", "a.test.", A, func(m *dnsmessage.Message) {
			m.Additionals = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: 1}, Body: &dnsmessage.AResource{}}}
		}, dnsmessage.RCodeFormatError, ""},
		{"OPT of a name", "a.test.", A, func(m *dnsmessage.Message) {
			o := opt()
			o.Header.Name = dnsmessage.MustNewName("x.")
			m.Additionals = []dnsmessage.Resource{o}
		}, dnsmessage.RCodeFormatError, ""},
		{"EDNS", "a.test.", A, withOPT(), dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"EDNS with a cookie", "a.test.", A, withOPT(dnsmessage.Option{Code: 10, Data: []byte("12345678")}), dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"EDNS padded to the limit", "a.test.", A, withOPT(dnsmessage.Option{Code: 12, Data: make([]byte, maxMessage-12-12-11-4)}), dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"and above", "a.test.", A, withOPT(dnsmessage.Option{Code: 12, Data: make([]byte, maxMessage-12-12-11-4+1)}), dnsmessage.RCodeFormatError, ""},
		{"EDNS version 1", "a.test.", A, func(m *dnsmessage.Message) {
			o := opt()
			o.Header.TTL |= 1 << 16
			m.Additionals = []dnsmessage.Resource{o}
		}, badVersion, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var edits []func(*dnsmessage.Message)
			if tt.edit != nil {
				edits = append(edits, tt.edit)
			}
			q := query(t, tt.question, tt.qtype, edits...)
			m := unpack(t, r.reply(nil, q))
			code := m.RCode
			if len(m.Additionals) == 1 {
				code = m.Additionals[0].Header.ExtendedRCode(code)
			}
			if got := addresses(m); code != tt.code || got != tt.want {
				t.Errorf("got %v %q, want %v %q", code, got, tt.code, tt.want)
			}
			if !m.Response || m.ID != 0xbeef || !m.RecursionDesired || !m.RecursionAvailable || m.Truncated {
				t.Errorf("header %+v", m.Header)
			}
			if code != dnsmessage.RCodeFormatError && m.OpCode == 0 {
				if len(m.Questions) != 1 || m.Questions[0].Name.String() != tt.question {
					t.Errorf("question in the answer: %v, want %q in the asker's own capitals", m.Questions, tt.question)
				}
				if asked := q[11] == 1; (len(m.Additionals) == 1) != asked {
					t.Errorf("%d OPT in the answer, asked with EDNS: %v", len(m.Additionals), asked)
				}
			}
		})
	}
}

// Bytes that no library would pack.
func TestM8HostileMessages(t *testing.T) {
	good := query(t, "a.test.", dnsmessage.TypeA)
	header := good[:headerSize]
	question := func(name string) []byte { return append(append(bytes.Clone(header), name...), 0, 1, 0, 1) }
	with := func(b []byte, at int, v byte) []byte { b = bytes.Clone(b); b[at] = v; return b }
	long := strings.Repeat("\x3f"+strings.Repeat("x", 63), 3)
	const none = dnsmessage.RCode(0xff) // no answer at all
	for _, tt := range []struct {
		name string
		msg  []byte
		want dnsmessage.RCode
	}{
		{"nothing", nil, none},
		{"half a header", good[:11], none},
		{"a response", with(good, 2, 0x80), none},
		{"header only", header, dnsmessage.RCodeFormatError},
		{"cut in the name", good[:15], dnsmessage.RCodeFormatError},
		{"cut in the class", good[:len(good)-1], dnsmessage.RCodeFormatError},
		{"a byte too many", append(bytes.Clone(good), 0), dnsmessage.RCodeFormatError},
		{"a name pointing to itself", question("\xc0\x0c"), dnsmessage.RCodeFormatError},
		{"pointing forward", question("\xc0\x10\x00\x00"), dnsmessage.RCodeFormatError},
		{"pointing into the header", question("\x01a\xc0\x05"), dnsmessage.RCodeFormatError},
		{"two pointers, a loop", question("\xc0\x0e\xc0\x0c"), dnsmessage.RCodeFormatError},
		{"reserved label type 0x40", question("\x41a\x00"), dnsmessage.RCodeFormatError},
		{"reserved label type 0x80", question("\x81a\x00"), dnsmessage.RCodeFormatError},
		{"a dot in a label", question("\x06a.test\x00"), dnsmessage.RCodeFormatError},
		{"255 bytes of name", question(long + "\x3d" + strings.Repeat("x", 61) + "\x00"), dnsmessage.RCodeNameError},
		{"256", question(long + "\x3e" + strings.Repeat("x", 62) + "\x00"), dnsmessage.RCodeFormatError},
		{"65535 questions", with(with(good, 4, 0xff), 5, 0xff), dnsmessage.RCodeFormatError},
		{"65535 additionals", with(with(good, 10, 0xff), 11, 0xff), dnsmessage.RCodeFormatError},
		{"an additional that isn't there", with(good, 11, 1), dnsmessage.RCodeFormatError},
		{"OPT whose length lies", append(with(good, 11, 1), 0, 0, 41, 4, 0, 0, 0, 0, 0, 0xff, 0xff), dnsmessage.RCodeFormatError},
		{"an option whose length lies", append(with(good, 11, 1), 0, 0, 41, 4, 0, 0, 0, 0, 0, 0, 4, 0, 10, 0xff, 0xff), dnsmessage.RCodeFormatError},
		{"compressed root of OPT", append(with(good, 11, 1), 0xc0, 19, 0, 41, 4, 0, 0, 0, 0, 0, 0, 0), dnsmessage.RCodeFormatError},
		{"64 KiB", make([]byte, 1<<16), dnsmessage.RCodeFormatError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := false
			r := responder(t, Config{Allow: func(string) bool { asked = true; return false }})
			out := r.reply(nil, tt.msg)
			if len(out) == 0 {
				if tt.want != none {
					t.Errorf("no answer, want %v", tt.want)
				}
			} else if m := unpack(t, out); m.RCode != tt.want {
				t.Errorf("got %v, want %v", m.RCode, tt.want)
			}
			if asked != (tt.want == dnsmessage.RCodeNameError) {
				t.Errorf("policy asked: %v", asked)
			}
			if n := r.refused.sum(); n != 1 {
				t.Errorf("refused %d times, want once", n)
			}
		})
	}
}

// The policy sees names in one form, whatever was sent.
func TestM8NamesReachPolicyNormalised(t *testing.T) {
	var seen []string
	r := responder(t, Config{Allow: func(n string) bool { seen = append(seen, n); return false }})
	for _, name := range []string{"EXAMPLE.test.", "a_b-c.test."} {
		r.reply(nil, query(t, name, dnsmessage.TypeA))
	}
	if got, want := strings.Join(seen, " "), "example.test a_b-c.test"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A responder made without a policy has no names.
func TestZeroConfigRefuses(t *testing.T) {
	r := responder(t, Config{})
	if m := unpack(t, r.reply(nil, query(t, "a.test.", dnsmessage.TypeA))); m.RCode != dnsmessage.RCodeNameError {
		t.Errorf("got %v, want %v", m.RCode, dnsmessage.RCodeNameError)
	}
	if names > maxNames {
		t.Errorf("%d names: there are addresses for %d", names, maxNames)
	}
}

// Exactly one of answer and silence; an answer is well-formed, to this query, hardly longer than it,
// and has an address only for an allowed name.
func FuzzReply(f *testing.F) {
	f.Add(query(f, "a.test.", dnsmessage.TypeA))
	f.Add(query(f, "A.test.", dnsmessage.TypeAAAA, withOPT(dnsmessage.Option{Code: 10, Data: []byte("12345678")})))
	f.Add(query(f, "secret.test.", dnsmessage.TypeTXT))
	f.Add(query(f, "a.test.", dnsmessage.TypeALL, func(m *dnsmessage.Message) { m.OpCode = 4 }))
	f.Add(append(query(f, "a.test.", dnsmessage.TypeA)[:12], 0xc0, 12, 0, 1, 0, 1))
	r := responder(f, Config{Allow: func(name string) bool { return strings.HasPrefix(name, "a") }})
	f.Fuzz(func(t *testing.T, msg []byte) {
		in := bytes.Clone(msg)
		prefix := []byte("ln")
		out := r.reply(prefix, msg)
		if !bytes.Equal(in, msg) || !bytes.HasPrefix(out, prefix) {
			t.Fatal("the query or what stood before the answer was changed")
		}
		if out = out[2:]; len(out) == 0 {
			return
		}
		m := unpack(t, out)
		if len(out) > len(msg)+28 || len(out) > 310 {
			t.Errorf("answer of %d bytes to %d", len(out), len(msg))
		}
		if !m.Response || m.ID != binary.BigEndian.Uint16(msg) || len(m.Answers) > 1 || len(m.Authorities) > 0 {
			t.Errorf("answer %+v", m)
		}
		for _, a := range m.Answers {
			name := strings.ToLower(strings.TrimSuffix(m.Questions[0].Name.String(), "."))
			if a.Header.Name != m.Questions[0].Name || !strings.HasPrefix(name, "a") {
				t.Errorf("an address for %q", name)
			}
			addr, err := netip.ParseAddr(addresses(m))
			if back, ok := r.Name(addr); err != nil || !Synthetic(addr) || !ok || back != name {
				t.Errorf("%v stands for %q, want %q", addr, back, name)
			}
		}
	})
}

func BenchmarkReply(b *testing.B) {
	for _, bb := range []struct{ name, question string }{{"allowed", "a.test."}, {"refused", "b.test."}} {
		b.Run(bb.name, func(b *testing.B) {
			r := responder(b, Config{Allow: only("a.test")})
			q := query(b, bb.question, dnsmessage.TypeA, withOPT())
			out := make([]byte, 0, maxMessage)
			b.ReportAllocs()
			for b.Loop() {
				r.reply(out, q)
			}
		})
	}
}
