// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"agentrun/internal/read"
	"agentrun/toolproxy/dns"
	"agentrun/toolproxy/egress"
)

// ruleset is a configuration made ready: one list that decides, and beside it what is to be read and added.
type ruleset struct {
	list     *egress.List
	rules    []rule         // with intercept
	sockets  []*egress.List // of each rule with websockets
	bounds   []bound        // of each rule that has some
	excluded []pattern
}

type pattern struct {
	host  egress.Host
	addr  netip.Addr
	below bool
}

func (p pattern) fits(t egress.Target) bool {
	switch {
	case t.Addr().IsValid():
		return p.addr == t.Addr()
	case p.below:
		return t.Host().Under(p.host)
	}
	return p.host == t.Host()
}

func parsePattern(unsafe string) (pattern, error) {
	if rest, ok := strings.CutPrefix(unsafe, "*."); ok {
		host, err := egress.ParseHost(rest)
		return pattern{host: host, below: true}, err
	}
	if addr, err := netip.ParseAddr(unsafe); err == nil {
		return pattern{addr: addr}, nil
	}
	host, err := egress.ParseHost(unsafe)
	return pattern{host: host}, err
}

// rule is a Rule with intercept. Whether its methods and paths fit is asked of a list with that rule alone,
// so that they mean here just what they mean there.
type rule struct {
	pattern
	ports   []uint16
	list    *egress.List
	headers []injection
}

type injection struct{ name, secret, prefix, user string }

// bound is what requests that fit a rule may carry, whatever else allows them.
type bound struct {
	list  *egress.List
	body  *int64 // nil: limits.body
	reply int64  // 0: no bound of its own
}

// compile makes ready what the configuration says, and beside it the entries of --allow, among which preset:NAME is a preset.
func compile(c Config, allow []string) (*ruleset, error) {
	r := &ruleset{}
	var entries []string
	var errs []error
	fine := func(key string, i int, err error) bool {
		if err != nil {
			errs = append(errs, read.Under(fmt.Sprintf("%s[%d]", key, i), err))
		}
		return err == nil
	}
	for i, entry := range c.Allow {
		if _, err := egress.ParseEntry(entry); fine("allow", i, err) {
			entries = append(entries, entry)
		}
	}
	for _, entry := range allow {
		name, preset := strings.CutPrefix(entry, presetPrefix)
		if !preset {
			entries = append(entries, entry)
			continue
		}
		lines, err := r.addPreset(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--allow %s%w", presetPrefix, err))
		}
		entries = append(entries, lines...)
	}
	for i, one := range c.Rules {
		lines, err := r.add(one)
		fine("rules", i, err)
		entries = append(entries, lines...)
	}
	for i, name := range c.Presets {
		lines, err := r.addPreset(name)
		fine("presets", i, err)
		entries = append(entries, lines...)
	}
	for i, private := range c.Private {
		if fine("private", i, checkPrivate(private)) {
			entries = append(entries, private)
		}
	}
	for i, excluded := range c.Excluded {
		p, err := parsePattern(excluded)
		fine("intercept_exclude", i, err)
		r.excluded = append(r.excluded, p)
	}
	list, err := egress.NewList(entries)
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.list = list
	return r, nil
}

// add checks one rule and returns it as lines of the list. What needs more than a line is kept beside: the rules
// that intercept, with what they put into requests, and the list of each that lets websockets through.
func (r *ruleset) add(one Rule) (entries []string, err error) {
	switch {
	case one.Host == "" || one.Host == "*":
		return nil, read.Bad("host", "want a name, *.NAME or an address")
	case len(one.Headers) > 0 && !one.Intercept:
		return nil, read.Bad("headers", "only with intercept: a secret doesn't go over the wire in the clear")
	case one.MaxReply < 0 || one.MaxBody != nil && *one.MaxBody < 0:
		return nil, read.Bad("max_body, max_reply", "want bytes, not below 0")
	case len(one.Ports)*max(1, len(one.Paths)) > 256:
		return nil, errors.New("more than 256 combinations of ports and paths")
	}
	if one.Intercept && len(one.Ports) == 0 {
		one.Ports = []uint16{443}
	}
	if one.Intercept && slices.Contains(one.Ports, 80) {
		return nil, read.Bad("ports", "80 is never TLS; leave out intercept, or the port")
	}
	if entries, err = one.entries(); err != nil {
		return entries, err
	}
	list, err := egress.NewList(entries)
	if err != nil {
		return nil, err
	}
	if one.WebSocket {
		r.sockets = append(r.sockets, list)
	}
	if one.MaxBody != nil || one.MaxReply > 0 {
		r.bounds = append(r.bounds, bound{list, one.MaxBody, one.MaxReply})
	}
	if !one.Intercept {
		return entries, nil
	}
	p, err := parsePattern(one.Host)
	if err != nil {
		return nil, err
	}
	made := rule{pattern: p, ports: one.Ports, list: list}
	for name, h := range one.Headers {
		if !headerName(name) {
			return nil, read.Bad("headers."+name, "not a name that may be set")
		}
		if h.Secret == "" || strings.ContainsFunc(h.Prefix, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, read.Bad("headers."+name, "want secret, and a prefix in ASCII")
		}
		if h.User != "" && (h.Prefix != "" || strings.ContainsFunc(h.User, func(c rune) bool { return c <= ' ' || c > '~' || c == ':' })) {
			return nil, read.Bad("headers."+name+".user", "want a name in ASCII without a colon, and no prefix beside it")
		}
		made.headers = append(made.headers, injection{name, h.Secret, h.Prefix, h.User})
	}
	r.rules = append(r.rules, made)
	return entries, nil
}

// entries spells the rule as lines of a list.
func (one Rule) entries() ([]string, error) {
	if strings.ContainsAny(one.Host, " ,") {
		return nil, read.Bad("host", "one, without methods")
	}
	host := one.Host
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() {
		host = "[" + host + "]"
	}
	prefix := ""
	if len(one.Methods) > 0 {
		prefix = strings.Join(one.Methods, ",") + " "
	}
	ports := []string{""}
	if len(one.Ports) > 0 {
		ports = nil
	}
	for _, p := range one.Ports {
		ports = append(ports, ":"+strconv.Itoa(int(p)))
	}
	paths := one.Paths
	if len(paths) == 0 {
		paths = []string{""}
	}
	var lines []string
	for _, port := range ports {
		for _, path := range paths {
			if path != "" && path[0] != '/' {
				return nil, read.Bad("paths", "%.64q doesn't begin with a slash", path)
			}
			lines = append(lines, prefix+host+port+path)
		}
	}
	return lines, nil
}

// checkPrivate takes addresses and networks only, and none that has a meaning inside the sandbox.
func checkPrivate(entry string) error {
	parsed, err := egress.ParseEntry(entry)
	switch network := parsed.Network(); {
	case err != nil:
		return err
	case !network.IsValid():
		return fmt.Errorf("%.64q: want ADDRESS, ADDRESS/BITS or either with :PORT", entry)
	case inside(network.Addr()):
		return fmt.Errorf("%.64q: an address of the sandbox's own network", entry)
	}
	return nil
}

// inside tells whether an address means something only within the sandbox's namespace: the pools of the DNS
// responder (package dns) and the source addresses of package netns. To dial one on the host would mean
// somebody else.
func inside(addr netip.Addr) bool {
	return dns.Synthetic(addr) || addr == netip.AddrFrom4([4]byte{192, 0, 0, 8}) ||
		addr == netip.AddrFrom16([16]byte{0, 1, 0, 0, 0, 0, 0, 1, 15: 1})
}

// intercepts tells whether connections to that place are to be read.
func (r *ruleset) intercepts(t egress.Target) bool {
	return !slices.ContainsFunc(r.excluded, func(p pattern) bool { return p.fits(t) }) &&
		slices.ContainsFunc(r.rules, func(one rule) bool { return one.at(t) })
}

// upgrades tells whether a rule says that the request may become a websocket.
func (r *ruleset) upgrades(a egress.Ask) bool {
	return slices.ContainsFunc(r.sockets, func(list *egress.List) bool {
		d := list.Decide(a)
		return d.Allowed() && d.Entry != ""
	})
}

func (r *rule) at(t egress.Target) bool { return r.fits(t) && slices.Contains(r.ports, t.Port()) }

// headers are what the first rule that fits puts into a request. The method and path decide too: a secret for
// /v1/ isn't given to what happens to be allowed otherwise.
func (r *ruleset) headers(a egress.Ask) []injection {
	for i := range r.rules {
		if one := &r.rules[i]; len(one.headers) > 0 && one.at(a.Target) && one.list.Decide(a).Allowed() && one.list.Decide(a).Entry != "" {
			return one.headers
		}
	}
	return nil
}

// bound is how many bytes the bodies of a request and of its reply may have, the latter 0 for any number: the least that the rules say which
// fit. most is what holds where none says less.
func (r *ruleset) bound(a egress.Ask, most int64) (body, reply int64) {
	for _, b := range r.bounds {
		d := b.list.Decide(a)
		if !d.Allowed() || d.Entry == "" {
			continue
		}
		if b.body != nil {
			most = min(most, *b.body)
		}
		if b.reply > 0 && (reply == 0 || b.reply < reply) {
			reply = b.reply
		}
	}
	return most, reply
}
