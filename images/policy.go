// SPDX-License-Identifier: Apache-2.0

package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
)

// Policy is the section images: of config.yaml: which images a node takes. The zero value takes any.
type Policy struct {
	SignedBy string   `yaml:"signed_by"` // file with the public key by which each must be signed; absolute
	Allow    []string `yaml:"allow"`     // what may be pulled: names with their registry, * for any characters; none: any
}

// Check refuses what can't be meant.
func (p Policy) Check() error {
	if p.SignedBy != "" && !filepath.IsAbs(p.SignedBy) {
		return fmt.Errorf("images.signed_by: %q: want an absolute path", p.SignedBy)
	}
	for _, a := range p.Allow {
		if a == "" {
			return errors.New("images.allow: an empty pattern allows nothing; leave it out")
		}
	}
	return nil
}

// Key reads the key that images must be signed by, "" if there is none to be. Only root, or this process's user, can have
// written the file.
func (p Policy) Key() (string, error) {
	if p.SignedBy == "" {
		return "", nil
	}
	text, err := read.File(p.SignedBy, read.OthersMayWrite, 64<<10)
	if err == nil && Fingerprint(string(text)) == "" {
		err = fmt.Errorf("%s is no public key in PEM", p.SignedBy)
	}
	if err != nil {
		return "", fmt.Errorf("images.signed_by: %w", err)
	}
	return string(text), nil
}

// Fingerprint names a key: the SHA-256 of what its PEM holds; empty: it is none.
func Fingerprint(key string) string {
	block, _ := pem.Decode([]byte(key))
	if block == nil || block.Type != "PUBLIC KEY" {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Allows tells whether what is called so in full may be pulled.
func (p Policy) Allows(repository string) bool {
	for _, pattern := range p.Allow {
		if match(pattern, repository) {
			return true
		}
	}
	return len(p.Allow) == 0
}

// match is that of a text with a pattern in which each * stands for any characters.
func match(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	last := len(parts) - 1
	for _, p := range parts[1:last] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, parts[last])
}

// Runs tells whether a run may be given an image that is here, by the policy of now: one may have come before it.
func (p Policy) Runs(i Image) error {
	key, err := p.Key()
	if err != nil || key == "" || i.SignedBy == Fingerprint(key) {
		return err
	}
	return hinted.New(errors.New("it came without a signature by the key that images.signed_by names"),
		"agentrun image pull again, which looks for one")
}
