// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"
)

func vec(lengthBytes int, parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	length := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	return append(length[4-lengthBytes:], body...)
}

func ext(kind uint16, data []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), vec(2, data)...)
}

func sni(name string) []byte { return ext(0, vec(2, []byte{0}, vec(2, []byte(name)))) }

func body(extensions ...[]byte) []byte {
	b := append([]byte{3, 3}, make([]byte, 32)...)
	b = append(b, vec(1, make([]byte, 32))...)
	b = append(b, vec(2, []byte{0x1a, 0x1a, 0x13, 0x01})...) // GREASE and one suite
	b = append(b, vec(1, []byte{0})...)
	return append(b, vec(2, extensions...)...)
}

func message(body []byte) []byte { return append([]byte{1}, vec(3, body)...) }

// records spreads a message over records of at most size bytes.
func records(message []byte, size int) (b []byte) {
	for len(message) > 0 {
		n := min(size, len(message))
		b = append(b, 22, 3, 1)
		b = append(b, vec(2, message[:n])...)
		message = message[n:]
	}
	return b
}

func hello(extensions ...[]byte) []byte { return records(message(body(extensions...)), 1<<14) }

func TestM8HelloName(t *testing.T) {
	grease := [][]byte{ext(0x1a1a, nil), ext(0xfafa, []byte{0})}
	for name, c := range map[string]struct {
		raw    []byte
		want   string
		hidden bool
	}{
		"plain":               {hello(sni("example.com")), "example.com", false},
		"capitals and dot":    {hello(sni("Example.COM.")), "example.com", false},
		"GREASE around":       {hello(grease[0], sni("example.com"), grease[1]), "example.com", false},
		"no name":             {hello(ext(10, []byte{0, 2, 0, 29})), "", false},
		"no extensions":       {records(message(body()[:len(body())-2]), 1<<14), "", false},
		"empty extensions":    {hello(), "", false},
		"outer name of ECH":   {hello(sni("public.example"), ext(0xfe0d, []byte{0, 1, 2})), "public.example", true},
		"ESNI":                {hello(ext(0xffce, []byte{1})), "", true},
		"many small records":  {records(message(body(sni("example.com"))), 8), "example.com", false},
		"records of 5 bytes":  {records(message(body(sni("a.example"))), 5), "a.example", false},
		"early data after it": {append(hello(sni("example.com")), 23, 3, 3, 0, 1, 0), "example.com", false},
		"name after padding":  {hello(ext(21, make([]byte, 10000)), sni("example.com")), "example.com", false},
	} {
		h, err := ParseClientHello(c.raw)
		if err != nil || h.Name.String() != c.want || h.Hidden != c.hidden {
			t.Errorf("%s: %+v, %v, want %q", name, h, err, c.want)
			continue
		}
		if name != "early data after it" && h.Len != len(c.raw) {
			t.Errorf("%s: %d bytes of %d", name, h.Len, len(c.raw))
		}
		for n := range h.Len {
			if _, err := ParseClientHello(c.raw[:n]); !errors.Is(err, ErrShort) {
				t.Fatalf("%s: %d of %d bytes: %v, want ErrShort", name, n, h.Len, err)
			}
		}
	}
}

func TestM8HelloRefused(t *testing.T) {
	good := body(sni("example.com"))
	two := ext(0, vec(2, []byte{0}, vec(2, []byte("a.example")), []byte{0}, vec(2, []byte("b.example"))))
	var crowd [][]byte
	for i := range maxExtensions + 1 {
		crowd = append(crowd, ext(uint16(1000+i), nil))
	}
	tooLong := append([]byte{22, 3, 1, 0x40, 0}, 1, 0, 0x40, 0)
	wrongSession := append(append([]byte{3, 3}, make([]byte, 32)...), vec(1, make([]byte, 33))...)
	wrongSession = append(wrongSession, good[2+32+33:]...)
	for name, raw := range map[string][]byte{
		"HTTP":                       []byte("GET / HTTP/1.1\r\n"),
		"SSH":                        []byte("SSH-2.0-x\r\n"),
		"SSLv2":                      {0x80, 0x2e, 1, 3, 1},
		"one wrong byte":             {0},
		"alert":                      {21, 3, 1, 0, 2, 1, 0},
		"SSLv3 record":               {22, 3, 0, 0, 1, 1},
		"version 4":                  {22, 4},
		"empty record":               {22, 3, 1, 0, 0},
		"oversized record":           {22, 3, 1, 0x40, 1},
		"another message":            {22, 3, 1, 0, 4, 2},
		"too long":                   tooLong,
		"more in the record":         append([]byte{22, 3, 1}, vec(2, message(good), []byte{1})...),
		"two hellos in one record":   append([]byte{22, 3, 1}, vec(2, message(good), message(good))...),
		"another record between":     append(append([]byte{22, 3, 1, 0, 2, 1, 0}, 20, 3, 1, 0, 1, 1), 22, 3, 1, 0, 1, 0),
		"empty record between":       append([]byte{22, 3, 1, 0, 2, 1, 0}, 22, 3, 1, 0, 0),
		"records of one byte":        records(message(good), 1),
		"empty message":              records(message(nil), 100),
		"cut inside":                 records(message(good[:20]), 100),
		"old version":                records(message(append([]byte{3, 0}, good[2:]...)), 1<<14),
		"TLS 1.3 as legacy version":  records(message(append([]byte{3, 4}, good[2:]...)), 1<<14),
		"long session id":            records(message(wrongSession), 1<<14),
		"data after the extensions":  records(message(append(bytes.Clone(good), 0)), 1<<14),
		"one byte where two":         records(message(good[:len(body())-1]), 1<<14),
		"extension longer than all":  hello([]byte{0, 0, 0xff, 0xff, 0}),
		"half an extension":          hello([]byte{0, 0, 0}),
		"name twice":                 hello(sni("a.example"), sni("b.example")),
		"same name twice":            hello(sni("a.example"), sni("a.example")),
		"extension twice":            hello(ext(16, nil), ext(16, nil)),
		"two names":                  hello(two),
		"name of another type":       hello(ext(0, vec(2, []byte{1}, vec(2, []byte("a.example"))))),
		"empty name":                 hello(sni("")),
		"empty list":                 hello(ext(0, vec(2))),
		"no list":                    hello(ext(0, nil)),
		"data after the list":        hello(ext(0, append(vec(2, []byte{0}, vec(2, []byte("a.example"))), 0))),
		"list shorter than its name": hello(ext(0, []byte{0, 4, 0, 0, 9, 'a'})),
		"too many extensions":        hello(crowd...),
		"address":                    hello(sni("127.0.0.1")),
		"IPv6":                       hello(sni("::1")),
		"decimal address":            hello(sni("2130706433")),
		"NUL":                        hello(sni("example.com\x00.evil.example")),
		"CRLF":                       hello(sni("example.com\r\n")),
		"with port":                  hello(sni("example.com:443")),
		"star":                       hello(sni("*.example.com")),
		"Unicode":                    hello(sni("bücher.example")),
		"long name":                  hello(sni(string(bytes.Repeat([]byte("a."), 5000)) + "a")),
	} {
		h, err := ParseClientHello(raw)
		if err == nil || errors.Is(err, ErrShort) {
			t.Errorf("%s: %+v, %v, want it refused", name, h, err)
			continue
		}
		if r := refusal(t, err); r.Sub != BadClientHello && r.Sub != BadName || h != (Hello{}) {
			t.Errorf("%s: %+v, %s", name, h, r.Sub)
		}
	}
}

// The most that one may have to read before an answer other than ErrShort is what the constant says.
func TestM8HelloIsBounded(t *testing.T) {
	raw := records(message(make([]byte, maxHello-messageHeader)), maxHello/maxRecords)
	if len(raw) != MaxHelloBytes {
		t.Fatalf("longest hello has %d bytes, the constant says %d", len(raw), MaxHelloBytes)
	}
	if _, err := ParseClientHello(raw); err == nil || errors.Is(err, ErrShort) {
		t.Errorf("got %v", err)
	}
	if _, err := ParseClientHello(raw[:len(raw)-1]); !errors.Is(err, ErrShort) {
		t.Errorf("got %v, want ErrShort", err)
	}
}

// realHello is what crypto/tls sends.
func realHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() { _ = tls.Client(client, config).Handshake() }()
	if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var raw []byte
	buf := make([]byte, 4096)
	for {
		n, err := server.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		raw = append(raw, buf[:n]...)
		if _, err := ParseClientHello(raw); !errors.Is(err, ErrShort) {
			return raw
		}
	}
}

func TestM8HelloOfCryptoTLS(t *testing.T) {
	for name, config := range map[string]*tls.Config{
		"1.3": {ServerName: "Real.Example"}, "1.2": {ServerName: "real.example", MaxVersion: tls.VersionTLS12}, "h2": {ServerName: "real.example", NextProtos: []string{"h2", "http/1.1"}},
	} {
		h, err := ParseClientHello(realHello(t, config))
		if err != nil || h.Name.String() != "real.example" || h.Hidden {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	h, err := ParseClientHello(realHello(t, &tls.Config{ServerName: "127.0.0.1"}))
	if err != nil || !h.Name.IsZero() {
		t.Errorf("address: %+v, %v", h, err)
	}
}

func FuzzClientHello(f *testing.F) {
	f.Add(hello(sni("example.com")))
	f.Add(hello(sni("a.example"), sni("b.example")))
	f.Add(records(message(body(sni("a.example"))), 9))
	f.Add(realHello(f, &tls.Config{ServerName: "real.example"}))
	f.Add(hello(sni("public.example"), ext(0xfe0d, []byte{0})))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		before := bytes.Clone(unsafe)
		h, err := ParseClientHello(unsafe)
		if !bytes.Equal(before, unsafe) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if h != (Hello{}) {
				t.Fatalf("%+v with %v", h, err)
			}
			if errors.Is(err, ErrShort) {
				if len(unsafe) >= MaxHelloBytes {
					t.Fatalf("%d bytes are short", len(unsafe))
				}
				return
			}
			// What is refused stays so, whatever follows.
			if _, again := ParseClientHello(append(before, 22, 3, 1, 0, 1, 1)); again == nil {
				t.Fatalf("%v, and then accepted", err)
			}
			return
		}
		if h.Len > len(unsafe) || h.Len > MaxHelloBytes {
			t.Fatalf("%+v of %d bytes", h, len(unsafe))
		}
		if again, err := ParseClientHello(unsafe[:h.Len]); err != nil || again != h {
			t.Fatalf("%+v, alone %+v, %v", h, again, err)
		}
		if !h.Name.IsZero() {
			checkHost(t, h.Name.String())
		}
	})
}

func TestM8NamesAgree(t *testing.T) {
	a, b := mustTarget(t, "a.example:443"), mustTarget(t, "b.example:443")
	ip := mustTarget(t, "8.8.8.8:443")
	for name, c := range map[string]struct {
		claims Claims
		want   Reason
	}{
		"nothing":               {Claims{}, BadName},
		"authority alone":       {Claims{Authority: a}, ""},
		"SNI alone":             {Claims{SNI: a.Host()}, ""},
		"Host alone":            {Claims{Host: a}, ""},
		"all equal":             {Claims{Authority: a, SNI: a.Host(), Host: a}, ""},
		"spelled otherwise":     {Claims{Authority: a, SNI: mustHost(t, "A.Example."), Host: mustTarget(t, "A.EXAMPLE.:443")}, ""},
		"SNI differs":           {Claims{Authority: a, SNI: b.Host()}, NameMismatch},
		"Host differs":          {Claims{Authority: a, SNI: a.Host(), Host: b}, NameMismatch},
		"Host differs from SNI": {Claims{SNI: a.Host(), Host: b}, NameMismatch},
		"port differs":          {Claims{Authority: a, Host: mustTarget(t, "a.example:8443")}, NameMismatch},
		"SNI below":             {Claims{Authority: a, SNI: mustHost(t, "x.a.example")}, NameMismatch},
		"address with SNI":      {Claims{Authority: ip, SNI: a.Host()}, NameMismatch},
		"address with Host":     {Claims{Authority: ip, Host: a}, NameMismatch},
		"addresses":             {Claims{Authority: ip, Host: ip}, ""},
		"hidden":                {Claims{Authority: a, SNI: a.Host(), Hidden: true}, HiddenName},
		"hidden, all allowed":   {Claims{Authority: a, SNI: a.Host(), Hidden: true, Everything: true}, ""},
		"mismatch, all allowed": {Claims{Authority: a, SNI: b.Host(), Everything: true}, NameMismatch},
	} {
		if d := Agree(c.claims); d.Sub != c.want || d.Allowed() != (c.want == "") {
			t.Errorf("%s: %+v, want %q", name, d, c.want)
		}
	}
}

func BenchmarkParseClientHello(b *testing.B) {
	raw := realHello(b, &tls.Config{ServerName: "real.example"})
	split := records(message(body(sni("real.example"), ext(21, make([]byte, 1500)))), 200)
	for name, in := range map[string][]byte{"one record": raw, "nine records": split} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseClientHello(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
