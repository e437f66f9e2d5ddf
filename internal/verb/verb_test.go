// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
)

func TestArgumentsAreCounted(t *testing.T) {
	for _, tt := range []struct{ usage, args, err, hint string }{
		{"", "", "", ""},
		{"", "x", `agentrun do takes no arguments, got "x"`, "agentrun do --help lists the flags"},
		{"ID", "x", "", ""},
		{"ID", "", "agentrun do takes one ID, got 0 arguments", "agentrun do ID"},
		{"ID", "x y", "agentrun do takes one ID, got 2 arguments", "agentrun do ID"},
		{"ID SCORE", "x 1", "", ""},
		{"ID SCORE", "x", "agentrun do takes ID SCORE, got 1 arguments", "agentrun do [flags] ID SCORE"},
		{"ID [ITEM]", "x", "", ""},
		{"ID [ITEM]", "x y", "", ""},
		{"ID [ITEM]", "", "agentrun do takes ID [ITEM], got 0 arguments", "agentrun do [flags] ID [ITEM]"},
		{"[ID]", "", "", ""},
		{"[ID]", "x y", "agentrun do takes [ID], got 2 arguments", "agentrun do [flags] [ID]"},
		{"[SEQ…]", "1 2 3", "", ""},
		{"REF…", "", "agentrun do takes REF…, got 0 arguments", "agentrun do [flags] REF…"},
	} {
		t.Run(tt.usage+" got "+tt.args, func(t *testing.T) {
			var got []string
			app := &cli.App{Name: "agentrun", Writer: io.Discard, Commands: []*cli.Command{{
				Name: "do", ArgsUsage: tt.usage, HideHelpCommand: true,
				Action: Action(func(_ *cli.Context, a []string) error { got = a; return nil }),
			}}}
			err := app.Run(append([]string{"agentrun", "do"}, strings.Fields(tt.args)...))
			if tt.err == "" {
				if err != nil || strings.Join(got, " ") != tt.args {
					t.Errorf("got %q and error %v, want %q", got, err, tt.args)
				}
				return
			}
			h, ok := errors.AsType[*hinted.Error](err)
			if !ok || err.Error() != tt.err || h.Hint != tt.hint {
				t.Errorf("got error %v, want %q with hint %q", err, tt.err, tt.hint)
			}
		})
	}
}
