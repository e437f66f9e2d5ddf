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

// covering holds back what may be the beginning of a word, until it is told.
type covering struct {
	h     *hidden
	from  io.Reader
	data  []byte // read and not yet given out
	ready int    // of data, may go
	err   error
}

func (c *covering) Read(p []byte) (int, error) {
	for c.ready == 0 {
		if c.err != nil {
			return 0, c.err
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.data[:c.ready])
	c.data = c.data[:copy(c.data, c.data[n:])]
	c.ready -= n
	return n, nil
}

// fill reads once. Its own error is a timeout, after which reading may go on.
func (c *covering) fill() error {
	have := len(c.data)
	c.data = append(c.data, make([]byte, 4096)...)
	n, err := c.from.Read(c.data[have:])
	c.data = c.data[:have+n]
	timeout := errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !timeout {
		c.err = err
	}
	c.h.cover(c.data)
	c.ready = len(c.data)
	if !errors.Is(c.err, io.EOF) { // what is broken off isn't told to its end
		c.ready -= c.h.beginning(c.data)
	}
	if timeout && c.ready == 0 {
		return err
	}
	return nil
}

// beginning is the length of the longest end of b that is a true beginning of a word.
func (h *hidden) beginning(b []byte) int {
	longest := 0
	for _, word := range h.words {
		for n := min(len(word)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, word[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}
