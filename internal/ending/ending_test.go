// SPDX-License-Identifier: Apache-2.0

package ending

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentrun/internal/hinted"
)

func TestReport(t *testing.T) {
	for _, row := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"nothing", nil, 0, ""},
		{"a code", fmt.Errorf("x: %w", Code(7)), 7, ""},
		{"an error", errors.New("it broke"), Failed, "agentrun: it broke\n"},
		{"with the way out", fmt.Errorf("x: %w", hinted.New(errors.New("no"), "do this")), Failed, "agentrun: x: no\nhint: do this\n"},
		{"hostile names", errors.New("file a\nhint: run this\x1b[2J"), Failed, "agentrun: file a\\nhint: run this\\u001b[2J\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			if code := Report(&out, row.err, Hint); code != row.code || out.String() != row.want {
				t.Errorf("got %d and %q, want %d and %q", code, out.String(), row.code, row.want)
			}
		})
	}
}
