// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// M-22: the bound can be given up, knowingly and not for ever.
func TestM22ApplyTimeIsBounded(t *testing.T) {
	for at, ok := range map[time.Duration]bool{0: true, 90 * time.Millisecond: true, 5 * time.Second: true, time.Millisecond: false, -time.Second: false, time.Minute: false} {
		if err := (liveConfig{ApplyTime: at}).check(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "live.apply_time") {
			t.Errorf("%v: got %v", at, err)
		}
	}
}
