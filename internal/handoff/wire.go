// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// As in early.c (package early). Both ends are the same program on the same machine: numbers are in its own order.
const (
	magic   = 0x31787261 // "arx1"
	maxBody = 2 << 20    // execve(2) takes 2 MiB too, by default
	fds     = 4

	kindDecline = 'D'
	kindRaw     = 'R'
	kindExit    = 'E'
	kindSignal  = 'S'
)

var order = binary.NativeEndian

// Request is a command that its caller hands over.
type Request struct {
	Build string // BuildID of the caller
	Dir   string // its working directory
	Args  []string
	Env   []string
}

var errCut = errors.New("hand-off: the request is cut short")

// Decode reads the body of a request: counts of arguments and variables, then each string behind its length.
func Decode(body []byte) (r Request, err error) {
	if len(body) > maxBody {
		return r, fmt.Errorf("hand-off: %d bytes, at most %d", len(body), maxBody)
	}
	d := decoder{rest: body}
	args, env := d.number(), d.number()
	if d.cut || uint64(args)+uint64(env) > uint64(len(body))/4 {
		return r, errCut // each has a length of 4 bytes, whatever it says
	}
	r.Build, r.Dir = d.text(), d.text()
	r.Args, r.Env = d.texts(args), d.texts(env)
	switch {
	case d.cut:
		return Request{}, errCut
	case len(d.rest) > 0:
		return Request{}, fmt.Errorf("hand-off: %d bytes behind the request", len(d.rest))
	case len(r.Args) == 0:
		return Request{}, errors.New("hand-off: no arguments")
	case !strings.HasPrefix(r.Dir, "/"):
		return Request{}, errors.New("hand-off: the working directory is no absolute path")
	case d.nul || strings.ContainsRune(r.Dir, 0): // the build's id is bytes
		return Request{}, errors.New("hand-off: a zero byte in a string")
	}
	return r, nil
}

type decoder struct {
	rest     []byte
	cut, nul bool
}

func (d *decoder) number() uint32 {
	if len(d.rest) < 4 {
		d.cut = true
		return 0
	}
	n := order.Uint32(d.rest)
	d.rest = d.rest[4:]
	return n
}

// text copies: the buffer is not kept.
func (d *decoder) text() string {
	n := d.number()
	if d.cut || uint64(n) > uint64(len(d.rest)) {
		d.cut = true
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) texts(n uint32) []string {
	list := make([]string, 0, n)
	for range n {
		s := d.text()
		if d.cut {
			return nil
		}
		d.nul = d.nul || strings.ContainsRune(s, 0)
		list = append(list, s)
	}
	return list
}
