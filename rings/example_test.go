// SPDX-License-Identifier: Apache-2.0

package rings_test

import (
	"errors"
	"fmt"
	"time"

	"agentrun/internal/read"
	"agentrun/rings"
)

func ExampleCheck() {
	action := rings.Action{
		ID: "mail.send", Name: "Send a mail", ExecuteAPI: "/mail/send", Reversibility: rings.Irreversible,
	}
	ring, _ := rings.Assign(0.97, false)
	result := rings.Check(ring, 0.97, false, action)
	fmt.Println(result.Allowed, result.Code, result.RequiresConsensus)
	fmt.Println(result.Reason)
	// Output:
	// false insufficient_ring true
	// ring 2 is not enough, the action requires ring 1
}

func ExampleElevations() {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	elevations := rings.NewElevations(rings.ElevationOptions{Now: func() time.Time { return now }})
	_, decision := elevations.Request(rings.ElevationRequest{
		Current: rings.Sandbox, Target: rings.Standard, TrustScore: 0.55,
	})
	fmt.Println(decision.Verdict, elevations.Effective(rings.Sandbox))
	now = now.Add(rings.DefaultElevation)
	fmt.Println(elevations.Effective(rings.Sandbox))
	// Output:
	// allow ring 2
	// ring 3
}

func ExampleDecodeAction() {
	_, err := rings.DecodeAction([]byte(`{"action_id": "a b", "name": "", "execute_api": "/x", "reversibility": "FULL",
		"undo_window_seconds": true, "is_read_only": true, "is_admin": false}`))
	if invalid, ok := errors.AsType[*read.InvalidError](err); ok {
		for _, problem := range invalid.Problems {
			fmt.Println(problem.Path)
		}
	}
	// Output:
	// action_id
	// name
	// undo_window_seconds
}
