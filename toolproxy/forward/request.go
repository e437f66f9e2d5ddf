// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"cmp"
	"errors"
	"strings"
	"time"

	"agentrun/internal/wire"
	"agentrun/toolproxy/egress"
)

const unreadable = "(unreadable)"

// serveHTTP answers one request after the other.
func (s *session) serveHTTP() {
	for s.request() {
		if !s.fixed.IsZero() { // between requests the ring still decides about the place
			if !s.begin(s.fixed) {
				return
			}
			continue
		}
		s.flow.idle()
	}
}

// request answers one; false ends the connection.
func (s *session) request() bool {
	s.within(s.p.limits.Idle)
	if _, err := s.br.Peek(1); err != nil {
		return false
	}
	if have, _ := s.br.Peek(s.br.Buffered()); !bytes.Contains(have, []byte("\r\n\r\n")) {
		s.within(s.p.limits.Head) // slow heads hold a place among the connections
	}
	head, err := wire.Peek(s.br)
	if err == nil {
		err = s.req.Parse(head)
	}
	if err != nil {
		if w, ok := errors.AsType[*wire.Error](err); ok {
			s.no(s.nameOf(s.fixed), badRequest(w), false)
		}
		return false
	}
	ask, rt, r := s.understand()
	if r != nil {
		return s.refuseRequest(s.nameOf(ask.Target), r, len(head))
	}
	if rt.Form == egress.AuthorityForm {
		_, _ = s.br.Discard(len(head)) // it is buffered
		s.connect(rt.Target)
		return false
	}
	return s.exchange(ask, rt, len(head))
}

// nameOf is what a record calls the place of a request that asks for t, if that could be read.
func (s *session) nameOf(t egress.Target) string {
	return cmp.Or(t.String(), s.fixed.String(), unreadable)
}

// no refuses and closes. bare leaves the body out, as the answer to HEAD must.
func (s *session) no(name string, r *refusal, bare bool) {
	s.p.refuse(name, r)
	s.last(r.reply(bare, true))
}

// refuseRequest refuses one request. The connection goes on if nothing of it is left to read: a body that was
// announced, or a message that could be read in two ways, leaves the next request's beginning in doubt, which
// is where smuggling begins. The reply is made before the record, since the request's slices end with
// Discard; it is sent after it.
func (s *session) refuseRequest(name string, r *refusal, headLen int) bool {
	closing := s.req.HasBody() || s.closing() || r.status == 400
	reply := r.reply(string(s.req.Method) == "HEAD", closing)
	s.p.refuse(name, r)
	_, _ = s.br.Discard(headLen) // it is buffered
	if closing {
		s.last(reply)
		return false
	}
	_, err := s.conn.Write(reply)
	return err == nil
}

// closing tells whether the client wants the connection to end after this request.
func (s *session) closing() bool { return s.req.Close || s.req.Minor == 0 && !s.req.KeepAlive }

// understand finds out where a request is for, from all places where it says so, which must agree: what
// CONNECT, SOCKS or the address fixed, the target of the request line, the Host header. In a connection to
// one place the absolute form is taken only in the clear and for that place; to the proxy itself nothing else
// is (RFC 9112, 3.2).
func (s *session) understand() (egress.Ask, egress.RequestTarget, *refusal) {
	method := string(s.req.Method)
	rt, err := egress.ParseRequestTarget(method, string(s.req.Target))
	if err != nil {
		return egress.Ask{}, rt, refused(egress.Denied(err))
	}
	target, r := s.fixed, (*refusal)(nil)
	switch {
	case method == "TRACE" || method == "TRACK": // it would echo what the proxy adds
		r = misread(egress.BadMethod, "%s is never passed on", method)
	case rt.Form == egress.AuthorityForm && !s.fixed.IsZero():
		r = misread(egress.BadMethod, "CONNECT inside a connection to %s", s.fixed)
	case rt.Form == egress.AsteriskForm, rt.Form == egress.OriginForm && s.fixed.IsZero():
		r = misread(egress.BadRequestTarget, "this is a proxy: send http://HOST/PATH or CONNECT HOST:PORT")
	case s.fixed.IsZero():
		target = rt.Target
	case rt.Form == egress.AbsoluteForm && (rt.Target != s.fixed || s.secure):
		r = misread(egress.NameMismatch, "the connection is for %s, the request for %s", s.fixed, rt.Target)
	}
	if r != nil {
		return egress.Ask{}, rt, r
	}
	ask := egress.Ask{Ring: s.p.ring(), Target: target, Method: method, Path: rt.Path}
	return ask, rt, s.agree(target, rt.Form)
}

// agree holds the Host header against the target (RFC 9112, 3.2.2 lets a proxy ignore it; the server behind
// may not).
func (s *session) agree(t egress.Target, form egress.Form) *refusal {
	if s.req.Host == nil {
		if s.req.Minor == 0 && (form != egress.OriginForm || !s.fixed.IsZero()) {
			return nil
		}
		return badRequest(&wire.Error{Status: 400, Text: "no Host"})
	}
	if string(s.req.Host) == hostHeader(t, s.secure) {
		return nil
	}
	scheme := egress.HTTP
	if s.secure {
		scheme = egress.HTTPS
	}
	host, err := egress.ParseAuthority(string(s.req.Host), scheme)
	if form == egress.AuthorityForm && err != nil { // clients leave the port out there
		host, err = egress.ParseAuthority(string(s.req.Host), egress.NoScheme)
	}
	if err != nil {
		return refused(egress.Denied(err))
	}
	if form == egress.AuthorityForm && host != t {
		host = withPort(host, t)
	}
	if d := egress.Agree(egress.Claims{Authority: t, Host: host}); !d.Allowed() {
		return refused(d)
	}
	return nil
}

// withPort takes the port of a CONNECT line where the Host header beside it has none; the name must agree as
// ever.
func withPort(host, t egress.Target) egress.Target {
	if host.Port() == 80 && host.Host() == t.Host() && host.Addr() == t.Addr() {
		return t
	}
	return host
}

// hostHeader is the one that goes up.
func hostHeader(t egress.Target, secure bool) string {
	text := t.String()
	if !secure && t.Port() == 80 {
		return strings.TrimSuffix(text, ":80")
	}
	if secure && t.Port() == 443 {
		return strings.TrimSuffix(text, ":443")
	}
	return text
}

// connect makes a tunnel (RFC 9110, 9.3.6).
func (s *session) connect(t egress.Target) {
	s.via = "connect"
	if s.req.HasBody() {
		s.no(t.String(), badRequest(&wire.Error{Status: 400, Text: "CONNECT with a body"}), false)
		return
	}
	s.open(t, func(r *refusal) bool {
		if r != nil {
			s.last(r.reply(false, true))
			return false
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(s.p.limits.Idle)) // an error shows at once
		_, err := s.conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n"))
		return err == nil
	})
}
