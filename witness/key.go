// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

const maxName = 64

// Key is an operator's private key. Its text form is that of a note signer, one line.
//
// It has no passphrase: the standard library has no function to turn one into a key slowly, and a home-made file format would be
// worse than age or a password manager, whose output `agentrun operator sign --key -` reads. The file is 0600, and is best kept on
// the operator's own machine, not on the host that runs agents: signing needs nothing from there.
type Key struct {
	signer            note.Signer
	id                string
	private, verifier string
}

// ValidName tells whether name can be an operator's: letters, digits and "._@-", starting with a letter or digit, at most 64 bytes.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i, c := range []byte(name) {
		alnum := lower(c) || digit(c) || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || !strings.ContainsRune("._@-", rune(c))) {
			return false
		}
	}
	return true
}

// NewKey makes a key for the operator called name.
func NewKey(name string) (*Key, error) {
	if !ValidName(name) {
		return nil, fmt.Errorf("make key for %.80q: a name is letters, digits and ._@-, at most %d: %w", name, maxName, ErrKeyFile)
	}
	private, verifier, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return nil, fmt.Errorf("make key for %s: %w", name, err)
	}
	k, err := ParseKey(private)
	if err != nil {
		return nil, err
	}
	if k.verifier != verifier {
		return nil, fmt.Errorf("make key for %s: its two halves don't belong together: %w", name, ErrKeyFile)
	}
	return k, nil
}

// ParseKey reads a private key's text form.
func ParseKey(text string) (*Key, error) {
	private := strings.TrimSpace(text)
	s, err := note.NewSigner(private)
	if err != nil || !ValidName(s.Name()) {
		return nil, fmt.Errorf("parse private key: no line like PRIVATE+KEY+NAME+HASH+KEY: %w", ErrKeyFile) // without the text: it may be a secret
	}
	verifier, err := verifierOf(private)
	if err != nil {
		return nil, fmt.Errorf("parse private key of %s: %w", s.Name(), err)
	}
	return &Key{signer: s, id: keyID(s.Name(), s.KeyHash()), private: private, verifier: verifier}, nil
}

// ID is the key's name, "+", and 8 hex digits of its hash: how attestations name it.
func (k *Key) ID() string { return k.id }

// Verifier is the public line for the operators file.
func (k *Key) Verifier() string { return k.verifier }

// Sign returns the attestation of s at the instant now. It refuses what Verify would refuse then.
func (k *Key) Sign(s Statement, now time.Time) (string, error) {
	s.Expires = s.Expires.Truncate(time.Second)
	if err := s.check(); err != nil {
		return "", fmt.Errorf("sign attestation: %w", err)
	}
	if err := s.timely(now); err != nil {
		return "", fmt.Errorf("sign attestation: %w", err)
	}
	text := s.canonical(k.id)
	sig, err := k.signer.Sign(signed(text))
	if err != nil {
		return "", fmt.Errorf("sign attestation: %w", err)
	}
	return text + separator + signature64().EncodeToString(sig), nil
}

// Keys are the operators trusted. The zero value trusts nobody.
type Keys struct {
	byID map[string]note.Verifier
}

// ParseKeys reads the operators file: a verifier line for each key, empty lines, and lines that start with #. Anything else is an
// error: a misread file would trust other people than it says.
func ParseKeys(text []byte) (Keys, error) {
	keys := Keys{byID: map[string]note.Verifier{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if strings.HasPrefix(line, "PRIVATE+KEY+") {
			return Keys{}, fmt.Errorf("line %d: a private key; it belongs to its owner alone, here goes the line that keygen printed: %w", n, ErrKeyFile)
		}
		v, err := note.NewVerifier(line)
		if err != nil || !ValidName(v.Name()) {
			return Keys{}, fmt.Errorf("line %d: %.80q is no verifier line like NAME+HASH+KEY: %w", n, line, ErrKeyFile)
		}
		id := keyID(v.Name(), v.KeyHash())
		if keys.byID[id] != nil {
			return Keys{}, fmt.Errorf("line %d: key %s stands there twice: %w", n, id, ErrKeyFile)
		}
		keys.byID[id] = v
	}
	if err := lines.Err(); err != nil {
		return Keys{}, fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	return keys, nil
}

// IDs lists the keys trusted, sorted.
func (k Keys) IDs() []string {
	ids := make([]string, 0, len(k.byID))
	for id := range k.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func keyID(name string, hash uint32) string { return fmt.Sprintf("%s+%08x", name, hash) }

// verifierOf derives the public line, which the file doesn't hold: so a file can't have two halves that don't match.
func verifierOf(private string) (string, error) {
	parts := strings.SplitN(private, "+", 5)
	data, err := base64.StdEncoding.DecodeString(parts[len(parts)-1])
	if err != nil || len(parts) != 5 || len(data) != 1+ed25519.SeedSize {
		return "", ErrKeyFile
	}
	public, _ := ed25519.NewKeyFromSeed(data[1:]).Public().(ed25519.PublicKey)
	return note.NewEd25519VerifierKey(parts[2], public)
}
