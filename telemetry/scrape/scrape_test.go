// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"testing"
)

func TestM20MetricsStayOnThisHost(t *testing.T) {
	for addr, want := range map[string]string{":9464": "127.0.0.1:9464", "localhost:1": "127.0.0.1:1", "[::1]:1": "[::1]:1", "127.0.0.2:1": "127.0.0.2:1"} {
		if got, err := CheckAddr(addr, false); err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v, want %s", addr, got, err, want)
		}
	}
	for _, addr := range []string{"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "192.0.2.1:1"} {
		if _, err := CheckAddr(addr, false); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: got %v, want %v", addr, err, ErrNotLoopback)
		}
		if _, err := CheckAddr(addr, true); err != nil {
			t.Errorf("%s, anywhere: %v", addr, err)
		}
	}
	for _, addr := range []string{"", "x", "example.org:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if _, err := CheckAddr(addr, true); err == nil {
			t.Errorf("%q was taken", addr)
		}
	}
}

func TestListenOnLoopbackOnly(t *testing.T) {
	if _, err := Listen("203.0.113.1:0", false); !errors.Is(err, ErrNotLoopback) {
		t.Errorf("got %v", err)
	}
}
