// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"net/netip"

	"agentrun/toolproxy/egress"
)

const (
	socksVersion = 5
	noneAccepted = 0xff

	socksOK          = 0
	socksNotAllowed  = 2
	socksUnreachable = 4
	socksCommand     = 7
	socksAddress     = 8
)

// socksRequest is what a client asked for (RFC 1928, 4). The zero value is nothing.
type socksRequest struct {
	target egress.Target
	size   int // bytes that it took
}

// parseSocks reads the beginning of a request. need is how many bytes there must be at least before it makes
// sense to ask again; 0 when the answer is final. reply is the code to refuse with, 0 if it is fine.
func parseSocks(unsafe []byte) (r socksRequest, need int, reply byte, err error) {
	if len(unsafe) < 5 {
		return socksRequest{}, 5, 0, nil
	}
	size := 0
	switch unsafe[3] {
	case 1:
		size = 4
	case 3:
		size = 1 + int(unsafe[4])
	case 4:
		size = 16
	}
	switch {
	case unsafe[0] != socksVersion || unsafe[2] != 0:
		return socksRequest{}, 0, 1, nil
	case unsafe[1] != 1: // BIND and UDP ASSOCIATE let others in
		return socksRequest{}, 0, socksCommand, nil
	case size == 0:
		return socksRequest{}, 0, socksAddress, nil
	}
	if need := 4 + size + 2; len(unsafe) < need {
		return socksRequest{}, need, 0, nil
	}
	at, port := unsafe[4:4+size], uint16(unsafe[4+size])<<8|uint16(unsafe[5+size])
	var target egress.Target
	if unsafe[3] == 3 {
		target, err = egress.ParseTarget(string(at[1:]), port)
	} else {
		addr, _ := netip.AddrFromSlice(at)
		target, err = egress.TargetOfAddr(addr, port)
	}
	if err != nil {
		return socksRequest{}, 0, socksNotAllowed, err
	}
	return socksRequest{target, 4 + size + 2}, 0, 0, nil
}

// socks answers one SOCKS5 client (RFC 1928): greeting, request, reply, then bytes. The reply comes when it
// is known whether there is a connection; its address is zero, which clients don't use for CONNECT. A refusal
// of the list is code 2, a server that can't be reached 4; why stands on record only, SOCKS has no place for
// it.
func (s *session) socks() {
	s.via = "socks"
	s.within(s.p.limits.Head)
	if !s.socksGreeting() {
		return
	}
	s.within(s.p.limits.Head)
	r, reply, err := readSocks(s.br)
	if reply != 0 {
		no := refused(egress.Denied(err))
		s.p.refuse("(socks)", no)
		s.last(socksReply(reply))
		return
	}
	if r.target.IsZero() {
		return
	}
	s.open(r.target, func(no *refusal) bool {
		if no == nil {
			_, err := s.conn.Write(socksReply(socksOK))
			return err == nil
		}
		code := byte(socksNotAllowed)
		if no.status >= 500 {
			code = socksUnreachable
		}
		s.last(socksReply(code))
		return false
	})
}

// socksGreeting agrees on no authentication: who asks is known by the namespace it asks from.
func (s *session) socksGreeting() bool {
	head, err := s.br.Peek(2)
	if err != nil {
		return false
	}
	head, err = s.br.Peek(2 + int(head[1]))
	if err != nil {
		return false
	}
	answer := byte(noneAccepted)
	if bytes.IndexByte(head[2:], 0) >= 0 {
		answer = 0
	}
	_, _ = s.br.Discard(len(head)) // they are buffered
	if answer != 0 {
		s.last([]byte{socksVersion, answer})
		return false
	}
	_, err = s.conn.Write([]byte{socksVersion, answer})
	return err == nil
}

// readSocks reads one request; with neither a target nor a code the connection broke.
func readSocks(br *bufio.Reader) (socksRequest, byte, error) {
	for need := 5; ; {
		have, err := br.Peek(need)
		if err != nil {
			return socksRequest{}, 0, nil //nolint:nilerr // nobody is left to answer
		}
		r, more, reply, err := parseSocks(have)
		if more == 0 {
			_, _ = br.Discard(r.size) // they are buffered
			return r, reply, err
		}
		need = more
	}
}

func socksReply(code byte) []byte { return []byte{socksVersion, code, 0, 1, 0, 0, 0, 0, 0, 0} }
