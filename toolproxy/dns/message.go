// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	headerSize = 12
	// maxMessage is what can come and what is announced: the size that fits into any path's packet
	// unfragmented (DNS flag day 2020). A query with everything in it is far smaller.
	maxMessage = 1232
	ttl        = 60 // seconds; what the name means stays the same all the time, but may be forbidden
)

// request is a query that could be read.
type request struct {
	header   dnsmessage.Header
	question *dnsmessage.Question // nil where it isn't repeated in the answer
	edns     bool
	dnssec   bool // the DO bit, which is repeated (RFC 3225)
	version  uint8
}

// reply appends the answer to msg, or nothing, to out.
func (r *Responder) reply(out, msg []byte) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(msg)
	if err != nil || header.Response {
		r.refused.add(nil, 0, Malformed)
		return out
	}
	if header.OpCode != 0 {
		r.refused.add(nil, 0, Unsupported)
		return pack(out, request{header: header}, dnsmessage.RCodeNotImplemented, nil)
	}
	q, ok := parse(&p, header, msg)
	if !ok {
		r.refused.add(nil, 0, Malformed)
		return pack(out, request{header: header}, dnsmessage.RCodeFormatError, nil)
	}
	rcode, address := r.decide(q)
	return pack(out, q, rcode, address)
}

// parse takes one question and at most one OPT record, and not a byte more. The library has parsed names
// safely for long (pointers, lengths, labels with dots in them); what it would still accept and we
// don't is a compressed name, which would make the answer 253 bytes longer than the query.
func parse(p *dnsmessage.Parser, header dnsmessage.Header, msg []byte) (request, bool) {
	q := request{header: header}
	questions, others, additionals := counts(msg)
	end, plain := questionEnd(msg)
	if len(msg) > maxMessage || header.Truncated || questions != 1 || others != 0 || additionals > 1 || !plain {
		return q, false
	}
	question, err := p.Question()
	if err != nil || question.Type == dnsmessage.TypeOPT {
		return q, false
	}
	q.question = &question
	if additionals == 0 {
		return q, end == len(msg)
	}
	size, ok := q.parseOPT(p)
	return q, ok && end+size == len(msg)
}

func counts(msg []byte) (questions, others, additionals int) {
	n := func(at int) int { return int(binary.BigEndian.Uint16(msg[at:])) }
	return n(4), n(6) + n(8), n(10)
}

// questionEnd is where the first question ends, if its name has only plain labels.
func questionEnd(msg []byte) (int, bool) {
	at := headerSize
	for at < len(msg) && msg[at] != 0 {
		if msg[at] > 63 {
			return 0, false
		}
		at += 1 + int(msg[at])
	}
	at += 1 + 4 // the root, type and class
	return at, at <= len(msg)
}

// parseOPT reads the only additional record and tells its size, uncompressed.
func (q *request) parseOPT(p *dnsmessage.Parser) (int, bool) {
	if p.SkipAllQuestions() != nil || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return 0, false
	}
	h, err := p.AdditionalHeader()
	if err != nil || h.Type != dnsmessage.TypeOPT || h.Name.Length != 1 {
		return 0, false
	}
	opt, err := p.OPTResource()
	if err != nil {
		return 0, false
	}
	size := 1 + 10
	for _, o := range opt.Options {
		size += 4 + len(o.Data)
	}
	q.edns, q.dnssec, q.version = true, h.TTL&(1<<15) != 0, uint8(h.TTL>>16) //nolint:gosec // one byte of it is meant
	return size, true
}

// badVersion is BADVERS: only its low four bits stand in the header, the others in OPT (RFC 6891, 6.1.3).
const badVersion dnsmessage.RCode = 16

// decide gives the code and, for an allowed name's A or AAAA, the record.
func (r *Responder) decide(q request) (dnsmessage.RCode, dnsmessage.ResourceBody) {
	raw := q.question.Name.Data[:q.question.Name.Length]
	raw = bytes.TrimSuffix(raw, []byte("."))
	refuse := func(why Reason, rcode dnsmessage.RCode) (dnsmessage.RCode, dnsmessage.ResourceBody) {
		r.refused.add(raw, uint16(q.question.Type), why)
		return rcode, nil
	}
	switch t := q.question.Type; {
	case q.version != 0:
		return refuse(Unsupported, badVersion)
	case q.question.Class != dnsmessage.ClassINET:
		return refuse(Unsupported, dnsmessage.RCodeRefused)
	case t == 0 || t >= 128 && t <= 255: // questions about questions, transfers, transactions (RFC 6895, 3.1)
		return refuse(Unsupported, dnsmessage.RCodeNotImplemented)
	}
	name, ok := normal(raw)
	if !ok {
		return refuse(NameInvalid, dnsmessage.RCodeNameError)
	}
	if !r.allow(name) {
		if name == "localhost" || strings.HasSuffix(name, ".localhost") {
			return dnsmessage.RCodeSuccess, loopback[q.question.Type]
		}
		return refuse(NameNotAllowed, dnsmessage.RCodeNameError)
	}
	if q.question.Type != dnsmessage.TypeA && q.question.Type != dnsmessage.TypeAAAA {
		return dnsmessage.RCodeSuccess, nil
	}
	n, ok := r.names.number(name)
	if !ok {
		return refuse(TableFull, dnsmessage.RCodeServerFailure)
	}
	if q.question.Type == dnsmessage.TypeA {
		return dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: addr4(n)}
	}
	return dnsmessage.RCodeSuccess, &dnsmessage.AAAAResource{AAAA: addr6(n)}
}

// loopback is what localhost and all below it means (RFC 6761, 6.3), to programs in roots whose /etc/hosts doesn't say it: an image's
// has no such file as a rule, since engines bring one.
var loopback = map[dnsmessage.Type]dnsmessage.ResourceBody{
	dnsmessage.TypeA:    &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
	dnsmessage.TypeAAAA: &dnsmessage.AAAAResource{AAAA: netip.IPv6Loopback().As16()},
}

// normal is the name in lower case; false if it can't be the name of a host. Bytes that mean something
// elsewhere (NUL, space, slash, percent, at) get no further than this.
func normal(raw []byte) (string, bool) {
	if len(raw) == 0 || len(raw) > maxName {
		return "", false
	}
	name := bytes.ToLower(raw)
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "", false
		}
	}
	return string(name), true
}

// pack writes what can't be too long: header, question, one record whose name points to the question,
// OPT. Where the library objects all the same, nothing is answered.
func pack(out []byte, q request, rcode dnsmessage.RCode, address dnsmessage.ResourceBody) []byte {
	b := dnsmessage.NewBuilder(out, dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RCode: rcode & 15,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true,
		CheckingDisabled: q.header.CheckingDisabled,
	})
	b.EnableCompression()
	if q.question != nil && (b.StartQuestions() != nil || b.Question(*q.question) != nil) {
		return out
	}
	if address != nil && !packAddress(&b, q.question, address) {
		return out
	}
	if q.edns {
		var h dnsmessage.ResourceHeader
		if h.SetEDNS0(maxMessage, rcode, q.dnssec) != nil ||
			b.StartAdditionals() != nil || b.OPTResource(h, dnsmessage.OPTResource{}) != nil {
			return out
		}
	}
	msg, err := b.Finish()
	if err != nil {
		return out
	}
	return msg
}

func packAddress(b *dnsmessage.Builder, q *dnsmessage.Question, address dnsmessage.ResourceBody) bool {
	if b.StartAnswers() != nil {
		return false
	}
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: ttl}
	switch a := address.(type) {
	case *dnsmessage.AResource:
		return b.AResource(h, *a) == nil
	case *dnsmessage.AAAAResource:
		return b.AAAAResource(h, *a) == nil
	}
	return false
}
