// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/internal/verb"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "print a completion script",
		ArgsUsage:   "bash|zsh|fish",
		Description: `   source <(agentrun completion bash)`,
		Action: verb.Action(func(_ *cli.Context, a []string) error {
			script, ok := completions[a[0]]
			if !ok {
				return fmt.Errorf("no completion for %q: want bash, zsh or fish", a[0])
			}
			fmt.Print(script)
			return nil
		}),
	}
}

// The scripts ask the program itself (--generate-bash-completion), so they can't go stale. Behind -- they don't: what stands there is the
// agent's command, which the program would not take for a question, but run.
var completions = map[string]string{
	"bash": `_agentrun() {
	local words
	[[ " ${COMP_WORDS[*]:0:COMP_CWORD} " != *" -- "* ]] || return
	words=$("${COMP_WORDS[@]:0:COMP_CWORD}" "${COMP_WORDS[COMP_CWORD]}" --generate-bash-completion 2>/dev/null)
	[[ ${COMP_WORDS[COMP_CWORD]} == -* ]] || words=$("${COMP_WORDS[@]:0:COMP_CWORD}" --generate-bash-completion 2>/dev/null)
	COMPREPLY=($(compgen -W "${words}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _agentrun agentrun
`,
	"zsh": `#compdef agentrun
_agentrun() {
	[[ " ${words[1,CURRENT-1]} " != *" -- "* ]] || { _files; return }
	local -a found
	found=("${(@f)$(_CLI_ZSH_AUTOCOMPLETE_HACK=1 ${words[@]:0:#words[@]-1} ${words[-1]} --generate-bash-completion 2>/dev/null)}")
	_describe agentrun found || _files
}
compdef _agentrun agentrun
`,
	"fish": `complete -c agentrun -n 'not contains -- -- (commandline -opc)' -a '(set -l t (commandline -opc); $t --generate-bash-completion 2>/dev/null)'
`,
}

const completeFlag = "--generate-bash-completion"

// completeFlags lists the flags that begin like the last word, when the shell asks. The library's own
// listing panics on half a flag when short options may be combined (-it).
func completeFlags(w io.Writer, app *cli.App, args []string) bool {
	if len(args) < 3 || args[len(args)-1] != completeFlag {
		return false
	}
	words, last := args[1:len(args)-2], args[len(args)-2]
	if !strings.HasPrefix(last, "-") {
		return false
	}
	flags, commands := app.Flags, app.Commands
	for _, word := range words {
		if word == "--" {
			return true // what follows is the agent's
		}
		for _, c := range commands {
			if c.HasName(word) {
				flags, commands = c.Flags, c.Subcommands
				break
			}
		}
	}
	for _, f := range flags {
		for _, name := range f.Names() {
			dashed := strings.Repeat("-", min(2, len(name))) + name
			if strings.HasPrefix(dashed, last) {
				fmt.Fprintln(w, dashed)
			}
		}
	}
	return true
}
