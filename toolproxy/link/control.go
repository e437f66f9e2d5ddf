// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"time"

	"agentrun/rings"
)

// Elevation is an agent's own request for a ring on loan (H-13). Who asks is known; what it says of itself isn't asked for.
type Elevation struct {
	Target rings.Ring    `json:"target_ring"`
	TTL    time.Duration `json:"ttl,omitempty"`    // 0: 300 s
	Reason string        `json:"reason,omitempty"` // for operators, masked; at most 1024 bytes
	Wait   time.Duration `json:"wait,omitempty"`   // how long it may wait for an operator, where one has to agree; 0: not at all
}

// Elevated is the answer. The zero value is a refusal.
type Elevated struct {
	Granted bool          `json:"granted"`
	Code    rings.Code    `json:"code"`
	Message string        `json:"message,omitempty"`
	Next    string        `json:"next,omitempty"`
	ID      string        `json:"elevation_id,omitempty"`
	Target  rings.Ring    `json:"target_ring,omitzero"`
	Expires time.Time     `json:"expires_at,omitzero"`
	TTL     time.Duration `json:"ttl,omitempty"` // as granted
}

// Alarm says that the run must be killed (H-23): its tools fail too often (circuit_breaker), or a policy calls what it tried a
// critical violation (policy_violation). Other reasons are not a gateway's to give.
type Alarm struct {
	Reason rings.KillReason `json:"reason"`
	Action string           `json:"action,omitempty"` // what triggered it, as tool.shell.invoke
	Detail string           `json:"detail,omitempty"` // for people; no contents
}

// Controls is what a Supervisor has beside the rest if the run's ring can change and its agent can be killed. One without it
// answers both with an error.
type Controls interface {
	Elevate(ctx context.Context, e Elevation) (Elevated, error)
	// Alarm returns when the kill has begun.
	Alarm(ctx context.Context, a Alarm) error
}
