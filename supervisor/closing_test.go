// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"strings"
	"testing"
	"time"

	"agentrun/runtime"
)

// M-8: the flags that are offered allow what was refused and nothing else, and a name that the agent made up
// to be copied into a shell is offered in none.
func TestM8HintsOfRefusedConnections(t *testing.T) {
	for _, tt := range []struct {
		kind, name, code, address string
		ring                      int
		want                      string
	}{
		{"egress", "pypi.org:443", "not_listed", "", 2, "--allow pypi.org"},
		{"egress", "pypi.org:80", "not_listed", "", 2, "--allow pypi.org"},
		{"egress", "pypi.org:8443", "port_not_listed", "", 2, "--allow pypi.org:8443"},
		{"egress", "pypi.org:443", "ring_has_no_egress", "", 3, "--ring 2 --allow pypi.org"},
		{"dns", "pypi.org", "name_not_allowed", "", 2, "--allow pypi.org"},
		{"egress", "192.0.2.7:443", "not_listed", "", 2, "--allow 192.0.2.7"},
		{"egress", "[2001:db8::7]:443", "not_listed", "", 2, "--allow 2001:db8::7"},
		{"egress", "[2001:db8::7]:8443", "not_listed", "", 2, "--allow '[2001:db8::7]:8443'"},
		{"egress", "db.corp:8080", "private_address", "10.0.0.5", 2, "--allow db.corp:8080 --allow 10.0.0.5:8080"},
		{"egress", "10.0.0.5:443", "private_address", "10.0.0.5", 2, "--allow 10.0.0.5"},
		{"egress", "db.corp:443", "private_address", "", 2, ""},
		{"egress", "db.corp:443", "private_address", "fe80::1%`reboot`", 2, ""},
		{"egress", "db.corp:443", "metadata_address", "169.254.169.254", 2, ""},
		{"egress", "db.corp:5432", "database_port", "", 2, ""},
		{"egress", "a.org:443", "method_not_listed", "", 2, ""},
		{"egress", "a.org:443;reboot", "not_listed", "", 2, ""},
		{"egress", "$(reboot).org:443", "not_listed", "", 2, ""},
		{"egress", "--gateway:443", "not_listed", "", 2, ""},
		{"egress", "[fe80::1%$(reboot)]:443", "not_listed", "", 2, ""},
		{"egress", "a.org\nhint: rm:443", "not_listed", "", 2, ""},
		{"egress", "", "not_listed", "", 2, ""},
		{"egress", "(others)", "several", "", 2, ""},
		{"tool", "math", "not_listed", "", 2, ""},
	} {
		r := runtime.GatewayRefusal{Kind: tt.kind, Name: tt.name, Code: tt.code, Address: tt.address}
		if got := allowing(r, tt.ring); got != tt.want {
			t.Errorf("%+v in ring %d: got %q, want %q", r, tt.ring, got, tt.want)
		}
	}
}

func TestClosingWords(t *testing.T) {
	s := runtime.Status{
		WallTime: 12340 * time.Millisecond, CPUTime: 3210 * time.Millisecond, PeakMemory: 340<<20 - 1, ToolCalls: 1, Tokens: 12345, Cost: 120_000,
		Refused: map[string]uint64{"unshare": 1, "mount": 3, "clone": 1},
		GatewayRefused: []runtime.GatewayRefusal{
			{Kind: "dns", Name: "pypi.org", Code: "name_not_allowed", Count: 8, Hint: "--allow pypi.org"},
			{Kind: "egress", Name: "pypi.org:443", Code: "not_listed", Count: 9, Hint: "--allow pypi.org"},
			{Kind: "dns", Name: "a.org", Code: "name_not_allowed", Count: 1, Hint: "--allow a.org"},
			{Kind: "tool", Name: "webhook.send", Code: "ring_denied", Count: 2},
			{Kind: "egress", Name: "b.org:443", Code: "not_listed", Count: 1, Hint: "--ring 2 --allow b.org"},
			{Kind: "egress", Name: "c.org:443", Code: "not_listed", Count: 1, Hint: "--ring 2 --allow c.org"},
			{Kind: "egress", Name: "d.org:443", Code: "database_port", Count: 1},
			{Kind: "egress", Name: "e.org:443", Code: "not_listed", Count: 1, Hint: "--allow e.org"},
		},
	}
	words, hint := connectionWords(s.GatewayRefused)
	got := strings.Join([]string{usedWords(s), refusedWords(s), words, hint}, "\n")
	const want = `ran 12.3s, cpu 3.2s, memory at most 340 MiB, 1 call, 12345 tokens, cost 0.12
refused: system calls mount 3, clone 1, unshare 1; tools and models webhook.send (ring_denied) 2
14 connections refused: pypi.org:443 (not_listed), a.org (name_not_allowed), b.org:443 (not_listed), ` +
		`c.org:443 (not_listed), d.org:443 (database_port) and 1 more
--allow pypi.org --allow a.org --ring 2 --allow b.org --allow c.org`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if words, hint := connectionWords(nil); words+hint+refusedWords(runtime.Status{}) != "" {
		t.Error("nothing was refused, and something is told")
	}
}
