// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Why an attestation is refused. Each is told apart by errors.Is.
var (
	ErrMalformed  = errors.New("malformed")
	ErrUnknownKey = errors.New("the key that signed it is not in the operators file")
	ErrSignature  = errors.New("the signature is not that key's over this statement")
	ErrAction     = errors.New("it is for another action")
	ErrSubject    = errors.New("it is for another subject")
	ErrExpired    = errors.New("it has expired")
	ErrTooFar     = errors.New("its expiry is too far ahead")
	ErrNonceUsed  = errors.New("it has been used before")
	ErrNonces     = errors.New("its use can't be recorded")
)

// maxText bounds what is parsed: the longest valid attestation with room for the white space of a mail.
const maxText = 2048

// signature64 is base64 in the one spelling that has no free bits and needs no quoting.
func signature64() *base64.Encoding { return base64.RawURLEncoding.Strict() }

// Attestation is a statement somebody signed. Only Verify and Inspect return one; what they return with an error is zero.
type Attestation struct {
	Statement
	Key string // who signed: the key's name, "+", and 8 hex digits of its hash
}

// parse splits text. It decides nothing about who signed.
func parse(text string) (a Attestation, sig []byte, err error) {
	if len(text) > maxText {
		return Attestation{}, nil, fmt.Errorf("%d bytes, more than %d: %w", len(text), maxText, ErrMalformed)
	}
	fields := strings.Split(withoutSpace(text), separator)
	if fields[0] != version || len(fields) != 7 {
		return Attestation{}, nil, fmt.Errorf("%d fields starting with %.40q, want 7 starting with %q: %w", len(fields), fields[0], version, ErrMalformed)
	}
	a = Attestation{Statement{Action: fields[1], Subject: fields[2]}, fields[5]}
	if a.Expires, err = time.Parse(timeForm, fields[3]); err != nil || a.Expires.Format(timeForm) != fields[3] {
		return Attestation{}, nil, fmt.Errorf("expiry %.40q is not like %s: %w", fields[3], timeForm, ErrMalformed)
	}
	nonce, err := hex.DecodeString(fields[4])
	if err != nil || len(nonce) != len(a.Nonce) {
		return Attestation{}, nil, fmt.Errorf("nonce %.40q is not %d hex digits: %w", fields[4], 2*len(a.Nonce), ErrMalformed)
	}
	copy(a.Nonce[:], nonce)
	if a.Nonce.String() != fields[4] {
		return Attestation{}, nil, fmt.Errorf("nonce %q in upper case: %w", fields[4], ErrMalformed)
	}
	if sig, err = signature64().DecodeString(fields[6]); err != nil || len(sig) != 64 {
		return Attestation{}, nil, fmt.Errorf("signature of %d characters: %w", len(fields[6]), ErrMalformed)
	}
	if err := a.check(); err != nil {
		return Attestation{}, nil, err
	}
	return a, sig, nil
}

func withoutSpace(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			return -1
		}
		return r
	}, s)
}

// Inspect checks everything about text but what it is for and whether it was used: form, key, signature, expiry. It permits
// nothing; Verify does. The order of its checks: nothing text says is believed, or repeated in an error as being so, before its
// signature is.
func (k Keys) Inspect(text string, now time.Time) (Attestation, error) {
	a, err := k.authentic(text)
	if err != nil {
		return Attestation{}, fmt.Errorf("check witness attestation: %w", err)
	}
	if err := a.timely(now); err != nil {
		return Attestation{}, fmt.Errorf("check witness attestation: %w", err)
	}
	return a, nil
}

// Verify checks text against want at the instant now and marks its nonce used in nonces, last of all. Where it returns an error
// nothing may be permitted; where it doesn't, want may be, once.
func (k Keys) Verify(text string, want Want, now time.Time, nonces NonceStore) (Attestation, error) {
	a, err := k.verify(text, want, now, nonces)
	if err != nil {
		return Attestation{}, fmt.Errorf("verify witness attestation for %.64s of %.256s: %w", want.Action, want.Subject, err)
	}
	return a, nil
}

func (k Keys) verify(text string, want Want, now time.Time, nonces NonceStore) (Attestation, error) {
	if err := want.check(); err != nil {
		return Attestation{}, err
	}
	a, err := k.authentic(text)
	switch {
	case err != nil:
		return Attestation{}, err
	case a.Action != want.Action:
		return Attestation{}, fmt.Errorf("signed for %s: %w", a.Action, ErrAction)
	case a.Subject != want.Subject:
		return Attestation{}, fmt.Errorf("signed for %s: %w", a.Subject, ErrSubject)
	}
	if err := a.timely(now); err != nil {
		return Attestation{}, err
	}
	if nonces == nil {
		return Attestation{}, fmt.Errorf("no nonce store: %w", ErrNonces)
	}
	switch err := nonces.Use(a.Nonce, a.Expires); {
	case errors.Is(err, ErrNonceUsed):
		return Attestation{}, err
	case err != nil:
		return Attestation{}, fmt.Errorf("%w: %w", ErrNonces, err)
	}
	return a, nil
}

func (k Keys) authentic(text string) (Attestation, error) {
	a, sig, err := parse(text)
	if err != nil {
		return Attestation{}, err
	}
	v, known := k.byID[a.Key]
	if !known {
		return Attestation{}, fmt.Errorf("key %.100q: %w", a.Key, ErrUnknownKey)
	}
	if !v.Verify(signed(a.canonical(a.Key)), sig) {
		return Attestation{}, fmt.Errorf("key %s: %w", a.Key, ErrSignature)
	}
	return a, nil
}

func (s Statement) timely(now time.Time) error {
	switch {
	case !now.Before(s.Expires):
		return fmt.Errorf("at %s: %w", s.Expires.Format(timeForm), ErrExpired)
	case s.Expires.After(now.Add(MaxTTL)):
		return fmt.Errorf("at %s, more than %s from now: %w", s.Expires.Format(timeForm), MaxTTL, ErrTooFar)
	}
	return nil
}
