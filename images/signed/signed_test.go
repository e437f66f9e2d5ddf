// SPDX-License-Identifier: Apache-2.0

package signed

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
)

const of = "sha256:0123"

func key(t *testing.T, curve elliptic.Curve) (*ecdsa.PrivateKey, string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k, text(t, k.Public())
}

func text(t *testing.T, k crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func by(t *testing.T, k *ecdsa.PrivateKey, statement string) Signature {
	t.Helper()
	sum := sha256.Sum256([]byte(statement))
	sig, err := ecdsa.SignASN1(rand.Reader, k, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return Signature{[]byte(statement), base64.StdEncoding.EncodeToString(sig)}
}

func statement(digest, kind string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":%q},"optional":{"a":1}}`, digest, kind)
}

const kind = "cosign container image signature"

func TestVerify(t *testing.T) {
	k, public := key(t, elliptic.P256())
	other, _ := key(t, elliptic.P256())
	good := by(t, k, statement(of, kind))
	changed := good
	changed.Statement = []byte(statement("sha256:ffff", kind))
	for name, c := range map[string]struct {
		list []Signature
		want string
	}{
		"good":              {[]Signature{good}, ""},
		"good behind a bad": {[]Signature{changed, {Base64: "%"}, good}, ""},
		"none":              {nil, "no signature"},
		"another's":         {[]Signature{by(t, other, statement(of, kind))}, "not by this key"},
		"changed":           {[]Signature{changed}, "not by this key"},
		"of another":        {[]Signature{by(t, k, statement("sha256:ffff", kind))}, "what is signed is"},
		"of nothing":        {[]Signature{by(t, k, `{}`)}, "what is signed is"},
		"of another kind":   {[]Signature{by(t, k, statement(of, "atomic"))}, "what is signed is"},
		"no JSON":           {[]Signature{by(t, k, "x")}, "signed statement"},
		"empty":             {[]Signature{{}}, "not by this key"},
		"too many":          {append(make([]Signature, Most), good), "not by this key"},
	} {
		err := Verify(public, []string{"sha256:aaaa", of}, c.list)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	_, wide := key(t, elliptic.P384())
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]string{"another curve": wide, "another algorithm": text(t, ed), "nothing": "", "no key": "-----BEGIN PUBLIC KEY-----\nYWJj\n-----END PUBLIC KEY-----\n"} {
		if err := Verify(k, []string{of}, []Signature{good}); err == nil {
			t.Errorf("%s: taken as a key", name)
		}
	}
	if got := Tag("sha256:ab"); got != "sha256-ab.sig" {
		t.Error(got)
	}
}
