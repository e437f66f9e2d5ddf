// SPDX-License-Identifier: Apache-2.0

// Package verb is what the command lines of agentrun's three programs have in common: what is said of
// arguments and flags that are wrong, how JSON is printed, and how one program hands a command over to
// another.
//
//	{Name: "show", ArgsUsage: "ID", Action: verb.Action(func(c *cli.Context, a []string) error { … }), …}
//
// Errors name the command and tell the way out (package hinted). It decides nothing about what arguments
// mean.
package verb

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/shown"
)

// Action makes an action of do, which gets as many arguments as the command's ArgsUsage names: NAME must be
// there, [NAME] may be, and with "…" behind it there may be more.
func Action(do func(c *cli.Context, a []string) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := count(c); err != nil {
			return err
		}
		return do(c, c.Args().Slice())
	}
}

// NoWords takes the words h and help from a command and all below it: what is called so is a name or a file. --help explains.
func NoWords(c *cli.Command) *cli.Command {
	c.HideHelpCommand = true
	for _, sub := range c.Subcommands {
		NoWords(sub)
	}
	return c
}

func count(c *cli.Context) error {
	name, usage, least, most := c.Command.HelpName, c.Command.ArgsUsage, 0, 0
	for _, word := range strings.Fields(usage) {
		if most++; word[0] != '[' {
			least++
		}
	}
	if strings.Contains(usage, "…") {
		most = math.MaxInt
	}
	switch n := c.NArg(); {
	case n >= least && n <= most:
		return nil
	case most == 0:
		err := fmt.Errorf("%s takes no arguments, got %.64q", name, c.Args().First())
		return hinted.New(err, name+" --help lists the flags")
	case least == 1 && most == 1:
		return hinted.New(fmt.Errorf("%s takes one %s, got %d arguments", name, usage, n), name+" "+usage)
	default:
		return hinted.New(fmt.Errorf("%s takes %s, got %d arguments", name, usage, n), name+" [flags] "+usage)
	}
}

// UsageError returns what says of a flag that is wrong where the flags are listed. more is what else its hint
// has.
func UsageError(more string) cli.OnUsageErrorFunc {
	return func(c *cli.Context, err error, _ bool) error {
		name := c.App.HelpName
		if c.Command != nil && c.Command.HelpName != "" {
			name = c.Command.HelpName
		}
		return hinted.New(FlagError(c, err), name+" --help lists the flags"+more)
	}
}

// FlagError returns what package flag says of a flag in the words that a person has typed, with both dashes, and
// with the flag that was probably meant.
func FlagError(c *cli.Context, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		return fmt.Errorf("unknown flag %s%s", dashed(name), didYouMean(c, name))
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return fmt.Errorf("%s needs a value", dashed(name))
	}
	for _, before := range []string{" for flag -", "invalid boolean value "} {
		head, rest, ok := strings.Cut(text, before)
		if !ok {
			continue
		}
		if head == "" { // invalid boolean value "x" for -NAME: why
			head, rest, ok = strings.Cut(rest, " for -")
			head = "invalid value " + head
		}
		name, why, found := strings.Cut(rest, ": ")
		if ok && found {
			return fmt.Errorf("%s: %s: %s", dashed(name), head, why)
		}
	}
	return err
}

// Filled makes an action of do whose flags of text are given with a value or not at all: a script's variable that isn't set would leave out
// what it was to say, whom, which calls, whose policy. Flags are the command's.
func Filled(flags []cli.Flag, wrong cli.OnUsageErrorFunc, do cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		for _, f := range flags {
			text, ok := f.(*cli.StringFlag)
			if ok && c.IsSet(text.Name) && c.String(text.Name) == "" && !slices.ContainsFunc(text.EnvVars, isEmpty) {
				return wrong(c, fmt.Errorf("%s is empty; leave the flag out, or give it a value", dashed(text.Name)), false)
			}
		}
		return do(c)
	}
}

// isEmpty says that a variable is there, and is empty, which is none.
func isEmpty(variable string) bool {
	v, ok := os.LookupEnv(variable)
	return ok && v == ""
}

func didYouMean(c *cli.Context, name string) string {
	var known []string
	flags := c.App.Flags
	if c.Command != nil && len(c.Command.Flags) > 0 {
		flags = c.Command.Flags
	}
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); !ok || v.IsVisible() {
			known = append(known, f.Names()...)
		}
	}
	if near := read.Nearest(name, known); len(near) > 1 { // every letter is near to another
		return "; did you mean " + dashed(near) + "?"
	}
	return ""
}

// dashed is a flag as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// WriteJSON writes v over several lines. Whatever its texts are, they act on no terminal.
func WriteJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, shown.Text(string(text)))
	return err
}

// Log returns what writes to w from that level on. Errors name the flags that say level and format.
func Log(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	opt := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", format)
}

// Passed returns the command, its flags and its arguments as c has them, for another program that has the
// same command.
func Passed(c *cli.Context) []string {
	args := []string{c.Command.Name}
	set := c.LocalFlagNames()
	slices.Sort(set)
	for _, name := range slices.Compact(set) {
		switch v := c.Value(name).(type) {
		case nil:
		case cli.StringSlice:
			for _, one := range v.Value() {
				args = append(args, "--"+name+"="+one)
			}
		case bool:
			if v {
				args = append(args, "--"+name)
			} else {
				args = append(args, "--"+name+"=false")
			}
		default:
			args = append(args, "--"+name+"="+c.String(name))
		}
	}
	return append(append(args, "--"), c.Args().Slice()...)
}
