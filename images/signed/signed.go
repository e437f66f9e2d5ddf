// SPDX-License-Identifier: Apache-2.0

// Package signed checks signatures of images as cosign makes them with a key pair.
//
//	err := signed.Verify(key, digests, signatures)
//
// What it guarantees. nil means that the key has signed a statement that names one of the digests, which are those of the
// manifest, or of the index that names it. Keys are ECDSA P-256; signatures are over the SHA-256 of the statement.
//
// Errors say what was missing: no signature at all, none by this key, or none of this image. It fails closed.
//
// What it does not protect against: an older image that the key has signed too, under whatever name it is served now. Nothing
// is asked of transparency logs, and certificates are not looked at.
package signed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MediaType of a statement, and the annotation that has its signature.
const (
	MediaType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	Annotation = "dev.cosignproject.cosign/signature"
)

// Signature is a statement and the signature of it, in base64.
type Signature struct {
	Statement []byte
	Base64    string
}

// Most is how many signatures of one image are looked at.
const Most = 64

// Tag is that under which a registry has the signatures of a digest.
func Tag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// Verify tells whether key, in PEM, has signed one of the digests.
func Verify(key string, digests []string, signatures []Signature) error {
	public, err := parse(key)
	if err != nil {
		return err
	}
	err = errors.New("there is no signature of it")
	for _, s := range signatures[:min(len(signatures), Most)] {
		if err = verify(public, digests, s); err == nil {
			return nil
		}
	}
	return err
}

func parse(key string) (*ecdsa.PublicKey, error) {
	block, _ := pem.Decode([]byte(key))
	if block == nil {
		return nil, errors.New("the key to check signatures by is no PEM")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key to check signatures by: %w", err)
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("the key to check signatures by is none of ECDSA P-256")
	}
	return public, nil
}

func verify(public *ecdsa.PublicKey, digests []string, s Signature) error {
	text, err := base64.StdEncoding.DecodeString(s.Base64)
	if err != nil {
		return fmt.Errorf("its signature is no base64: %w", err)
	}
	sum := sha256.Sum256(s.Statement)
	if !ecdsa.VerifyASN1(public, sum[:], text) {
		return errors.New("its signature is not by this key")
	}
	var statement struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(s.Statement, &statement); err != nil {
		return fmt.Errorf("its signed statement: %w", err)
	}
	if statement.Critical.Type != "cosign container image signature" || !slices.Contains(digests, statement.Critical.Image.Digest) {
		return fmt.Errorf("what is signed is %.100q", statement.Critical.Image.Digest)
	}
	return nil
}
