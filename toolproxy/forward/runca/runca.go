// SPDX-License-Identifier: Apache-2.0

// Package runca makes the certificate authority of one run, for TLS interception (M-8, M-12).
//
// It is a package of its own, with crypto and link alone beneath it, because the supervisor links it: the
// supervisor makes the CA, hands the key to the run's gateway and puts the certificate into that run's root
// view, nowhere else.
//
//	ca, pem, err := runca.NewCA("run_1", time.Now)
//
// What it guarantees: the key is fresh, of ECDSA P-256; the certificate may sign leaf certificates only (path
// length 0) and ends after MaxAge. It doesn't protect from whoever has the key: keep it in memory. An error
// means that there is no CA; all that comes with it is empty.
package runca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"agentrun/toolproxy/link"
)

const (
	// MaxAge is how long a CA is valid: longer than any run, since the run's programs check it at each
	// connection.
	MaxAge = 7 * 24 * time.Hour
	// Skew is how long before now it is valid, for clocks that differ.
	Skew = time.Hour
)

// NewCA makes the CA of a run, and its certificate in PEM for the run's root view.
func NewCA(run string, now func() time.Time) (ca link.CA, certPEM []byte, err error) {
	if run == "" || len(run) > 128 || now == nil {
		return link.CA{}, nil, errors.New("make the run's CA: want a run of 1 to 128 bytes and a clock")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return link.CA{}, nil, fmt.Errorf("make the run's CA: key: %w", err)
	}
	at := now()
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"agentrun"}, CommonName: "agentrun CA of " + run},
		NotBefore:             at.Add(-Skew),
		NotAfter:              at.Add(MaxAge),
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return link.CA{}, nil, fmt.Errorf("make the run's CA: certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return link.CA{}, nil, fmt.Errorf("make the run's CA: encode the key: %w", err)
	}
	return link.CA{Certificate: der, Key: pkcs8}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
