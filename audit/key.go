// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"
)

const (
	auditKey = "audit"
	// algorithmEd25519 is the first byte of the key data in the format of signed notes.
	algorithmEd25519 = 1
)

// SigningKey signs notes: checkpoints, or what else its name says. It must stay on this machine; its public half belongs elsewhere.
type SigningKey struct {
	signer note.Signer
	public string
}

// Public gives the verifier key: name, id and Ed25519 public key in the format of golang.org/x/mod/sumdb/note.
func (k *SigningKey) Public() string { return k.public }

// ID gives the eight hexadecimal digits that stand for the key in Public.
func (k *SigningKey) ID() string { return fmt.Sprintf("%08x", k.signer.KeyHash()) }

// Sign returns text, which ends with a line end, as a signed note.
func (k *SigningKey) Sign(text string) ([]byte, error) {
	return note.Sign(&note.Note{Text: text}, k.signer)
}

// Open returns the text of a note that this key has signed. The error is for any other.
func (k *SigningKey) Open(signed []byte) (text string, err error) {
	v, err := note.NewVerifier(k.public)
	if err != nil {
		return "", err
	}
	n, err := note.Open(signed, note.VerifierList(v))
	if err != nil {
		return "", err
	}
	return n.Text, nil
}

// made is the text of a note that this key has signed, and signs in the same way again: Ed25519 does (RFC 8032, 5.1.6). It says no to
// what another program's signature of the same key may be, which Open reads; unlike that, it needs no tables but those of signing.
func (k *SigningKey) made(signed []byte) (text string, ok bool) {
	end := bytes.LastIndex(signed, []byte("\n\n"))
	if end < 0 {
		return "", false
	}
	text = string(signed[:end+1])
	again, err := k.Sign(text)
	return text, err == nil && bytes.Equal(again, signed)
}

// Warm reads the key of checkpoints beneath dir ahead, and makes the tables that a process' first signature waits for, a millisecond of one
// processor. Nothing but time depends on it: the file is read again by who signs.
func Warm(dir string) {
	if _, err := LoadKey(dir); err != nil {
		ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	}
}

// latest is the key file that was read last. What it means takes two multiplications.
var latest atomic.Pointer[struct {
	text string
	key  *SigningKey
}]

func keyOf(text string) (*SigningKey, error) {
	if l := latest.Load(); l != nil && l.text == text {
		return l.key, nil
	}
	k, err := parseKey(text)
	if err == nil {
		latest.Store(&struct {
			text string
			key  *SigningKey
		}{text, k})
	}
	return k, err
}

// LoadKey reads the key of checkpoints beneath dir, as LoadNamedKey.
func LoadKey(dir string) (*SigningKey, error) { return LoadNamedKey(dir, auditKey) }

// LoadNamedKey reads a key beneath dir. Its name is part of what it signs, so that no key's notes pass for another's. The error Is
// fs.ErrNotExist if there is none, *ModeError if others could read it.
func LoadNamedKey(dir, name string) (*SigningKey, error) {
	if err := checkPrivate(dir, unix.O_DIRECTORY, dirMode); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name+".key")
	if err := checkPrivate(path, 0, fileMode); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := keyOf(strings.TrimSuffix(string(b), "\n"))
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err) // the error never has the text: it is the secret
	}
	if k.signer.Name() != "agentrun-"+name {
		return nil, fmt.Errorf("key %s: it is a key for something else", path)
	}
	return k, nil
}

// LoadOrCreateKey is LoadOrCreateNamedKey of the key of checkpoints.
func LoadOrCreateKey(dir string) (k *SigningKey, created bool, err error) {
	return LoadOrCreateNamedKey(dir, auditKey)
}

// LoadOrCreateNamedKey makes the key on first use; created says that this call did. Of several processes that come at once,
// all get the same key: it is written whole to a name of its own and then linked, which only one can.
func LoadOrCreateNamedKey(dir, name string) (k *SigningKey, created bool, err error) {
	if k, err = LoadNamedKey(dir, name); !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, false, err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return nil, false, err
	}
	if err := checkPrivate(dir, unix.O_DIRECTORY, dirMode); err != nil {
		return nil, false, err
	}
	secret, _, err := note.GenerateKey(rand.Reader, "agentrun-"+name)
	if err != nil {
		return nil, false, err
	}
	f, err := os.CreateTemp(dir, "."+name+".key-*")
	if err == nil {
		err = writeSynced(f, []byte(secret+"\n"), func() {})
	}
	if err != nil {
		return nil, false, err
	}
	err = os.Link(f.Name(), filepath.Join(dir, name+".key"))
	os.Remove(f.Name())
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	created = err == nil
	if err := syncDir(dir); err != nil {
		return nil, false, err
	}
	k, err = LoadNamedKey(dir, name)
	return k, created, err
}

// checkPrivate looks at the open file, so that what was checked is what the name meant, and refuses links.
func checkPrivate(path string, flags int, want fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if mode := fs.FileMode(st.Mode & 0o777); mode&^want != 0 {
		return &ModeError{Path: path, Mode: mode, Want: want}
	}
	if uid := os.Geteuid(); st.Uid != 0 && int(st.Uid) != uid {
		return fmt.Errorf("%s belongs to user %d, want %d", path, st.Uid, uid)
	}
	return nil
}

func parseKey(secret string) (*SigningKey, error) {
	signer, err := note.NewSigner(secret)
	if err != nil {
		return nil, errors.New("not a signing key of this program")
	}
	// The public half isn't stored: two files could come to differ. NewSigner has seen that there are five parts.
	data, err := base64.StdEncoding.DecodeString(strings.SplitN(secret, "+", 5)[4])
	if err != nil || len(data) != 1+ed25519.SeedSize || data[0] != algorithmEd25519 {
		return nil, errors.New("not an Ed25519 key")
	}
	public, err := note.NewEd25519VerifierKey(signer.Name(), ed25519.NewKeyFromSeed(data[1:]).Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	return &SigningKey{signer, public}, nil
}

// writeSynced writes what is to take a name's place to f, and closes it; on an error nothing is left of it. Before it waits for the disk it
// calls written.
func writeSynced(f *os.File, content []byte, written func()) error {
	_, err := f.Write(content)
	if err == nil {
		written()
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
