// SPDX-License-Identifier: Apache-2.0

// Command gatewayproxy is the gateway's forward proxy alone, for test/bench: the real code, a supervisor that agrees to
// everything, no namespace and no sandbox. It prints the address it listens on and serves until it is killed.
//
//	gatewayproxy 127.0.0.9:8080 …   // the places that may be reached
//
// It is no proxy to use: nobody records what it does.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"agentrun/rings"
	"agentrun/toolproxy/forward"
	"agentrun/toolproxy/link"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gatewayproxy:", err)
		os.Exit(1)
	}
}

func serve(places []string) error {
	p, err := forward.New(forward.Options{
		Config:     forward.Config{Private: places, Limits: forward.Limits{Connections: 4096}},
		Allow:      places,
		Supervisor: agreeable{ended: make(chan struct{})},
	})
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return p.ServeProxy(l)
}

// agreeable answers at once, so that what is measured is the proxy and not the link.
type agreeable struct {
	link.Supervisor // what isn't below is never asked by a proxy
	ended           chan struct{}
}

func (a agreeable) Check(context.Context, link.Check) (link.Verdict, error) {
	return link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Standard}, nil
}

func (a agreeable) End(context.Context, link.End) (link.Reservation, error) {
	return link.Reservation{Allowed: true}, nil
}

func (a agreeable) Record(context.Context, link.Record) error { return nil }

func (a agreeable) Ring() (rings.Ring, <-chan struct{}) { return rings.Standard, a.ended }
