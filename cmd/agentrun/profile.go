// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
)

func profileCommand(g *global) *cli.Command {
	asJSON := func() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }
	return &cli.Command{
		Name:  "profile",
		Usage: "list, show and check profiles",

		HideHelpCommand: true,
		Description: `   agentrun profile list
   agentrun profile show ring3
   agentrun profile validate my-agents.yaml`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "every profile, built-in and yours", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return profileList(g, c) }},
			{Name: "show", Usage: "a profile as it is after extends, with the reason of every rule", ArgsUsage: "NAME", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return profileShow(g, c) }},
			{Name: "validate", Usage: "everything wrong with a file", ArgsUsage: "FILE", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return profileValidate(g, c) }},
			{Name: "schema", Usage: "the JSON Schema of profile files", OnUsageError: usageError,
				Action: func(*cli.Context) error { _, err := os.Stdout.Write(profiles.Schema()); return err }},
		},
	}
}

func (g *global) sources() profiles.Sources { return profiles.Sources{Dirs: g.ProfileDirs} }

func oneArg(c *cli.Context, what string) (string, error) {
	if c.NArg() != 1 {
		return "", hinted.New(fmt.Errorf("%s takes one %s", c.Command.HelpName, what), c.Command.HelpName+" "+what)
	}
	return c.Args().First(), nil
}

func profileList(g *global, c *cli.Context) error {
	type row struct {
		profiles.Info
		Error string `json:"error,omitempty"`
	}
	rows := []row{}
	broken := 0
	for _, i := range profiles.List(g.sources()) {
		r := row{Info: i}
		if i.Err != nil {
			r.Error = i.Err.Error()
			broken++
		}
		rows = append(rows, r)
	}
	if c.Bool("json") {
		if err := printJSON(rows); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tRING\tORIGIN\tDESCRIPTION")
		for _, r := range rows {
			ring := "-"
			if r.Ring > 0 {
				ring = fmt.Sprint(r.Ring)
			}
			text := r.Description
			if r.Error != "" {
				text = "BROKEN: " + r.Error
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", oneLine(r.Name), ring, oneLine(r.Origin), oneLine(text))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if broken > 0 {
		return exitError(runtime.ExitFailed)
	}
	return nil
}

func profileShow(g *global, c *cli.Context) error {
	name, err := oneArg(c, "NAME")
	if err != nil {
		return err
	}
	p, err := profiles.Load(g.sources(), name)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(p)
	}
	fmt.Printf("# profile %s, digest %s\n", p.Name, p.Digest())
	return read.WriteYAML(os.Stdout, p)
}

func profileValidate(g *global, c *cli.Context) error {
	file, err := oneArg(c, "FILE")
	if err != nil {
		return err
	}
	problems := profiles.ValidateFile(g.sources(), file)
	if c.Bool("json") {
		if problems == nil {
			problems = []read.Problem{}
		}
		if err := printJSON(map[string]any{"file": file, "valid": len(problems) == 0, "problems": problems}); err != nil {
			return err
		}
	} else {
		for _, p := range problems {
			fmt.Fprintln(os.Stderr, oneLine(p.Error()))
		}
		if len(problems) == 0 {
			fmt.Printf("%s is valid\n", oneLine(file))
		}
	}
	if len(problems) > 0 {
		return exitError(runtime.ExitFailed)
	}
	return nil
}
