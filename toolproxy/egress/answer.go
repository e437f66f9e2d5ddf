// SPDX-License-Identifier: Apache-2.0

package egress

// maxAnswerRecords is how many records a server may send before its ServerHello is known: alerts and a ChangeCipherSpec
// are what may stand before it.
const maxAnswerRecords = 64

// Verdict is what a server made of a ClientHello.
type Verdict uint8

// The zero Verdict lets nothing through.
const (
	Unanswered Verdict = iota
	Served             // a ServerHello: no other hello is taken after it
	Retry              // a HelloRetryRequest: the server waits for a second hello, in the clear
	Strange            // not an answer to a ClientHello
)

// Answer reads what a server says to a ClientHello, across records and however they are cut. The zero value is ready.
// It keeps nothing but a few counters and the beginning of one message.
type Answer struct {
	header  [recordHeader]byte
	have    int // of header
	left    int // bytes of the record under way
	records int
	start   [messageHeader + 2 + 32]byte // of the message under way: head, version, random
	got     int                          // of start
	skip    int                          // bytes of the message that are of no interest
}

// Next reads until something is known, and returns what, and the bytes after. With Unanswered all has been read.
func (a *Answer) Next(unsafe []byte) (v Verdict, rest []byte) {
	for len(unsafe) > 0 {
		if a.left == 0 {
			n := copy(a.header[a.have:], unsafe)
			a.have += n
			unsafe = unsafe[n:]
			if a.have < recordHeader {
				break
			}
			a.have, a.left = 0, int(a.header[3])<<8|int(a.header[4])
			a.records++
			if a.header[0] < recordCCS || a.header[0] > recordHandshake || a.header[1] != 3 || a.left == 0 || a.left > maxHello || a.records > maxAnswerRecords {
				return Strange, unsafe
			}
			continue
		}
		n := min(a.left, len(unsafe))
		if a.header[0] == recordHandshake {
			n, v = a.handshake(unsafe[:n])
		}
		a.left -= n
		unsafe = unsafe[n:]
		if v != Unanswered {
			return v, unsafe
		}
	}
	return Unanswered, nil
}

func (a *Answer) handshake(b []byte) (used int, v Verdict) {
	if a.skip > 0 {
		used = min(a.skip, len(b))
		a.skip -= used
		return used, Unanswered
	}
	used = copy(a.start[a.got:], b)
	a.got += used
	if a.start[0] != 2 {
		return used, Strange
	}
	if a.got < len(a.start) {
		return used, Unanswered
	}
	size := int(a.start[1])<<16 | int(a.start[2])<<8 | int(a.start[3])
	random := [32]byte(a.start[messageHeader+2:])
	a.got, a.skip = 0, size-(len(a.start)-messageHeader)
	switch {
	case a.skip < 0 || size > maxHello:
		return used, Strange
	case random == retryRandom:
		return used, Retry
	}
	return used, Served
}

// retryRandom is how a ServerHello tells that it is a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = [32]byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// ParseSecondHello is ParseClientHello for what a client sends after a HelloRetryRequest. Before the hello may stand one
// ChangeCipherSpec (RFC 8446, D.4) and early data, which a server that asked again skips (4.2.10). Len counts them too.
func ParseSecondHello(unsafe []byte) (Hello, error) {
	changed := false
	for at := 0; ; {
		rest := unsafe[at:]
		if len(rest) == 0 {
			return Hello{}, ErrShort
		}
		if rest[0] != recordData && (rest[0] != recordCCS || changed) {
			h, err := ParseClientHello(rest)
			h.Len += at
			return h, err
		}
		changed = changed || rest[0] == recordCCS
		if len(rest) < recordHeader {
			return Hello{}, ErrShort
		}
		size := int(rest[3])<<8 | int(rest[4])
		if rest[1] != 3 || size == 0 || size > maxCipherText || rest[0] == recordCCS && size != 1 {
			return Hello{}, refuse(BadClientHello, "TLS client hello: what stands before the second one is no early data")
		}
		if at += recordHeader + size; at > len(unsafe) {
			return Hello{}, ErrShort
		}
	}
}

// Clear follows what a client sends after the server's hello until it says that it encrypts from now on. The zero value
// is ready. TLS 1.2 has handshake messages of the client in the clear there; one of them must not be another hello, which
// servers took that knew "step-up" cryptography, and which may name another place. In TLS 1.3 there are none.
type Clear struct {
	start [messageHeader]byte
	got   int
	skip  int
	total int
}

// MaxClearBytes is how much of a handshake may be in the clear: a chain of certificates, above all.
const MaxClearBytes = 256 << 10

// Next looks at the next record, of which unsafe has at least five bytes. encrypted tells that what follows can't be read;
// size is how many bytes the record has, with its header: with fewer in unsafe, ask again with all of them.
func (c *Clear) Next(unsafe []byte) (size int, encrypted bool, err error) {
	kind := unsafe[0]
	size = recordHeader + int(unsafe[3])<<8 + int(unsafe[4])
	switch {
	case unsafe[1] != 3 || size == recordHeader || size > recordHeader+maxCipherText:
		return 0, false, refuse(BadClientHello, "TLS: a record that can't be read")
	case kind == recordCCS, kind == recordData:
		return size, true, nil
	case kind != recordAlert && kind != recordHandshake:
		return 0, false, refuse(BadClientHello, "TLS: a record of an unknown type inside the handshake")
	case len(unsafe) < size:
		return size, false, nil
	}
	if c.total += size; c.total > MaxClearBytes {
		return 0, false, refuse(BadClientHello, "TLS: more than 256 KiB of a handshake in the clear")
	}
	if kind == recordAlert {
		return size, false, nil
	}
	for b := unsafe[recordHeader:size]; len(b) > 0; {
		n := min(c.skip, len(b))
		c.skip -= n
		b = b[n:]
		n = copy(c.start[c.got:], b)
		c.got += n
		b = b[n:]
		if c.got > 0 && c.start[0] == 1 {
			return 0, false, refuse(BadClientHello, "TLS: a second client hello that nobody asked for")
		}
		if c.got == messageHeader {
			c.got, c.skip = 0, int(c.start[1])<<16|int(c.start[2])<<8|int(c.start[3])
		}
	}
	return size, false, nil
}

// MayHello tells whether what a client begins with could be taken for TLS although it isn't a handshake record: alerts,
// which some servers skip before the hello, and the hello of SSLv2, which has no server name. need is how many bytes it
// takes to tell, 0 once it is told.
func MayHello(unsafe []byte) (yes bool, need int) {
	n := len(unsafe)
	switch {
	case n == 0:
		return false, 1
	case unsafe[0] >= recordCCS && unsafe[0] <= recordLast:
		if n < 2 {
			return false, 2
		}
		return unsafe[1] == 3, 0
	case unsafe[0]&0x80 == 0:
		return false, 0
	case n < 3:
		return false, 3
	case unsafe[2] != 1:
		return false, 0
	case n < 4:
		return false, 4
	case unsafe[3] != 3 && unsafe[3] != 0:
		return false, 0
	case n < 11:
		return false, 11
	}
	// RFC 5246, E.2: length, type, version, three lengths that fill the record exactly.
	number := func(at int) int { return int(unsafe[at])<<8 | int(unsafe[at+1]) }
	return number(0)&0x7fff == 9+number(5)+number(7)+number(9), 0
}
