// SPDX-License-Identifier: Apache-2.0

// Package wire reads HTTP/1 heads and chunked bodies as a proxy must: in exactly one way, or not at all.
//
// Request smuggling lives on two parties that read the same bytes differently. So what is sent on is never
// what came in: a head is cut into parts, each part is checked, framing and Host are written anew, and
// everything that parsers are known to disagree about is refused: lines that don't end in CRLF, folded lines,
// space before a colon, bytes that aren't field text, two of Host, Content-Length or Transfer-Encoding (equal
// ones too), Content-Length beside Transfer-Encoding, any coding but chunked, chunk sizes in other than plain
// hexadecimal (RFC 9112, 6.3 and 11.2).
//
//	head, err := wire.Peek(br)                 // bounded; the bytes stay in br
//	err = request.Parse(head)
//	out = request.AppendFields(out)            // end to end fields only
//	br.Discard(len(head))
//
// Errors are *Error with the status to answer, or those of the reader. It doesn't decide about targets, hosts
// or methods, and doesn't protect from a server that reads a well-formed message wrongly. It fails closed: an
// unclear message is an error, and nothing after it on the same connection may be read.
package wire
