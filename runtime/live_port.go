// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"net"
)

// Stands is nil while the run's processes go on, ErrFrozen while they stand still, and ErrEnded from their end, or their kill, on.
func (v *Live) Stands() error {
	switch {
	case v.closing.Load() || v.life.Err() != nil:
		return ErrEnded
	case v.held.Load():
		return ErrFrozen
	}
	return nil
}

// Dial connects to a TCP port that the run serves in its network namespace. The connection stays when the run is frozen, and ends with its
// processes. ErrEnded, ErrFrozen, or the kernel's error: ECONNREFUSED when nobody listens.
func (v *Live) Dial(ctx context.Context, port uint16) (*net.TCPConn, error) {
	if err := v.Stands(); err != nil {
		return nil, err
	}
	ns, err := v.launch.network()
	if err != nil {
		return nil, err
	}
	return ns.Dial(ctx, port)
}

// OwnPort tells whether agentrun itself serves the port inside: what comes from there speaks for the agent.
func (v *Live) OwnPort(port uint16) bool {
	if v.launch.plan.Wayout == nil {
		return false
	}
	sockets, _ := v.launch.plan.Wayout.wanted()
	for _, s := range sockets {
		if s.Port == port {
			return true
		}
	}
	return false
}
