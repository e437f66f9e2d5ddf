// SPDX-License-Identifier: Apache-2.0

// Package scrape says on which addresses metrics are served, and to whom: those of a node and of a run's
// gateway (M-20).
//
//	l, err := scrape.Listen("127.0.0.1:9464", false)
//	if !scrape.Served(l.Addr(), host) { … 403 … }
//
// Guarantees: only this host reaches them, and no web page does, unless an operator has written that others
// may. Errors: ErrNotLoopback, or what is wrong with the address. It does not ask who reads: there is no
// password.
package scrape

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotLoopback is what Listen gives for an address that others than this host could reach.
var ErrNotLoopback = errors.New("not a loopback address")

// CheckAddr reads host:port. No host is 127.0.0.1, "localhost" too; names are refused, as they may come to
// mean anything. Any address but loopback needs anywhere.
func CheckAddr(addr string, anywhere bool) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: want HOST:PORT", addr)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	ap, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: want an address, not a name, and a port", addr)
	}
	if !anywhere && !ap.Addr().Unmap().IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: %w", addr, ErrNotLoopback)
	}
	return ap, nil
}

// Listen makes a socket that metrics may be served on.
func Listen(addr string, anywhere bool) (net.Listener, error) {
	ap, err := CheckAddr(addr, anywhere)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("metrics: %w; another program has port %d: choose another, or 0 for any that is free", err, ap.Port())
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}

// Refusal is what somebody is told whose Host isn't served.
const Refusal = "this Host isn't served here: ask by the address, or as localhost"

// Served refuses names on a loopback address. A page whose own name was made to mean 127.0.0.1 (DNS
// rebinding) would have the browser of somebody on this host read agents' counters for it; the browser sends
// that name as Host. On other addresses scrapers use names, and who can connect can read anyway.
func Served(at net.Addr, host string) bool {
	ap, err := netip.ParseAddrPort(at.String())
	if err == nil && !ap.Addr().Unmap().IsLoopback() {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	_, err = netip.ParseAddr(name)
	return err == nil || strings.EqualFold(name, "localhost")
}
