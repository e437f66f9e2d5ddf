// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"agentrun/telemetry/mask"
	"agentrun/toolproxy/egress"
)

// hidden is what the proxy puts into a request and takes out of the reply: a server that echoes its caller's
// headers must not hand the agent the secret (M-12). Each byte of it is covered by a star, so that no length
// changes.
//
// Found are the secret as it is, in base64 (alone, or after its prefix), both in URLs and in JSON, and in hexadecimal.
// A server that encodes or splits it otherwise gives it away: only servers that are trusted with the secret
// should be given it.
type hidden struct {
	add   []addition
	words [][]byte
}

type addition struct {
	lower string
	line  []byte // the whole line with its CRLF
}

// hidden is nil if nothing is put into the request.
func (p *Proxy) hidden(a egress.Ask, secure bool) *hidden {
	if !secure {
		return nil
	}
	headers := p.rules.headers(a)
	if len(headers) == 0 {
		return nil
	}
	h := &hidden{}
	for _, one := range headers {
		secret := p.secrets[one.secret]
		prefix, value := one.prefix, one.prefix+secret
		if one.user != "" { // RFC 7617, 2: what is covered in base64 is the user's name and the secret in one
			prefix = one.user + ":"
			value = "Basic " + base64.StdEncoding.EncodeToString([]byte(prefix+secret))
		}
		h.add = append(h.add, addition{strings.ToLower(one.name), []byte(one.name + ": " + value + "\r\n")})
		h.words = append(h.words, spellings(secret, prefix)...)
	}
	return h
}

// spellings are the ways in which a server's reply may have the secret. In base64 it looks different at each
// of three places within a group; covered are those of a credential that stands alone or right after its
// prefix, as Authorization has it. Texts of fewer than 6 bytes aren't looked for, they would cover
// everything; one within another is found with it.
func spellings(secret, prefix string) [][]byte {
	var words [][]byte
	add := func(w string) {
		if len(w) >= 6 && !bytes.Contains(bytes.Join(words, []byte{0}), []byte(w)) {
			words = append(words, []byte(w))
		}
	}
	forms := []string{secret}
	for _, plain := range []string{secret, prefix + secret} {
		// Without the end that depends on what follows, and so whatever follows.
		whole := base64.RawStdEncoding.EncodeToString([]byte(plain))
		whole = whole[:len(plain)/3*4]
		forms = append(forms, whole, strings.NewReplacer("+", "-", "/", "_").Replace(whole))
	}
	for _, form := range forms {
		for _, spelled := range mask.Spellings(form) {
			add(spelled)
		}
	}
	add(hex.EncodeToString([]byte(secret)))
	add(strings.ToUpper(hex.EncodeToString([]byte(secret))))
	return words
}

// cover replaces in place. Nil covers nothing.
func (h *hidden) cover(b []byte) {
	if h == nil {
		return
	}
	for _, word := range h.words {
		for at := 0; ; {
			i := bytes.Index(b[at:], word)
			if i < 0 {
				break
			}
			at += i
			for j := range word {
				b[at+j] = '*'
			}
			at += len(word)
		}
	}
}

// reader covers what is read from r. Nil returns r itself.
func (h *hidden) reader(r io.Reader) io.Reader {
	if h == nil {
		return r
	}
	return &covering{h: h, from: r}
}

// quietTime is how long nothing may come before what was held back is told.
const quietTime = 250 * time.Millisecond

// covering holds back as many bytes as the beginning of a word may have, whatever they say, until more has come or the end, or
// nothing has for quietTime. Were it only what may begin a word, an agent that has a server echo guesses at the secret would
// learn by what comes late which of them is right, letter by letter. What was told when it was quiet is kept, so that a word
// which began in it is covered from there on.
type covering struct {
	h     *hidden
	from  io.Reader
	data  []byte
	told  int // of data, was given out
	ready int // of data, may go
	err   error
	got   chan piece // of the read under way, whose buf is; nil: there is none
	buf   [4096]byte
}

type piece struct {
	n   int
	err error
}

func (c *covering) Read(p []byte) (int, error) {
	for c.ready == c.told {
		if c.err != nil {
			return 0, c.err
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.data[c.told:c.ready])
	c.told += n
	past := max(0, c.told-c.h.longest())
	c.data = c.data[:copy(c.data, c.data[past:])]
	c.told, c.ready = c.told-past, c.ready-past
	return n, nil
}

// fill waits for one read, which goes on if it is quiet meanwhile. Its own error is a timeout, after which reading may go on.
func (c *covering) fill() error {
	if c.got == nil {
		got := make(chan piece, 1)
		go func() { // ends with the connection at the latest
			n, err := c.from.Read(c.buf[:])
			got <- piece{n, err}
		}()
		c.got = got
	}
	var quiet <-chan time.Time
	if len(c.data) > c.ready {
		t := time.NewTimer(quietTime)
		defer t.Stop()
		quiet = t.C
	}
	select {
	case <-quiet:
		c.ready = len(c.data)
		return nil
	case p := <-c.got:
		c.got = nil
		return c.take(p)
	}
}

func (c *covering) take(p piece) error {
	timeout := errors.Is(p.err, os.ErrDeadlineExceeded)
	if p.err != nil && !timeout {
		c.err = p.err
	}
	c.data = append(c.data, c.buf[:p.n]...)
	c.h.cover(c.data)
	held := c.h.longest()
	if errors.Is(c.err, io.EOF) { // what is broken off isn't told to its end
		held = 0
	}
	c.ready = max(c.ready, len(c.data)-held)
	if timeout && c.ready == c.told {
		return p.err
	}
	return nil
}

// longest is how many bytes the beginning of a word may have.
func (h *hidden) longest() (most int) {
	for _, word := range h.words {
		most = max(most, len(word)-1)
	}
	return most
}
