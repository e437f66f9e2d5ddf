// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

type rw struct {
	io.Reader
	io.Writer
}

func TestAttachRefusesForeignFrames(t *testing.T) {
	for name, c := range map[string]struct {
		server bool
		text   string
		want   error
	}{
		"nothing":            {true, "", io.EOF},
		"half a head":        {true, "\x00\x00", io.ErrUnexpectedEOF},
		"half a payload":     {true, "\x00\x00\x00\x00\x05abc", io.ErrUnexpectedEOF},
		"no payload":         {true, "\x00\x00\x00\x00\x05", io.ErrUnexpectedEOF},
		"too long":           {true, "\x00\x00\x00\x80\x01", ErrFrame},
		"4 GiB":              {true, "\x00\xff\xff\xff\xff", ErrFrame},
		"unknown stream":     {true, "\x05\x00\x00\x00\x00", ErrFrame},
		"output from us":     {true, "\x01\x00\x00\x00\x01a", ErrFrame},
		"an exit from us":    {true, "\x04\x00\x00\x00\x04\x00\x00\x00\x00", ErrFrame},
		"input from the run": {false, "\x00\x00\x00\x00\x01a", ErrFrame},
		"a short size":       {true, "\x03\x00\x00\x00\x02\x00\x50", ErrFrame},
		"a long exit":        {false, "\x04\x00\x00\x00\x05\x00\x00\x00\x00\x00", ErrFrame},
	} {
		conn := NewAttachClient(rw{strings.NewReader(c.text), io.Discard})
		if c.server {
			conn = NewAttachServer(rw{strings.NewReader(c.text), io.Discard})
		}
		if s, p, err := conn.Next(); !errors.Is(err, c.want) {
			t.Errorf("%s: got %d, %q, %v, want %v", name, s, p, err, c.want)
		}
	}
	conn := NewAttachClient(rw{nil, io.Discard})
	for _, s := range []Stream{Stdout, Stderr, Exit, 5} {
		if err := conn.Send(s, []byte("abcd")); !errors.Is(err, ErrFrame) {
			t.Errorf("send %d: got %v, want %v", s, err, ErrFrame)
		}
	}
}

func TestAttachCarriesSizeAndExit(t *testing.T) {
	var b bytes.Buffer
	client := NewAttachClient(rw{nil, &b})
	if err := client.SendResize(24, 80); err != nil {
		t.Fatal(err)
	}
	s, p, err := NewAttachServer(rw{&b, nil}).Next()
	rows, columns, serr := size(p)
	if s != Resize || rows != 24 || columns != 80 || err != nil || serr != nil {
		t.Errorf("got %d %d×%d, %v, %v", s, rows, columns, err, serr)
	}
	if err := NewAttachServer(rw{nil, &b}).SendExit(137); err != nil {
		t.Fatal(err)
	}
	s, p, err = NewAttachClient(rw{&b, nil}).Next()
	if code, cerr := ExitCode(p); s != Exit || code != 137 || err != nil || cerr != nil {
		t.Errorf("got %d %d, %v, %v", s, code, err, cerr)
	}
	w := client.Writer(Stdin)
	if n, err := w.Write(nil); n != 0 || err != nil || b.Len() != 0 {
		t.Errorf("writing nothing: got %d, %v, %d bytes, want no frame", n, err, b.Len())
	}
	if n, err := w.Write(make([]byte, 2*MaxFrame+1)); n != 2*MaxFrame+1 || err != nil || b.Len() != n+3*frameHead {
		t.Errorf("got %d, %v, %d bytes, want three frames", n, err, b.Len())
	}
}

// What is read and sent on by the other end is the same again, and nothing is read past an error.
func FuzzAttach(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02hi\x03\x00\x00\x00\x04\x00\x18\x00\x50\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x80\x00"))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		var out bytes.Buffer
		in, to := NewAttachServer(rw{bytes.NewReader(unsafe), nil}), NewAttachClient(rw{nil, &out})
		for {
			s, p, err := in.Next()
			if err != nil {
				break
			}
			if len(p) > MaxFrame {
				t.Fatalf("%d bytes in a frame", len(p))
			}
			if err := to.Send(s, p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(unsafe, out.Bytes()) {
			t.Fatalf("got %q of %q", out.Bytes(), unsafe)
		}
	})
}

// size reads the payload of a Resize frame.
func size(p []byte) (rows, columns uint16, err error) {
	if len(p) != 4 {
		return 0, 0, ErrFrame
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), nil
}
