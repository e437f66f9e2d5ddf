// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Vector is bytes behind their length, as TLS has them.
func Vector(lengthBytes int, parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	length := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	return append(length[4-lengthBytes:], body...)
}

// Extension is one of a hello.
func Extension(kind uint16, data []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), Vector(2, data)...)
}

// Record is a TLS record.
func Record(kind byte, body []byte) []byte { return append([]byte{kind, 3, 3}, Vector(2, body)...) }

// ClientHello is a handshake message that any server of TLS 1.2 or 1.3 reads. It has a server name unless that is empty.
func ClientHello(name string, more ...[]byte) []byte {
	parts := [][]byte{Extension(43, []byte{4, 3, 4, 3, 3}), Extension(10, Vector(2, []byte{0, 29, 0, 24})),
		Extension(13, Vector(2, []byte{4, 3, 8, 4})), Extension(51, Vector(2, []byte{0, 29}, Vector(2, bytes.Repeat([]byte{9}, 32))))}
	if name != "" {
		parts = append(parts, Extension(0, Vector(2, []byte{0}, Vector(2, []byte(name)))))
	}
	body := append([]byte{3, 3}, bytes.Repeat([]byte{7}, 32)...)
	body = append(body, Vector(1, bytes.Repeat([]byte{8}, 32))...)
	body = append(body, Vector(2, []byte{0x13, 1, 0xc0, 0x2f})...)
	body = append(body, 1, 0)
	return append([]byte{1}, Vector(3, append(body, Vector(2, append(parts, more...)...)...))...)
}

// ECH is the extension of an encrypted client hello, with nothing that anybody could decrypt.
func ECH() []byte { return Extension(0xfe0d, append([]byte{0, 0, 1, 0, 1, 9}, Vector(2, nil)...)) }

// ServerHello is a handshake message; retry makes it a HelloRetryRequest (RFC 8446, 4.1.3).
func ServerHello(retry bool) []byte {
	random := bytes.Repeat([]byte{5}, 32)
	if retry {
		random = []byte("\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c")
	}
	body := append([]byte{3, 3}, random...)
	body = append(body, Vector(1, bytes.Repeat([]byte{8}, 32))...)
	body = append(body, 0x13, 1, 0)
	return append([]byte{2}, Vector(3, append(body, Vector(2, Extension(43, []byte{3, 4}), Extension(51, []byte{0, 24}))...))...)
}

// Retrying is a server of many names that never finishes a handshake: it answers the hellos of a connection one after the
// other as Answers says, and keeps what they name. Serve it with World.Raw.
type Retrying struct {
	Answers [][]byte

	mu    sync.Mutex
	names []string
	data  bytes.Buffer
}

// Names are the server names of all hellos so far, in the order in which they came, as crypto/tls reads them.
func (r *Retrying) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.names...)
}

// Data is what came and was no hello: bytes of other records.
func (r *Retrying) Data() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.data.String()
}

// Serve takes one connection.
func (r *Retrying) Serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(hold))
	var message []byte
	answers := r.Answers
	for {
		var head [5]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint16(head[3:]))
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		if head[0] != 22 {
			r.mu.Lock()
			r.data.Write(body)
			r.mu.Unlock()
			continue
		}
		for message = append(message, body...); len(message) > 4; {
			size := 4 + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
			if len(message) < size {
				break
			}
			r.hello(message[:size])
			if message = message[size:]; len(answers) == 0 {
				return
			}
			if _, err := c.Write(answers[0]); err != nil {
				return
			}
			answers = answers[1:]
		}
	}
}

func (r *Retrying) hello(message []byte) {
	if message[0] != 1 {
		return
	}
	config := &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.names = append(r.names, i.ServerName)
		return nil, errors.New("seen")
	}}
	_ = tls.Server(spoken{Reader: bytes.NewReader(Record(22, message))}, config).Handshake() // ends with the error above
}

// spoken is a connection on which everything has been said.
type spoken struct {
	io.Reader
	net.Conn // nil: nothing else is used
}

func (s spoken) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (spoken) Write(b []byte) (int, error)        { return len(b), nil }
func (spoken) Close() error                       { return nil }
func (spoken) SetWriteDeadline(_ time.Time) error { return nil }
