// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// A command that the index of docs/cli.md leaves out is found by nobody who reads there what there is.
func TestIndexHasEveryCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	index, _, found := strings.Cut(string(page), "Exit codes and the status file")
	if !found {
		t.Fatal("docs/cli.md: the end of the index isn't where it was")
	}
	for _, c := range newApp().Commands {
		if !c.Hidden && !strings.Contains(index, "`"+c.Name+"`") {
			t.Errorf("docs/cli.md: the index has no %s", c.Name)
		}
	}
}

var (
	inProse = regexp.MustCompile("`agentrun ([^`]+)`")
	inBlock = regexp.MustCompile(`(?:^|[|;(&] *|sudo (?:-u \S+ )?)agentrun ([^|;&#]+)`)
	word    = regexp.MustCompile(`(?:"[^"]*"|'[^']*'|\S)+`)
)

// typed returns what follows "agentrun" in each command that a page shows, with its line: in prose between backquotes,
// in a block behind "$ ", or, in one without any, at the start of a line or behind what joins two commands.
func typed(page string) map[string]int {
	found := map[string]int{}
	fence, console := "", false
	for n, line := range strings.Split(page, "\n") {
		kind, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && fence == "":
			fence, console = "a block of kind "+kind, kind == "console"
			continue
		case isFence:
			fence = ""
			continue
		}
		pattern := inProse
		if fence != "" {
			pattern = inBlock
		}
		if command, isCommand := strings.CutPrefix(line, "$ "); isCommand {
			line, console = command, true
		} else if fence != "" && console {
			continue
		}
		for _, m := range pattern.FindAllStringSubmatch(line, -1) {
			found[m[1]] = n + 1
		}
	}
	return found
}

// unknownIn returns what of a typed command the program doesn't have; nothing: it can be typed. Words in capitals and in
// brackets stand for others, and what a pattern of words goes on with isn't looked at.
func unknownIn(app *cli.App, args []string) string {
	flags, commands, agents := app.Flags, app.Commands, false
	for i := 0; i < len(args); i++ {
		a := strings.Trim(args[i], "[],.")
		switch {
		case a == "--", strings.ContainsAny(a, "|…"):
			return ""
		case len(a) > 1 && a[0] == '-':
			name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
			known := func(name string) bool {
				return slices.Contains([]string{"help", "h", "version", "v"}, name) ||
					slices.ContainsFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
			}
			joined := !strings.HasPrefix(a, "--") && !slices.ContainsFunc(strings.Split(name, ""), func(one string) bool { return !known(one) })
			if !known(name) && !joined {
				return "flag " + a
			}
			if takesValue(flags, a) {
				i++
			}
		case agents, len(commands) > 0 && a == strings.ToUpper(a):
			return ""
		case len(commands) > 0:
			j := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(a) })
			if j < 0 {
				return "command " + a
			}
			agents = a == "exec" || a == "plan"
			flags, commands = commands[j].Flags, commands[j].Subcommands
		}
	}
	return ""
}

// Pages go stale where a flag goes or gets another name. Those whose commands a test runs are the tutorial's, README's
// and those of examples (test/integration); of the others this much holds: what they show can be typed.
func TestPagesShowCommandsThatExist(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob("../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	app, commands := newApp(), 0
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue // it tells of what was, too
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for command, line := range typed(string(text)) {
			commands++
			if command == "witness" {
				continue // the words that signatures are over
			}
			if unknown := unknownIn(app, word.FindAllString(command, -1)); unknown != "" {
				t.Errorf("%s:%d: agentrun %s: there is no %s", strings.TrimPrefix(page, "../../"), line, command, unknown)
			}
		}
	}
	if commands < 200 {
		t.Errorf("got %d commands: a check of nothing is no check", commands)
	}
}

// What can't be typed is found.
func TestUnknownCommandsAreFound(t *testing.T) {
	for _, row := range []struct{ page, want string }{
		{"`agentrun exec --ring 2 -- x --nosuch`", ""},
		{"`agentrun exec --nosuch`", "flag --nosuch"},
		{"`agentrun exec --ring 2 x --nosuch`", ""},
		{"`agentrun exec -it -- bash`", ""},
		{"`agentrun exec -iz -- bash`", "flag -iz"},
		{"`agentrun nosuch`", "command nosuch"},
		{"`agentrun --log-level debug audit verify --all`", ""},
		{"`agentrun --nosuch audit verify`", "flag --nosuch"},
		{"`agentrun audit nosuch`", "command nosuch"},
		{"`agentrun agent score a 0.7 --consensus`", ""},
		{"`agentrun agent score a 0.7 --nosuch`", "flag --nosuch"},
		{"`agentrun COMMAND --nosuch`", ""},
		{"```console\n$ agentrun exec --nosuch\n```", "flag --nosuch"},
		{"```console\nagentrun can run here.\n```", ""},
		{"```\n$ agentrun doctor\nagentrun can run here.\n```", ""},
		{"```sh\nx=1; agentrun ps --nosuch # all\n```", "flag --nosuch"},
		{"```\nsudo -u me agentrun ps # --nosuch\n```", ""},
		{"agentrun does nothing here", ""},
	} {
		t.Run(row.page, func(t *testing.T) {
			var got []string
			for command := range typed(row.page) {
				if unknown := unknownIn(newApp(), word.FindAllString(command, -1)); unknown != "" {
					got = append(got, unknown)
				}
			}
			if strings.Join(got, " ") != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
