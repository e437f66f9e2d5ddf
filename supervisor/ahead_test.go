// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"log/slog"
	"testing"
	"time"
)

// What was looked at ahead counts for a while, and then for nothing: a caller may connect, have the daemon look, and ask when the host has
// changed.
func TestAheadCountsForAWhile(t *testing.T) {
	dir := t.TempDir()
	n := &Node{StateDir: dir, RunDir: dir, Gateway: Outside{Program: "/gateway"}, Log: slog.New(slog.DiscardHandler)}
	a := n.LookAhead()
	a.began = time.Now().Add(time.Hour) // however long the looks take here
	a.Look()
	now := a.now()
	if now.own == nil || now.host == nil || now.gateway == nil {
		t.Fatalf("of looks that still count: %+v", now)
	}
	if program, err := now.gateway(); program != "/gateway" || err != nil {
		t.Errorf("the gateway: %q, %v", program, err)
	}
	a.began = time.Now().Add(-aheadTime)
	for _, a := range []*Ahead{a, nil} {
		if now := a.now(); now.own != nil || now.host != nil || now.gateway != nil {
			t.Errorf("of %+v: %+v", a, now)
		}
	}
}
