// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// quick gives flags that are parsed without the library's search for commas in their names, a regular expression for each name,
// twice: of the sixty of exec that is half the time they take. In everything else they are the library's own.
func quick(flags []cli.Flag) []cli.Flag {
	for i, f := range flags {
		switch f := f.(type) {
		case *cli.StringFlag:
			if len(f.EnvVars) == 0 && f.FilePath == "" && f.Destination == nil {
				flags[i] = quickString{f}
			}
		case *cli.BoolFlag:
			if len(f.EnvVars) == 0 && f.FilePath == "" && f.Destination == nil && f.Count == nil {
				flags[i] = quickBool{f}
			}
		}
	}
	return flags
}

// mayAskForHelp says whether one of the words may ask for it, also where it stands among others or is the agent's.
func mayAskForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(a, "=")
		return a == "help" || strings.HasPrefix(name, "-") && strings.Contains(name, "h")
	})
}

// headed leaves the headings away where no help will show them: to sort sixty flags under them the library writes the help of each,
// which is a third of what it takes to read a command line.
func (g *global) headed(flags []cli.Flag) []cli.Flag {
	if g.unheaded {
		return group("", flags...)
	}
	return flags
}

type quickString struct{ *cli.StringFlag }

// Names are those it was given. One with a comma or a space would be cut by the library; TestQuickFlags knows of none.
func (f quickString) Names() []string { return names(f.Name, f.Aliases) }

// Apply is cli.Flag's.
func (f quickString) Apply(set *flag.FlagSet) error {
	for _, name := range f.Names() {
		set.String(name, f.Value, f.Usage)
	}
	return nil
}

type quickBool struct{ *cli.BoolFlag }

// Names are as those of a quickString.
func (f quickBool) Names() []string { return names(f.Name, f.Aliases) }

// Apply is cli.Flag's. All its names are of one value.
func (f quickBool) Apply(set *flag.FlagSet) error {
	value := new(bool)
	for _, name := range f.Names() {
		set.BoolVar(value, name, f.Value, f.Usage)
	}
	return nil
}

func names(name string, aliases []string) []string { return append([]string{name}, aliases...) }
