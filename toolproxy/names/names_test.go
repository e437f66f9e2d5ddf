// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
)

func TestHosts(t *testing.T) {
	r := New("nameserver\nnameserver nowhere\n", "127.0.0.1 localhost\n172.18.0.2\tWeb web.local # api\nfd12::2 web\nx y\n\n172.18.0.3")
	for name, want := range map[string][]string{"web.": {"172.18.0.2", "fd12::2"}, "WEB": {"172.18.0.2", "fd12::2"}, "web.local.": {"172.18.0.2"}, "api.": nil, "y.": nil} {
		addrs, err := r.LookupNetIP(context.Background(), "ip", name)
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}

// One server after the other is asked while none answers, and no more of them than libc would.
func TestServers(t *testing.T) {
	var asked [3]atomic.Bool
	at := func(i int) *net.Resolver {
		return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			asked[i].Store(true)
			return nil, errors.New("gone")
		}}
	}
	r := New("# nameserver 192.0.2.9\nnameserver 127.0.0.1\nnameserver ::1\nnameserver 127.0.0.3\nnameserver 127.0.0.4\nsearch example.com", "")
	if len(r.servers) != maxServers {
		t.Errorf("%d servers, want %d", len(r.servers), maxServers)
	}
	var to []string
	for _, s := range r.servers {
		conn, err := s.Dial(context.Background(), "udp", "192.0.2.1:53")
		if err != nil {
			t.Fatal(err)
		}
		to = append(to, conn.RemoteAddr().String())
		conn.Close()
	}
	if want := []string{"127.0.0.1:53", "[::1]:53", "127.0.0.3:53"}; !slices.Equal(to, want) {
		t.Errorf("%v, want %v", to, want)
	}
	r.servers = []*net.Resolver{at(0), at(1), at(2)}
	if _, err := r.LookupNetIP(context.Background(), "ip", "no.such.name.test."); err == nil || !asked[0].Load() || !asked[1].Load() || !asked[2].Load() {
		t.Errorf("%v, and not all were asked", err)
	}
	if _, err := New("# none", "").LookupNetIP(context.Background(), "ip", "x."); !errors.Is(err, errNone) {
		t.Errorf("no server: %v", err)
	}
}
