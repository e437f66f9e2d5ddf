// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"agentrun/internal/wire"
)

const (
	tokenName    = "agentrun_token" //nolint:gosec // the name of a parameter
	cookiePrefix = "agentrun_port_"
	maxLinks     = 16 // that were not used; the oldest goes
)

// secret has 128 bits.
func secret() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Token lets programs in: Authorization: Bearer.
func (d *Door) Token() string { return d.token }

// Link makes a link that lets one browser in, once.
func (d *Door) Link() string {
	s := secret()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.links) == maxLinks {
		d.links = d.links[1:]
	}
	d.links = append(d.links, s)
	return fmt.Sprintf("http://%s/?%s=%s", d.at, tokenName, s)
}

// redeem uses a link up.
func (d *Door) redeem(s string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := -1
	for i, l := range d.links {
		if same(l, s) {
			found = i
		}
	}
	if found >= 0 {
		d.links = slices.Delete(d.links, found, found+1)
	}
	return found >= 0
}

// cookieName is of this Door: cookies of one host are of all its ports.
func (d *Door) cookieName() string { return fmt.Sprint(cookiePrefix, d.at.Port()) }

// verdict is what is done with a request.
type verdict struct {
	code    Code
	to      string // a redirect there; empty: it goes to the sandbox
	cookie  string // set by it
	method  string
	upgrade bool
	own     bool // what the browser calls the page is this Door's alone, as Options.Own has it of the address
	tells   bool // a browser says of requests to this Host where they come from
}

// judge decides about a request, and takes out of it what is ours.
func (d *Door) judge(r *wire.Request) verdict {
	v := verdict{code: OK, method: string(r.Method), upgrade: r.WebSocket(), own: d.opt.Own && !d.localhost(string(r.Host)), tells: d.tells(string(r.Host))}
	no := func(c Code) verdict { v.code = c; return v }
	if r.Target[0] != '/' || v.method == "CONNECT" || r.Minor == 0 || v.upgrade && r.HasBody() {
		return no(BadRequest)
	}
	if !v.own && value(r, "service-worker") != "" { // it would answer for what is published here later, its link before us
		return no(BadRequest)
	}
	if !d.ours(string(r.Host)) { // DNS rebinding: a name of the attacker's leads here, and its page is of the same origin
		return no(WrongHost)
	}
	if c := d.opt.Allow(d.ctx); c != OK { // before a link is used up
		return no(c)
	}
	bearer, cookie := d.stripBearer(r), d.stripCookies(r)
	if token, rest, ok := cutToken(string(r.Target)); ok {
		switch {
		case v.method == "GET" && d.redeem(token):
			v.cookie = d.cookieName() + "=" + d.cookie
		case !cookie:
			return no(NoToken)
		}
		v.to = "http://" + string(r.Host) + rest // whole: a path that begins with two slashes would name a host
		return v
	}
	switch {
	case bearer:
	case !cookie:
		return no(NoToken)
	case otherSite(r, v.tells):
		return no(OtherSite)
	}
	return v
}

// ours tells whether a Host is what the port was published as. An address can't be rebound, so a Door on all addresses has each of them.
func (d *Door) ours(host string) bool {
	if d.localhost(host) {
		return d.at.Addr().IsLoopback() || d.at.Addr().IsUnspecified()
	}
	at, err := netip.ParseAddrPort(host)
	if err != nil && d.at.Port() == 80 {
		var a netip.Addr
		a, err = netip.ParseAddr(strings.Trim(host, "[]"))
		at = netip.AddrPortFrom(a, 80)
	}
	return err == nil && (at == d.at || d.at.Addr().IsUnspecified() && at.Port() == d.at.Port())
}

// localhost is what other servers have with us, as at the near end of a tunnel (ssh -L).
func (d *Door) localhost(host string) bool {
	return strings.EqualFold(host, fmt.Sprintf("localhost:%d", d.at.Port()))
}

// tells whether browsers send Fetch Metadata to a Host: to origins that they call trustworthy, which without TLS are loopback addresses.
func (d *Door) tells(host string) bool {
	at, err := netip.ParseAddrPort(host)
	if err != nil {
		addr, _ := netip.ParseAddr(strings.Trim(host, "[]"))
		at = netip.AddrPortFrom(addr, 80)
	}
	return d.localhost(host) || at.Addr().IsLoopback()
}

// otherSite tells whether a page of another origin made a request that the browser let have the cookie: ports of one host are of one site, and
// the page of another sandbox has another port. Where a browser doesn't tell, a page does by Referer, and with none it is the address bar's, by
// a field that no page can have sent with what it shows or runs.
func otherSite(r *wire.Request, tells bool) bool {
	site, origin, referer, own := value(r, "sec-fetch-site"), value(r, "origin"), value(r, "referer"), "http://"+string(r.Host)
	switch {
	case site != "":
		return site != "same-origin" && site != "none"
	case origin != "":
		return !strings.EqualFold(origin, own)
	case tells:
		return false
	case referer != "":
		return !strings.HasPrefix(strings.ToLower(referer)+"/", strings.ToLower(own)+"/")
	}
	return value(r, "upgrade-insecure-requests") != "1"
}

func value(r *wire.Request, name string) string {
	for _, l := range r.Lines {
		if strings.EqualFold(string(l.Name), name) {
			return string(l.Value)
		}
	}
	return ""
}

// stripBearer tells whether the request has the token, which is taken out. Another authorization is the server's business.
func (d *Door) stripBearer(r *wire.Request) (ok bool) {
	for i := range r.Lines {
		l := &r.Lines[i]
		if !strings.EqualFold(string(l.Name), "authorization") {
			continue
		}
		scheme, token, _ := strings.Cut(string(l.Value), " ")
		if strings.EqualFold(scheme, "bearer") && same(strings.TrimSpace(token), d.token) {
			l.Drop, ok = true, true
		}
	}
	return ok
}

// stripCookies tells whether the request has the cookie. Those of all Doors are taken out: browsers send them to every port of a host.
func (d *Door) stripCookies(r *wire.Request) (ok bool) {
	for i := range r.Lines {
		l := &r.Lines[i]
		if !strings.EqualFold(string(l.Name), "cookie") {
			continue
		}
		var kept [][]byte
		for part := range bytes.SplitSeq(l.Value, []byte(";")) {
			part = bytes.TrimSpace(part)
			name, value, _ := strings.Cut(string(part), "=")
			if ofDoor(name) {
				ok = name == d.cookieName() && same(value, d.cookie) || ok
			} else if len(part) > 0 {
				kept = append(kept, part)
			}
		}
		l.Value, l.Drop = bytes.Join(kept, []byte("; ")), l.Drop || len(kept) == 0
	}
	return ok
}

func ofDoor(name string) bool {
	name = strings.TrimSpace(name)
	return len(name) >= len(cookiePrefix) && strings.EqualFold(name[:len(cookiePrefix)], cookiePrefix)
}

// clean takes out of a response what would change how the browser stands to Doors: their cookies, those of all ports at once, and, at an
// address that isn't its own, what it may keep. A page that was kept would be shown in place of another run's, with that one's cookie. Where
// only Referer says whose requests are the page's own, it isn't switched off.
func (d *Door) clean(r *wire.Response, v verdict) {
	for i := range r.Lines {
		l := &r.Lines[i]
		name, _, _ := strings.Cut(string(l.Value), "=")
		switch strings.ToLower(string(l.Name)) {
		case "set-cookie":
			l.Drop = l.Drop || ofDoor(name)
		case "clear-site-data", "alt-svc", "strict-transport-security":
			l.Drop = true
		case "cache-control", "expires", "pragma":
			l.Drop = l.Drop || !v.own
		case "referrer-policy":
			l.Drop = l.Drop || !v.tells
		}
	}
}

// cutToken takes the token out of a target's query.
func cutToken(target string) (token, rest string, ok bool) {
	path, query, has := strings.Cut(target, "?")
	if !has {
		return "", target, false
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(part, "="); name == tokenName {
			token, ok = value, true
		} else {
			kept = append(kept, part)
		}
	}
	if len(kept) > 0 {
		path += "?" + strings.Join(kept, "&")
	}
	return token, path, ok
}
