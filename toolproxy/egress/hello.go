// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"slices"
)

const (
	maxHello      = 16 << 10 // bytes of handshake message; a hello with post-quantum keys has about 2000
	maxRecords    = 32       // records that it may be spread over
	maxExtensions = 64       // browsers send about 18
	recordHeader  = 5
	messageHeader = 4
	maxCipherText = 16<<10 + 2048 // bytes of an encrypted record (RFC 5246, 6.2.3; TLS 1.3 allows less)

	// Types of records. All have their length at the same place, whatever is in them.
	recordCCS       = 20
	recordAlert     = 21
	recordHandshake = 22
	recordData      = 23
	recordLast      = 24 // heartbeat

	// MaxHelloBytes is the most that a ClientHello is read from. Whoever has read as much without an end may stop.
	MaxHelloBytes = maxHello + maxRecords*recordHeader
)

// ErrShort is returned while what has been read is the beginning of a ClientHello and may become one.
var ErrShort = errors.New("TLS client hello: more bytes are needed")

// Hello is what a TLS client says before anything is encrypted.
type Hello struct {
	Name Host // server_name, zero if the client sent none
	// Hidden tells that the client sent an encrypted hello (ECH, or its forerunner), in which another name may stand; Name
	// is the outer one then. Browsers send a meaningless one on purpose ("GREASE"), and nobody on the way can tell.
	Hidden bool
	Len    int // bytes that the hello took, with record headers; whatever follows is the client's next record
}

// ParseClientHello reads the ClientHello at the start of what a client sent, across TLS records. It needs no more memory
// than MaxHelloBytes, keeps nothing of its argument, and never panics. The error is ErrShort, or a *Refusal: for what is
// no TLS, for more than one name, one that isn't a host name, trailing or missing bytes inside, an extension that comes
// twice, more than 32 records or 16 KiB.
//
// Refused are things that some servers take: two readers of the same bytes must not find two names.
func ParseClientHello(unsafe []byte) (Hello, error) {
	message, used, err := reassemble(unsafe)
	if err != nil {
		return Hello{}, err
	}
	h, why := parseHello(message)
	if why != "" {
		return Hello{}, refuse(BadClientHello, "TLS client hello: %s", why)
	}
	if len(h.name) > 0 {
		if !isASCII(string(h.name)) { // RFC 6066, 3: A-labels, and servers compare bytes
			return Hello{}, refuse(BadName, "server name %.64q: not ASCII", h.name)
		}
		if h.Name, err = ParseHost(string(h.name)); err != nil {
			return Hello{}, err
		}
	}
	h.Len = used
	return h.Hello, nil
}

// reassemble returns the body of the handshake message and how many bytes of records it took. Each check is made on the
// first byte that allows it, so that a client which sends something else is refused at once and not after a timeout.
func reassemble(unsafe []byte) (body []byte, used int, err error) {
	bad := func(why string) ([]byte, int, error) {
		return nil, 0, refuse(BadClientHello, "TLS client hello: %s", why)
	}
	var fragments [maxRecords][]byte
	var start [messageHeader]byte
	have, declared, want := 0, 0, 0
	for n := range fragments {
		rest := unsafe[used:]
		if len(rest) > 0 && rest[0] != recordHandshake {
			return bad("not a TLS handshake record")
		}
		if len(rest) > 1 && rest[1] != 3 || len(rest) > 2 && (rest[2] < 1 || rest[2] > 3) {
			return bad("record of an unknown version")
		}
		if len(rest) < recordHeader {
			return nil, 0, ErrShort
		}
		size := int(rest[3])<<8 | int(rest[4])
		if size == 0 || size > maxHello {
			return bad("record of no or of too many bytes")
		}
		rest = rest[recordHeader:]
		fragment := rest[:min(size, len(rest))]
		copy(start[min(have, messageHeader):], fragment)
		fragments[n] = fragment
		have += len(fragment)
		declared += size
		used += recordHeader + size
		if have > 0 && start[0] != 1 {
			return bad("another handshake message")
		}
		if have >= messageHeader {
			want = messageHeader + (int(start[1])<<16 | int(start[2])<<8 | int(start[3]))
			if want > maxHello {
				return bad("longer than 16 KiB")
			}
			if declared > want {
				return bad("data after it in the same record")
			}
		}
		if len(fragment) < size {
			return nil, 0, ErrShort
		}
		if want == declared && want > 0 {
			return join(fragments[:n+1], want)[messageHeader:], used, nil
		}
	}
	return bad("spread over too many records")
}

func join(fragments [][]byte, size int) []byte {
	if len(fragments) == 1 {
		return fragments[0]
	}
	message := make([]byte, 0, size)
	for _, f := range fragments {
		message = append(message, f...)
	}
	return message
}

// fields reads the vectors of TLS (RFC 8446, 3.4). After the first that isn't there it is broken for good.
type fields struct {
	b      []byte
	broken bool
}

func (f *fields) take(n int) []byte {
	if f.broken || n > len(f.b) {
		f.broken = true
		return nil
	}
	taken := f.b[:n]
	f.b = f.b[n:]
	return taken
}

func (f *fields) number(bytes int) int {
	n := 0
	for _, b := range f.take(bytes) {
		n = n<<8 | int(b)
	}
	return n
}

func (f *fields) vector(lengthBytes int) []byte { return f.take(f.number(lengthBytes)) }

type rawHello struct {
	Hello
	name []byte
}

func parseHello(body []byte) (h rawHello, why string) {
	f := fields{b: body}
	version := f.number(2)
	f.take(32) // random
	session := f.vector(1)
	suites := f.vector(2)
	compressions := f.vector(1)
	switch {
	case f.broken:
		return h, "cut off"
	case version < 0x0301 || version > 0x0303: // TLS 1.3 says 0x0303 too
		return h, "unknown version"
	case len(session) > 32 || len(suites) < 2 || len(suites)%2 != 0 || len(compressions) == 0:
		return h, "field of an impossible length"
	case len(f.b) == 0:
		return h, "" // no extensions, hence no name
	}
	extensions := f.vector(2)
	if f.broken || len(f.b) != 0 {
		return h, "extensions cut off, or data after them"
	}
	return h, h.readExtensions(extensions)
}

func (h *rawHello) readExtensions(b []byte) (why string) {
	var seen [maxExtensions]uint16
	f := fields{b: b}
	for n := 0; len(f.b) > 0; n++ {
		kind := uint16(f.number(2))
		data := f.vector(2)
		if f.broken {
			return "extension cut off"
		}
		if n == maxExtensions {
			return "more than 64 extensions"
		}
		if slices.Contains(seen[:n], kind) {
			return "extension that comes twice"
		}
		seen[n] = kind
		switch kind {
		case 0: // server_name
			if why := h.readNames(data); why != "" {
				return why
			}
		case 0xfe0d, 0xffce: // encrypted_client_hello, encrypted_server_name
			h.Hidden = true
		}
	}
	return ""
}

// readNames takes exactly one name of type host_name: the list has never had another type, and readers differ in which
// of two names they use.
func (h *rawHello) readNames(b []byte) (why string) {
	f := fields{b: b}
	list := fields{b: f.vector(2)}
	if f.broken || len(f.b) != 0 {
		return "server name list cut off, or data after it"
	}
	kind := list.number(1)
	name := list.vector(2)
	switch {
	case list.broken:
		return "server name cut off"
	case kind != 0:
		return "server name of an unknown type"
	case len(name) == 0:
		return "empty server name"
	case len(list.b) != 0:
		return "more than one server name"
	}
	h.name = name
	return ""
}
