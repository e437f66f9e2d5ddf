// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
)

// PortRequest asks for a port of a run to be published, or, of one that is, for another link.
type PortRequest struct {
	Port     int    `json:"port" read:"required"` // TCP, in the sandbox
	To       string `json:"to,omitempty"`         // ADDRESS:PORT on the host; empty: a loopback address of its own and a free port
	Anywhere bool   `json:"anywhere,omitempty"`   // To may be an address that others than this host reach
	Raw      bool   `json:"raw,omitempty"`        // bytes are passed as they are, to whoever connects
	Link     bool   `json:"link,omitempty"`       // only a link, to what is published already
}

// PortRemoval is the body of DELETE /v1/sandboxes/{id}/ports.
type PortRemoval struct {
	Port int `json:"port" read:"required"`
}

// PortInfo is one that is published.
type PortInfo struct {
	Port    int    `json:"port"`    // in the sandbox
	Address string `json:"address"` // on the host
	Raw     bool   `json:"raw,omitempty"`
	Open    int    `json:"open"` // connections
}

// PortList is what GET /v1/sandboxes/{id}/ports answers. It has no secrets: readers may ask for it.
type PortList struct {
	Ports []PortInfo `json:"ports"`
}

// Published is a port with what opens it; a raw one has neither.
type Published struct {
	PortInfo
	URL   string `json:"url,omitempty"`   // works once
	Token string `json:"token,omitempty"` // for Authorization: Bearer
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return badField("port", "want 1 to 65535")
	}
	return nil
}

// Addr is where it is to be published. Without a word about it, it is another loopback address each time (127.64.0.0/10, ip(7)). Browsers send
// the cookies of a host to each of its ports: at 127.0.0.1 the agent's server would be sent those of the operator's own servers there, which
// let in whoever has them.
func (r PortRequest) Addr() (netip.AddrPort, error) {
	if r.To == "" {
		var b [3]byte
		_, _ = rand.Read(b[:]) // never fails
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 64 | b[0]&63, b[1], 1 + b[2]%254}), 0), nil
	}
	at, err := netip.ParseAddrPort(r.To)
	if err != nil || at.Addr().Zone() != "" {
		return at, badField("to", "want ADDRESS:PORT, such as 127.0.0.1:8080")
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if !at.Addr().IsLoopback() && !r.Anywhere {
		e := badField("to", fmt.Sprintf("others than this host reach %s", at.Addr()))
		e.Hint = "anywhere (--anywhere) says that they may; the token is sent without encryption"
		return at, e
	}
	return at, nil
}

func (q *call) publish(r PortRequest) (any, error) {
	if err := checkPort(r.Port); err != nil {
		return nil, err
	}
	if _, err := r.Addr(); err != nil {
		return nil, err
	}
	return q.s.Controller.Publish(q.ctx, q.id, r, q.peer.by())
}

func (q *call) ports(ctx context.Context) (any, error) {
	list, err := q.s.Controller.Ports(ctx, q.id)
	if list == nil {
		list = []PortInfo{}
	}
	return PortList{list}, err
}

func (q *call) unpublish(r PortRemoval) (any, error) {
	if err := checkPort(r.Port); err != nil {
		return nil, err
	}
	return Done{}, q.s.Controller.Unpublish(q.ctx, q.id, r.Port, q.peer.by())
}

// Publish is Controller's.
func (c *Client) Publish(ctx context.Context, id string, r PortRequest, _ string) (p Published, err error) {
	return p, c.Ask(ctx, "POST", runPath(id)+"/ports", r, &p)
}

// Ports is Controller's.
func (c *Client) Ports(ctx context.Context, id string) ([]PortInfo, error) {
	var l PortList
	err := c.Ask(ctx, "GET", runPath(id)+"/ports", nil, &l)
	return l.Ports, err
}

// Unpublish is Controller's.
func (c *Client) Unpublish(ctx context.Context, id string, port int, _ string) error {
	return c.Ask(ctx, "DELETE", runPath(id)+"/ports", PortRemoval{port}, nil)
}
