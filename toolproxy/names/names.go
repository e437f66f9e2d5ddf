// SPDX-License-Identifier: Apache-2.0

// Package names looks names up as a container would: by the hosts file and the name servers that its engine gives it. An engine's network
// has names that the host's resolver doesn't know, and often can't reach the host's resolver at all.
//
//	r := names.New(resolv, hosts) // the texts of resolv.conf(5) and hosts(5)
//	addrs, err := r.LookupNetIP(ctx, "ip", "web.")
//
// What a line says that can't be read counts for nothing, as for libc. Search domains and options aren't looked at: whoever asks has a
// whole name. A name that the host's own /etc/hosts has is found there, too, where the engine's file doesn't have it.
//
// It decides nothing: which names and addresses are good is toolproxy/egress'.
package names

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"
)

// maxServers is libc's MAXNS.
const maxServers = 3

var errNone = errors.New("the container's resolv.conf names no server")

// Resolver is one container's.
type Resolver struct {
	hosts   map[string][]netip.Addr
	servers []*net.Resolver // the next one is asked where the one before doesn't answer
}

// New reads the two texts. Without the first the host's own servers are asked.
func New(resolv, hosts string) *Resolver {
	r := &Resolver{hosts: map[string][]netip.Addr{}}
	if resolv == "" {
		r.servers = []*net.Resolver{{PreferGo: true}}
	}
	for _, f := range fields(resolv, "#;") {
		if addr, err := netip.ParseAddr(f[1]); f[0] == "nameserver" && err == nil && len(r.servers) < maxServers {
			to := netip.AddrPortFrom(addr, 53).String()
			r.servers = append(r.servers, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, to)
			}})
		}
	}
	for _, f := range fields(hosts, "#") {
		addr, err := netip.ParseAddr(f[0])
		if err != nil {
			continue
		}
		for _, name := range f[1:] {
			r.hosts[bare(name)] = append(r.hosts[bare(name)], addr)
		}
	}
	return r
}

// First is the first server alone, for lookups that aren't the container's. Nil: there is none.
func (r *Resolver) First() *net.Resolver {
	if len(r.servers) == 0 {
		return nil
	}
	return r.servers[0]
}

// LookupNetIP is net.Resolver's. A server that says that there is no such name is believed: the first may know more than those after it.
func (r *Resolver) LookupNetIP(ctx context.Context, network, host string) (addrs []netip.Addr, err error) {
	if addrs, ok := r.hosts[bare(host)]; ok {
		return append([]netip.Addr{}, addrs...), nil
	}
	err = errNone
	for i, server := range r.servers {
		asking, cancel := share(ctx, len(r.servers)-i)
		addrs, err = server.LookupNetIP(asking, network, host)
		cancel()
		if e, ok := errors.AsType[*net.DNSError](err); err == nil || ok && e.IsNotFound || ctx.Err() != nil {
			break
		}
	}
	return addrs, err
}

// share is a part of the time that is left.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(parts))
}

func bare(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// fields are the words of each line that has two.
func fields(text, comment string) (list [][]string) {
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, comment); i >= 0 {
			line = line[:i]
		}
		if f := strings.Fields(line); len(f) > 1 {
			list = append(list, f)
		}
	}
	return list
}
