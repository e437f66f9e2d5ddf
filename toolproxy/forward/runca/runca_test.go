// SPDX-License-Identifier: Apache-2.0

package runca

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"
)

func TestM8CAOfARun(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ca, text, err := NewCA("run_1", func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(ca.Certificate)
	if err != nil || block == nil || string(block.Bytes) != string(ca.Certificate) {
		t.Fatalf("got %v, %v", block, err)
	}
	if !cert.IsCA || !cert.MaxPathLenZero || !cert.NotAfter.Equal(at.Add(MaxAge)) || cert.KeyUsage != x509.KeyUsageCertSign {
		t.Errorf("got %+v", cert)
	}
	other, _, err := NewCA("run_1", func() time.Time { return at })
	if err != nil || string(other.Key) == string(ca.Key) {
		t.Errorf("two runs share a key, or %v", err)
	}
	if ca, text, err := NewCA("", time.Now); err == nil || len(ca.Key)+len(text) > 0 {
		t.Error("a CA of no run")
	}
}
