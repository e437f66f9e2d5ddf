// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hostcaps"
	"agentrun/runtime"
)

func doctorCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "what this host offers, what is missing, and how to get it",
		Description: `Tries every feature agentrun uses. Exit code 125 if one that runs need is missing.

   agentrun doctor
   agentrun doctor --workspace /srv/agents   is that file system fit for workspaces?`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "workspace", Usage: "`DIR` whose file system is asked about", Value: "."},
		},
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			r := hostcaps.NewReport(c.String("workspace"))
			var err error
			if c.Bool("json") {
				err = r.WriteJSON(os.Stdout)
			} else {
				err = r.WriteText(os.Stdout)
			}
			if err != nil {
				return err
			}
			if !r.Usable {
				return exitError(runtime.ExitFailed)
			}
			return nil
		},
	}
}

func gcCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "remove what crashed runs left behind",
		Description: `Every exec does this too. Runs that are alive are not touched.

   agentrun gc`,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			removed, err := runtime.Collect(c.Context, g.runDir)
			if c.Bool("json") {
				if removed == nil {
					removed = []string{}
				}
				if jerr := printJSON(map[string]any{"removed": removed}); jerr != nil {
					return jerr
				}
				return err
			}
			for _, id := range removed {
				fmt.Println("removed", id)
			}
			return err
		},
	}
}

func jsonBytes(v any) ([]byte, error) { return json.Marshal(v) }

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:         "completion",
		Usage:        "print a completion script",
		ArgsUsage:    "bash|zsh|fish",
		Description:  `   source <(agentrun completion bash)`,
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			shell, err := oneArg(c, "bash|zsh|fish")
			if err != nil {
				return err
			}
			script, ok := completions[shell]
			if !ok {
				return fmt.Errorf("no completion for %q: want bash, zsh or fish", shell)
			}
			fmt.Print(script)
			return nil
		},
	}
}

// The scripts ask the program itself (--generate-bash-completion), so they can't go stale.
var completions = map[string]string{
	"bash": `_agentrun() {
	local words
	words=$("${COMP_WORDS[@]:0:COMP_CWORD}" "${COMP_WORDS[COMP_CWORD]}" --generate-bash-completion 2>/dev/null)
	[[ ${COMP_WORDS[COMP_CWORD]} == -* ]] || words=$("${COMP_WORDS[@]:0:COMP_CWORD}" --generate-bash-completion 2>/dev/null)
	COMPREPLY=($(compgen -W "${words}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _agentrun agentrun
`,
	"zsh": `#compdef agentrun
_agentrun() {
	local -a words
	words=("${(@f)$(_CLI_ZSH_AUTOCOMPLETE_HACK=1 ${words[@]:0:#words[@]-1} ${words[-1]} --generate-bash-completion 2>/dev/null)}")
	_describe agentrun words || _files
}
compdef _agentrun agentrun
`,
	"fish": `complete -c agentrun -a '(set -l t (commandline -opc); $t --generate-bash-completion 2>/dev/null)'
`,
}
