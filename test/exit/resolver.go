// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// Resolver stands for the resolver of the host. It knows the names it is told and keeps every question, so that a test can
// tell what got out by a lookup.
type Resolver struct {
	Addr netip.Addr // at port 53, UDP

	conn  net.PacketConn
	mu    sync.Mutex
	names map[string][][]netip.Addr
	asked []string
}

// NewResolver starts one.
func NewResolver() (*Resolver, error) {
	r := &Resolver{Addr: address(), names: map[string][][]netip.Addr{}}
	var err error
	if r.conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(r.Addr, 53).String()); err != nil {
		return nil, err
	}
	go r.serve()
	return r, nil
}

// Answer sets the addresses of a name. With several sets each A question gets the next one, the last for ever: a name that
// points elsewhere between check and connect.
func (r *Resolver) Answer(name string, sets ...[]netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name] = sets
}

// Asked is every name that was asked for, in lower case and without the last dot.
func (r *Resolver) Asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.asked...)
}

// File is the text of a resolv.conf that names it.
func (r *Resolver) File() string {
	return "nameserver " + r.Addr.String() + "\noptions timeout:1 attempts:1\n"
}

// Close ends it.
func (r *Resolver) Close() error { return r.conn.Close() }

func (r *Resolver) serve() {
	b := make([]byte, 1500)
	for {
		n, from, err := r.conn.ReadFrom(b)
		if err != nil {
			return
		}
		var q dnsmessage.Message
		if q.Unpack(b[:n]) != nil || len(q.Questions) != 1 {
			continue
		}
		out, err := r.reply(q)
		if err == nil {
			_, _ = r.conn.WriteTo(out, from)
		}
	}
}

func (r *Resolver) reply(q dnsmessage.Message) ([]byte, error) {
	question := q.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, name)
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true, RecursionDesired: q.RecursionDesired},
		Questions: q.Questions,
	}
	sets, known := r.names[name]
	if !known {
		m.RCode = dnsmessage.RCodeNameError
		return m.Pack()
	}
	for _, a := range sets[0] {
		h := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 0}
		switch {
		case question.Type == dnsmessage.TypeA && a.Is4():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case question.Type == dnsmessage.TypeAAAA && a.Is6():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	if question.Type == dnsmessage.TypeA && len(sets) > 1 {
		r.names[name] = sets[1:]
	}
	return m.Pack()
}
