// SPDX-License-Identifier: Apache-2.0

// Package intercept mints the certificates of connections that the egress proxy answers itself (M-8).
//
// What it guarantees: a certificate names one host, is signed by the run's CA, is valid for a day, and serves
// nothing but TLS servers. All leaves of a run share one key, which never leaves the process; a certificate
// costs one signature and is kept, at most MaxNames of them.
//
//	m, err := intercept.New(start.CA, time.Now)
//	cert, err := m.Certificate("api.example.com")
//
// It decides nothing: whoever asks has checked that the name is to be intercepted. It doesn't protect from
// programs that bring their own roots or pin keys: they refuse the connection. An error means that there is
// no certificate, and the handshake must end.
package intercept

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"agentrun/toolproxy/link"
)

const (
	// MaxNames is how many certificates are kept.
	MaxNames = 512

	valid = 24 * time.Hour
	renew = time.Hour // before the end
	skew  = time.Hour
)

// Minter makes certificates. Its methods can be called from several goroutines. The zero value makes none.
type Minter struct {
	ca     *x509.Certificate
	signer crypto.Signer
	leaf   *ecdsa.PrivateKey
	now    func() time.Time

	mu    sync.Mutex
	known map[string]*tls.Certificate
}

// New reads the run's CA.
func New(ca link.CA, now func() time.Time) (*Minter, error) {
	cert, err := x509.ParseCertificate(ca.Certificate)
	if err != nil {
		return nil, fmt.Errorf("read the run's CA: certificate: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(ca.Key)
	if err != nil {
		return nil, errors.New("read the run's CA: key: not PKCS #8") // its own error may quote the key
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(cert.PublicKey) || !cert.IsCA {
		return nil, errors.New("read the run's CA: want a CA's certificate and its ECDSA key")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of intercepted connections: %w", err)
	}
	return &Minter{ca: cert, signer: signer, leaf: leaf, now: now, known: map[string]*tls.Certificate{}}, nil
}

// Certificate is that of a name in normal form, or of an address.
func (m *Minter) Certificate(name string) (*tls.Certificate, error) {
	if m == nil || m.ca == nil {
		return nil, errors.New("mint a certificate: the run has no CA")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.now()
	if c := m.known[name]; c != nil && at.Before(c.Leaf.NotAfter.Add(-renew)) && at.After(c.Leaf.NotBefore) {
		return c, nil
	}
	c, err := m.mint(name, at)
	if err != nil {
		return nil, fmt.Errorf("mint a certificate for %.255q: %w", name, err)
	}
	if len(m.known) >= MaxNames {
		for old := range m.known { // whichever: all cost the same to make again
			delete(m.known, old)
			break
		}
	}
	m.known[name] = c
	return c, nil
}

// mint signs one certificate. It begins an hour ago, for clocks that differ, and ends with the CA at the
// latest: clients refuse a leaf that outlives it. An address goes into IPAddresses, where verifiers look for
// one; the subject names nobody, as they don't look there (RFC 9525). crypto/x509 draws the serial number.
func (m *Minter) mint(name string, at time.Time) (*tls.Certificate, error) {
	end := at.Add(valid)
	if end.After(m.ca.NotAfter) {
		end = m.ca.NotAfter
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"agentrun"}},
		NotBefore:   at.Add(-skew),
		NotAfter:    end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, m.ca, &m.leaf.PublicKey, m.signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, m.ca.Raw}, PrivateKey: m.leaf, Leaf: leaf}, nil
}
