// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"slices"
	"strconv"
)

// Request is the head of a request. It can be used again and again; Parse sets all of it.
type Request struct {
	Fields
	Method, Target []byte
	Minor          byte   // of HTTP/1
	Host           []byte // nil: none
	Continue       bool   // Expect: 100-continue
}

// Parse reads a head as Peek returns it. The error is an *Error.
func (r *Request) Parse(head []byte) error {
	r.reset()
	r.Host, r.Continue = nil, false
	line, rest, err := nextLine(head)
	if err != nil {
		return err
	}
	if len(line) > MaxLine {
		return &Error{414, "the request line is longer than 8 KiB"}
	}
	if err := r.line(line); err != nil {
		return err
	}
	if err := r.parse(rest, r.special); err != nil {
		return err
	}
	switch {
	case r.Host == nil && r.Minor == 1:
		return bad("no Host")
	case r.Chunked && r.Minor == 0:
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

func (r *Request) line(line []byte) error {
	method, rest, found := bytes.Cut(line, []byte(" "))
	target, version, also := bytes.Cut(rest, []byte(" "))
	if !found || !also || len(method) == 0 || len(target) == 0 {
		return bad("a request line isn't method, target and version")
	}
	if slices.ContainsFunc(method, noToken) {
		return bad("a method with a byte that no method has")
	}
	if slices.ContainsFunc(target, func(c byte) bool { return c <= ' ' || c == 0x7f }) {
		return bad("a control character in the target")
	}
	switch string(version) {
	case "HTTP/1.1":
		r.Minor = 1
	case "HTTP/1.0":
		r.Minor = 0
	default:
		return &Error{505, "neither HTTP/1.1 nor HTTP/1.0"}
	}
	r.Method, r.Target = method, target
	return nil
}

func (r *Request) special(name, value []byte) (drop bool, err error) {
	switch {
	case is(name, "host"):
		if r.Host != nil {
			return false, bad("two of Host")
		}
		r.Host = value
		return true, nil
	case is(name, "expect"):
		if r.Continue || !is(value, "100-continue") {
			return false, &Error{417, "an expectation other than one 100-continue"}
		}
		r.Continue = true
		return true, nil
	}
	return false, nil
}

// HasBody tells whether the request has a body.
func (r *Request) HasBody() bool { return r.Chunked || r.Length > 0 }

// Response is the head of a response. It can be used again and again; Parse sets all of it.
type Response struct {
	Fields
	Status int
	Reason []byte
	Minor  byte
}

// Parse reads a head as Peek returns it. The error is an *Error; its status is for requests.
func (r *Response) Parse(head []byte) error {
	r.reset()
	line, rest, err := nextLine(head)
	if err != nil {
		return err
	}
	if err := r.line(line); err != nil {
		return err
	}
	if err := r.parse(rest, func(_, _ []byte) (bool, error) { return false, nil }); err != nil {
		return err
	}
	if r.Chunked && r.Minor == 0 {
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

func (r *Response) line(line []byte) error {
	if len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return bad("a status line isn't version, status and reason")
	}
	if line[7] != '0' && line[7] != '1' {
		return bad("neither HTTP/1.1 nor HTTP/1.0")
	}
	r.Minor = line[7] - '0'
	status, err := strconv.ParseUint(string(line[9:12]), 10, 16) // takes no sign
	if err != nil {
		return bad("a status isn't a number")
	}
	if r.Status = int(status); r.Status < 100 || r.Status > 599 {
		return bad("a status out of range")
	}
	r.Reason = line[min(13, len(line)):]
	if slices.ContainsFunc(r.Reason, control) {
		return bad("a control character in the reason")
	}
	return nil
}

// Bodiless tells whether a response has no body whatever its fields say (RFC 9112, 6.3).
func (r *Response) Bodiless(method string) bool {
	return method == "HEAD" || r.Status < 200 || r.Status == 204 || r.Status == 304
}
