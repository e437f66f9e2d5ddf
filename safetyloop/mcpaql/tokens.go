// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
	"agentrun/rings"
)

// Role is what a token's owner is. The zero value is nobody.
type Role string

// The roles.
const (
	Agent    Role = "agent"
	Operator Role = "operator" // may confirm what agents wait for
)

// Token names one credential. Its text isn't kept, its hash is.
type Token struct {
	Name   string `yaml:"name"` // the principal
	Role   Role   `yaml:"role"`
	SHA256 string `yaml:"sha256"` // of the token's text, hexadecimal
}

// Tokens are those of one file.
type Tokens struct{ list []Token }

const (
	// tokenBytes of a token are random. A hash without salt or stretching is enough for what can't be guessed.
	tokenBytes = 32
	tokenMark  = "agentrun_" // lets scanners of secrets find one that went astray
	maxTokens  = 1024
	maxFile    = 1 << 20
)

// NewToken makes a token: text goes to its owner, once, and t into the file.
func NewToken(name string, role Role) (text string, t Token, err error) {
	b := make([]byte, tokenBytes)
	if _, err := rand.Read(b); err != nil {
		return "", Token{}, err
	}
	text = tokenMark + base64.RawURLEncoding.EncodeToString(b)
	t = Token{Name: name, Role: role, SHA256: hashOf(text)}
	return text, t, t.check()
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (t Token) check() error {
	if err := rings.CheckAgentID(t.Name); err != nil {
		return fmt.Errorf("name %.64q: %w", t.Name, err)
	}
	if t.Role != Agent && t.Role != Operator {
		return fmt.Errorf("role %.64q of %s: want agent or operator", t.Role, t.Name)
	}
	if sum, err := hex.DecodeString(t.SHA256); err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("sha256 of %s: want 64 hexadecimal digits", t.Name)
	}
	return nil
}

// LoadTokens reads a file that only its owner, root or this user, may read: who can write it can be anybody, who can read
// it learns who there is.
func LoadTokens(path string) (*Tokens, error) {
	b, err := ReadPrivate(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Tokens []Token `yaml:"tokens"`
	}
	n := read.YAML(read.Source{File: path, Max: 1 << 20}, b)
	n.Into(&file)
	t, err := newTokens(file.Tokens)
	if err := n.Done(err); err != nil {
		return nil, err
	}
	return t, nil
}

func newTokens(list []Token) (*Tokens, error) {
	if len(list) == 0 || len(list) > maxTokens {
		return nil, read.Bad("tokens", "got %d, want 1 to %d", len(list), maxTokens)
	}
	names, hashes := map[string]bool{}, map[string]bool{}
	for i, t := range list {
		if err := t.check(); err != nil {
			return nil, read.Under(fmt.Sprintf("tokens[%d]", i), err)
		}
		list[i].SHA256 = strings.ToLower(t.SHA256)
		// Two tokens of one name would be one principal, and two roles of one token a matter of order.
		if names[t.Name] || hashes[list[i].SHA256] {
			return nil, read.Bad(fmt.Sprintf("tokens[%d]", i), "name or hash of %s is there twice", t.Name)
		}
		names[t.Name], hashes[list[i].SHA256] = true, true
	}
	return &Tokens{list}, nil
}

// Names are those of all tokens, in the file's order.
func (t *Tokens) Names() []string {
	names := []string{}
	for _, one := range t.list {
		names = append(names, one.Name)
	}
	return names
}

// find compares with all, so that the time tells nothing.
func (t *Tokens) find(text string) (found Token, ok bool) {
	sum := []byte(hashOf(text))
	for _, one := range t.list {
		if subtle.ConstantTimeCompare(sum, []byte(one.SHA256)) == 1 {
			found, ok = one, true
		}
	}
	return found, ok
}

// ReadPrivate reads a file of secrets: a regular one, of root or of this user, that nobody else may read or write.
func ReadPrivate(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path) //nolint:gosec // a descriptor
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is no regular file", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, want root or %d", path, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("%s: mode %04o lets others in, want 0600", path, st.Mode&0o7777)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = errors.New("longer than 1 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}
