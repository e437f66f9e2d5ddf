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

// What package flag says of a flag comes in the words that were typed, with the flag that was meant.
func TestFlagErrors(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--rng 2", "unknown flag --rng; did you mean --ring?"},
		{"-rng 2", "unknown flag --rng; did you mean --ring?"},
		{"--nothing-like-it", "unknown flag --nothing-like-it"},
		{"-x", "unknown flag -x"},
		{"--hiden", "unknown flag --hiden"},
		{"--name", "--name needs a value"},
		{"--ring two", `--ring: invalid value "two": parse error`},
		{"--ring= for", `--ring: invalid value "": parse error`},
		{"--json=maybe", `--json: invalid value "maybe": parse error`},
		{"--wait soon", `--wait: invalid value "soon": parse error`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			app := &cli.App{Name: "agentrun", Writer: io.Discard, OnUsageError: UsageError(""), Flags: []cli.Flag{
				&cli.IntFlag{Name: "ring"}, &cli.StringFlag{Name: "name"}, &cli.BoolFlag{Name: "json"}, &cli.DurationFlag{Name: "wait"},
				&cli.BoolFlag{Name: "hidden", Hidden: true},
			}}
			err := app.Run(append([]string{"agentrun"}, strings.Fields(tt.args)...))
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}
