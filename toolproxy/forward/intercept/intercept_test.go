// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"agentrun/toolproxy/forward/runca"
	"agentrun/toolproxy/link"
)

func TestM8Certificates(t *testing.T) {
	at := time.Now()
	now := func() time.Time { return at }
	ca, _, err := runca.NewCA("run_1", now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(ca, now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	root, err := x509.ParseCertificate(ca.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(root)
	for _, name := range []string{"a.example", "93.184.216.34", "2606:2800::1"} {
		c, err := m.Certificate(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: at}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: "b.example", Roots: roots, CurrentTime: at}); err == nil || c.Leaf.IsCA {
			t.Errorf("%s: also good for b.example, or to sign", name)
		}
		if again, err := m.Certificate(name); err != nil || again != c {
			t.Errorf("%s: made twice, or %v", name, err)
		}
	}
	c, _ := m.Certificate("a.example")
	at = at.Add(valid)
	if again, err := m.Certificate("a.example"); err != nil || again == c || !again.Leaf.NotAfter.After(at) {
		t.Errorf("not renewed, or %v", err)
	}
	for i := range MaxNames + 10 {
		if _, err := m.Certificate(fmt.Sprintf("n%d.example", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.known) > MaxNames {
		t.Errorf("got %d certificates kept, want at most %d", len(m.known), MaxNames)
	}
}

func TestM8NoCANoCertificate(t *testing.T) {
	if _, err := New(link.CA{}, time.Now); err == nil {
		t.Error("a minter without a CA")
	}
	one, _, err := runca.NewCA("run_1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := runca.NewCA("run_2", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(link.CA{Certificate: one.Certificate, Key: two.Key}, time.Now); err == nil {
		t.Error("a key of another run's CA")
	}
	for _, m := range []*Minter{nil, {}} {
		if _, err := m.Certificate("a.example"); err == nil {
			t.Error("the zero value made a certificate")
		}
	}
}

// A clock that jumps gives certificates that are refused, never ones that outlive the run's CA.
func TestM8CertificatesFollowTheClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := start
	now := func() time.Time { return at }
	ca, pem, err := runca.NewCA("run_1", now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(ca, now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	for _, c := range []struct {
		name  string
		jump  time.Duration
		valid bool
	}{
		{"at the start", 0, true},
		{"in an hour", time.Hour, true},
		{"back again", 0, true},
		{"tomorrow", 25 * time.Hour, true},
		{"back again from there", 0, true},
		{"two days before the run", -48 * time.Hour, false},
		{"in the CA's last hour", runca.MaxAge - time.Minute, true},
		{"after the CA", runca.MaxAge + time.Minute, false},
		{"in a hundred years", 100 * 365 * 24 * time.Hour, false},
		{"back once more", time.Minute, true},
	} {
		at = start.Add(c.jump)
		cert, err := m.Certificate("a.example")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		_, err = cert.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example", Roots: roots, CurrentTime: at})
		if (err == nil) != c.valid || cert.Leaf.NotAfter.After(start.Add(runca.MaxAge)) {
			t.Errorf("%s: valid to %v: %v", c.name, cert.Leaf.NotAfter, err)
		}
	}
}
