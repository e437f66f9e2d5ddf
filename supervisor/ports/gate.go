// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"agentrun/internal/wire"
)

const maxInterim = 8 // statuses below 200 before the final one

// statuses and words of refusals.
var refusals = map[Code]struct {
	status int
	text   string
}{
	NoToken:     {401, "This port asks for a secret. agentrun port link REF PORT makes a link that opens it once; programs send Authorization: Bearer TOKEN."},
	WrongHost:   {403, "This port is published under another name."},
	OtherSite:   {403, "A page of another place made this request."},
	BadRequest:  {400, "No such request is passed on."},
	BadAnswer:   {502, "The server in the sandbox gave no answer of HTTP."},
	TooMany:     {503, "Too many connections to the sandbox are open."},
	NoServer:    {502, "Nobody listens on this port in the sandbox."},
	Frozen:      {503, "The run is frozen: agentrun thaw lets it go on."},
	Quarantined: {403, "The agent is in quarantine."},
	KeyInvalid:  {403, "The key that the run was started with has ended."},
	Stopped:     {403, "The safety loop has stopped the agent."},
	Ended:       {503, "The run has ended."},
	Unknown:     {503, "What holds for the run can't be told."},
}

// http is one request and its response. There is no second one: each has to be decided and cleaned, and after this one nothing that the
// client sends goes to the sandbox, whatever the server there says.
func (p *passage) http() Code {
	br := bufio.NewReaderSize(p.client, wire.MaxHead)
	head, err := wire.Peek(br)
	if err != nil {
		return p.refuse(BadRequest, err)
	}
	var r wire.Request
	if err := r.Parse(head); err != nil {
		return p.refuse(BadRequest, err)
	}
	v := p.door.judge(&r)
	if v.code != OK {
		return p.refuse(v.code, nil)
	}
	if v.to != "" {
		p.redirect(v)
		return OK
	}
	if code := p.connect(); code != OK {
		return p.refuse(code, nil)
	}
	p.lively()
	out, code := p.door.request(&r, v)
	if code != OK {
		return p.refuse(code, nil)
	}
	asked, waits := r.HasBody(), r.Continue && br.Buffered() == len(head)
	body := r.Fields // by value: what it says of the body doesn't lie in br
	if _, err := br.Discard(len(head)); err != nil {
		return BadRequest
	}
	if _, err := p.server.Write(out); err != nil {
		return p.refuse(BadAnswer, nil)
	}
	if v.upgrade {
		return p.respond(br, v)
	}
	if asked && waits {
		if _, err := io.WriteString(p.client, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return OK
		}
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		if asked {
			_ = send(p.server, &body, br)
		}
		_, _ = io.Copy(io.Discard, br)
		p.end(OK) // the client has left: the server needn't go on
	}()
	code = p.respond(nil, v)
	_ = p.server.Close()
	p.part(code)
	<-heard
	return code
}

// request is what the sandbox is sent.
func (d *Door) request(r *wire.Request, v verdict) ([]byte, Code) {
	out := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.Target, r.Host)
	out = r.AppendFields(out)
	if v.upgrade {
		out = append(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	} else {
		out = appendFraming(append(out, "Connection: close\r\n"...), &r.Fields)
	}
	// The last look: the agent's server must not learn what opens its own door. It could open it again, as nobody in particular.
	for _, s := range []string{d.token, d.cookie} {
		if bytes.Contains(out, []byte(s)) {
			return nil, BadRequest
		}
	}
	return append(out, "\r\n"...), OK
}

func appendFraming(b []byte, f *wire.Fields) []byte {
	switch {
	case f.Chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case f.Length >= 0:
		b = fmt.Appendf(b, "Content-Length: %d\r\n", f.Length)
	}
	return b
}

// respond passes the response on. With an upgrade, and only after the server has agreed to it, what client holds follows to the server.
func (p *passage) respond(client *bufio.Reader, v verdict) Code {
	br := bufio.NewReaderSize(p.server, wire.MaxHead)
	for range maxInterim {
		head, err := wire.Peek(br)
		if err != nil {
			return p.refuse(BadAnswer, nil)
		}
		var r wire.Response
		if err := r.Parse(head); err != nil {
			return p.refuse(BadAnswer, nil)
		}
		if r.Status == 101 && !(v.upgrade && r.WebSocket()) {
			return p.refuse(BadAnswer, nil)
		}
		if r.Status < 200 && r.Status != 101 {
			_, _ = br.Discard(len(head))
			continue
		}
		p.door.clean(&r, v)
		out := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n", r.Status, r.Reason)
		if !v.own {
			out = append(out, "Cache-Control: no-store\r\n"...)
		}
		out = r.AppendFields(out)
		body := !r.Bodiless(v.method)
		if r.Status == 101 {
			out = append(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
		} else if out = append(out, "Connection: close\r\n"...); body || v.method == "HEAD" {
			out = appendFraming(out, &r.Fields)
		}
		_, _ = br.Discard(len(head))
		if _, err := p.client.Write(append(out, "\r\n"...)); err != nil {
			return OK
		}
		switch {
		case r.Status == 101:
			p.relay(client, br)
		case body:
			if err := send(p.client, &r.Fields, br); err != nil {
				p.end(OK) // not by a farewell: what is cut short must not look whole
			}
		}
		return OK
	}
	return p.refuse(BadAnswer, nil)
}

// send passes a body on, framed anew.
func send(to io.Writer, f *wire.Fields, br *bufio.Reader) error {
	body := f.Body(br)
	if !f.Chunked {
		_, err := io.Copy(to, body)
		return err
	}
	b := make([]byte, 32<<10)
	for {
		n, err := body.Read(b)
		if n > 0 {
			// One write, so that what trickles, as events do, doesn't wait.
			if _, werr := to.Write(append(append(fmt.Appendf(nil, "%x\r\n", n), b[:n]...), "\r\n"...)); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			_, err = io.WriteString(to, "0\r\n\r\n")
			return err
		}
		if err != nil {
			return err
		}
	}
}

// refuse answers with a short page.
func (p *passage) refuse(code Code, why error) Code {
	of := refusals[code]
	if e, ok := errors.AsType[*wire.Error](why); ok {
		of.status, of.text = e.Status, e.Text
	} else if why != nil || of.status == 0 {
		return code // whoever sent half a head, or was cut, reads no page
	}
	p.say(code, of.status, of.text, "")
	return code
}

func (p *passage) redirect(v verdict) {
	fields := "Location: " + v.to + "\r\n"
	if v.cookie != "" {
		fields += "Set-Cookie: " + v.cookie + "; Path=/; HttpOnly; SameSite=Strict\r\n"
	}
	p.say(OK, 303, "It is there.", fields)
}

func (p *passage) say(code Code, status int, text, fields string) {
	text = "agentrun: " + text + "\n"
	if status == 401 {
		fields = "WWW-Authenticate: Bearer\r\n"
	}
	p.within(farewell, code)
	_, _ = fmt.Fprintf(p.client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n"+
		"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n%s\r\n%s",
		status, cmp.Or(reasons[status], "Refused"), len(text), fields, text)
	p.part(code)
}

var reasons = map[int]string{
	303: "See Other", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 414: "URI Too Long", 417: "Expectation Failed",
	431: "Request Header Fields Too Large", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}

// part lets the client read the last words: a connection that is closed with something unread in it loses them.
func (p *passage) part(code Code) {
	p.within(farewell, code)
	if p.client.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, p.client)
	}
}
