// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"agentrun/images"
)

// A bar goes back to the beginning of its line; without a terminal there is a line for each layer.
func TestProgress(t *testing.T) {
	for _, bar := range []bool{true, false} {
		var b bytes.Buffer
		p := newProgress(&b, images.Order{Progress: true, Bar: bar}, []blob{{size: 3_000_000}, {size: 1_000_000}}, 0, "")
		if _, err := p.layer(bytes.NewReader(make([]byte, 3_000_000))).Read(make([]byte, 3_000_000)); err != nil {
			t.Fatal(err)
		}
		p.end()
		want := "layer 1 of 2, 0.0 MB of 4.0 MB read\n"
		if bar {
			want = "[" + strings.Repeat("#", 22) + strings.Repeat(".", 8) + "] layer 1 of 2, 3.0 MB of 4.0 MB\x1b[K\n"
		}
		if got := b.String(); !strings.HasSuffix(got, want) {
			t.Errorf("bar %v: %q, want %q", bar, got, want)
		}
	}
	var b bytes.Buffer
	p := newProgress(&b, images.Order{}, []blob{{size: 1}}, 0, "")
	_, _ = p.layer(strings.NewReader("x")).Read(make([]byte, 1))
	if p.end(); b.Len() > 0 {
		t.Errorf("quiet: %q", b.String())
	}
}

// Whoever starts it by hand is told what does.
func TestStartedByHand(t *testing.T) {
	for _, in := range []string{"", "{}x", "null", `{"what":1}`} {
		if err := run(t.Context(), strings.NewReader(in), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "started by agentrun image") {
			t.Errorf("%q: %v", in, err)
		}
	}
}
