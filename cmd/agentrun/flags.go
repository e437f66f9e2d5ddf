// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
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

// once gives flags of text that are refused when they are given twice: of two agents, sessions or policies the library keeps the last, and who
// gave both takes the first for killed, held or asked.
func once(flags []cli.Flag) []cli.Flag {
	flags = slices.Clone(flags)
	for i, f := range flags {
		if f, ok := f.(*cli.StringFlag); ok && len(f.Aliases) == 0 && len(f.EnvVars) == 0 && f.Destination == nil {
			flags[i] = onceString{f}
		}
	}
	return flags
}

type onceString struct{ *cli.StringFlag }

// Apply is cli.Flag's.
func (f onceString) Apply(set *flag.FlagSet) error {
	set.Var(&onceValue{text: f.Value}, f.Name, f.Usage)
	return nil
}

type onceValue struct {
	text string
	set  bool
}

func (v *onceValue) String() string { return v.text }

// Get is flag.Getter's.
func (v *onceValue) Get() any { return v.text }

// Set is flag.Value's.
func (v *onceValue) Set(text string) error {
	if v.set && text != v.text {
		return fmt.Errorf("it is %.64q already; give it once", v.text)
	}
	v.text, v.set = text, true
	return nil
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
