// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"agentrun/supervisor"
)

// librarys gives the flags as they are without quick.
func librarys(flags []cli.Flag) []cli.Flag {
	flags = slices.Clone(flags)
	for i, f := range flags {
		switch f := f.(type) {
		case quickString:
			flags[i] = f.StringFlag
		case quickBool:
			flags[i] = f.BoolFlag
		}
	}
	return flags
}

// reading is all that an action can learn of its flags.
func reading(t *testing.T, strip bool, args []string) string {
	t.Helper()
	var out bytes.Buffer
	g := &global{caller: &supervisor.Caller{}, served: true, unheaded: !strip && !mayAskForHelp(args)}
	app := g.app()
	app.Before = nil
	app.Writer, app.ErrWriter = &out, &out
	exec := app.Commands[0]
	if strip {
		app.Flags, exec.Flags = librarys(app.Flags), librarys(exec.Flags)
	}
	all := slices.Concat(app.Flags, exec.Flags)
	exec.Action = func(c *cli.Context) error {
		for _, f := range all {
			for _, n := range f.Names() {
				fmt.Fprintln(&out, n, c.IsSet(n), c.String(n), c.Bool(n), c.Int(n), c.Duration(n), c.StringSlice(n))
			}
		}
		fmt.Fprintf(&out, "%q\n", c.Args().Slice())
		return nil
	}
	err := app.RunContext(t.Context(), flagsFirst(app, append([]string{"agentrun"}, args...)))
	fmt.Fprintln(&out, err)
	return out.String()
}

// The flags that are parsed in another way than the library's mean the same, in help and errors too.
func TestQuickFlags(t *testing.T) {
	app := (&global{caller: &supervisor.Caller{}, served: true}).app()
	quickOnes := 0
	for _, f := range slices.Concat(app.Flags, app.Commands[0].Flags) {
		if own := librarys([]cli.Flag{f})[0]; own != f {
			quickOnes++
			if !slices.Equal(own.Names(), f.Names()) || own.String() != f.String() {
				t.Errorf("%v: got %q %q, want %q %q", f.Names(), f.Names(), f, own.Names(), own)
			}
		}
	}
	if quickOnes < 30 {
		t.Errorf("%d flags are quick", quickOnes)
	}
	for _, args := range [][]string{
		{"exec", "--", "a", "--json"}, {"exec", "a", "-i"}, {"exec", "-it", "--", "a"}, {"exec", "-d", "-i=false", "a"}, {"exec", "--tty", "--interactive", "a"},
		{"exec", "-i", "--interactive", "a"}, {"exec", "-t=maybe", "a"}, {"exec", "--tty=0", "a"},
		{"--state-dir", "/s", "--run-dir=/r", "exec", "--ring", "2", "--memory", "1G", "--env", "A=b, c", "--env", "D=", "a"},
		{"exec", "--memory=", "--name", "--", "--", "a"}, {"exec", "--name"}, {"exec", "--nosuch", "a"}, {"exec", "-x", "a"}, {"exec", "-ix", "a"},
		{"exec", "--ring", "three", "a"}, {"exec", "--quarantine-timeout", "5s", "--timeout", "x", "a"}, {"exec", "--memory", "1", "--memory", "2", "a"},
		{"exec", "--help"}, {"exec", "-h"}, {"exec", "-ih"}, {"exec", "--h", "a"}, {"exec", "-help", "a"}, {"exec", "--help=true"}, {"exec", "-h=1"}, {"--help"}, {"--version"}, {"--state-dir"}, {"--log-level", "", "exec", "a"}, {"exec"}, {},
	} {
		if diff := cmp.Diff(reading(t, true, args), reading(t, false, args)); diff != "" {
			t.Errorf("%q (-library +quick)\n%s", args, diff)
		}
	}
}
