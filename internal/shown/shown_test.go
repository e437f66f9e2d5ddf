// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"testing"
	"time"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain \"ä\" \\": "plain \"ä\" \\", "a\x1b[31m": `a\u001b[31m`, "a\nhint: b": `a\nhint: b`, "\u202e": `\u202e`, "\u009b": `\u009b`,
		"\U000e0041": `\udb40\udc41`, "\xff": "\ufffd", "\t\r\x00\x7f": `\u0009\u000d\u0000\u007f`, "": "",
	} {
		if got := Line(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := Text("a\nb"); got != "a\nb" {
		t.Errorf("got %q", got)
	}
}

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"},
		{30 * time.Second, "30s"},
		{10 * time.Minute, "10m"},
		{24 * time.Hour, "24h"},
		{time.Hour + time.Minute, "1h1m"},
		{time.Hour + time.Second, "1h0m1s"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			if got := Duration(tt.d); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
