// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/read"
	"agentrun/internal/verb"
	"agentrun/profiles"
	"agentrun/runtime"
)

func profileCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "profile",
		Usage: "list, show and check profiles",
		Description: `   agentrun profile list
   agentrun profile show ring3
   agentrun profile validate my-agents.yaml`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "every profile, built-in and yours", Flags: []cli.Flag{jsonFlag()},
				Action: verb.Action(func(c *cli.Context, _ []string) error { return g.profileList(c) })},
			{Name: "show", Usage: "a profile as it is after extends, with the reason of every rule", ArgsUsage: "NAME",
				Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.profileShow)},
			{Name: "validate", Usage: "everything wrong with a file", ArgsUsage: "FILE",
				Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.profileValidate)},
			{Name: "schema", Usage: "the JSON Schema of profile files",
				Action: verb.Action(func(*cli.Context, []string) error { _, err := os.Stdout.Write(profiles.Schema()); return err })},
		},
	}
}

func (g *global) sources() profiles.Sources {
	return profiles.Sources{Dirs: g.ProfileDirs, Ranges: g.Ranges}
}

func (g *global) profileList(c *cli.Context) error {
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
	err := printList(c, rows, "NAME\tRING\tORIGIN\tDESCRIPTION", rows, func(r row) []any {
		ring, text := "-", r.Description
		if r.Ring > 0 {
			ring = fmt.Sprint(r.Ring)
		}
		if r.Error != "" {
			text = "BROKEN: " + r.Error
		}
		return []any{r.Name, ring, r.Origin, text}
	})
	if err != nil {
		return err
	}
	if broken > 0 {
		return exitError(runtime.ExitFailed)
	}
	return nil
}

func (g *global) profileShow(c *cli.Context, a []string) error {
	p, err := profiles.Load(g.sources(), a[0])
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(p)
	}
	fmt.Printf("# profile %s, digest %s\n", p.Name, p.Digest())
	return read.WriteYAML(os.Stdout, p)
}

func (g *global) profileValidate(c *cli.Context, a []string) error {
	file := a[0]
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
