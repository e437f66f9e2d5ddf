// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"
	"time"

	"agentrun/audit"
)

// PortOrder is what an operator does about a port of a live run (M-23).
type PortOrder struct {
	By      string // who, as the audit shall have it: "uid:0"
	Event   string // published, linked, removed
	Port    uint16 // in the sandbox
	Address string // on the host
	Raw     bool   // without a token
}

// RecordPort puts it on record, on disk, before it takes effect. An error means that it must not.
func (c *Control) RecordPort(o PortOrder) error {
	err := c.h.record(c.adm.Session, true, &audit.PortPublish{
		Address: o.Address, AgentID: c.who, By: audit.Claimed(o.By), Event: o.Event, Port: int64(o.Port), Raw: o.Raw, RunID: c.opt.Run,
	})
	if err != nil {
		return fmt.Errorf("port of run %s: %w", c.opt.Run, err)
	}
	return nil
}

// Ingress is a connection to a published port, after its end.
type Ingress struct {
	Code           string // ok, or why not
	Port           uint16 // in the sandbox
	Peer           string // the address that it came from
	Sent, Received int64  // bytes, by the sandbox
	Took           time.Duration
}

// RecordIngress puts it on record; like ones share a record when there are many. It is nothing that the agent did, so that it isn't weighed
// (H-24).
func (c *Control) RecordIngress(i Ingress) error {
	r := &audit.Egress{
		AgentID: c.adm.Agent, Allowed: i.Code == "ok", Code: i.Code, Count: 1, Destination: fmt.Sprintf("sandbox:%d", i.Port), Detail: i.Peer,
		DurationNS: i.Took.Nanoseconds(), ParentRunID: c.adm.parent.run, Received: i.Received, RunID: c.opt.Run, Sent: i.Sent, Type: "ingress",
	}
	if r.Allowed {
		return c.adm.alarm.passed.add(r)
	}
	return c.adm.alarm.refused.add(r)
}
