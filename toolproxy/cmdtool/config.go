// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"path/filepath"

	"agentrun/internal/read"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Config is the `command:` section of a tool. Ring, profile and limits are as `agentrun exec` has them.
type Config struct {
	Argv      []string `yaml:"argv"`   // program, with its whole path, and arguments
	Output    string   `yaml:"output"` // json (default) or text
	Ring      int      `yaml:"ring"`   // 2 or 3, which is the default; the supervisor starts no tool's command in ring 1
	Profile   string   `yaml:"profile"`
	Env       []string `yaml:"env"`
	Memory    string   `yaml:"memory"`
	Timeout   string   `yaml:"timeout"` // of the sandbox; the tool's own ends a call earlier
	Workspace string   `yaml:"workspace"`
	ROBind    []string `yaml:"ro_bind"`
	Allow     []string `yaml:"allow"`
}

const (
	outputJSON = "json"
	outputText = "text"
	maxArgv    = 256
)

// parse reads a `command:` section.
func parse(n *read.Node) (Config, error) {
	var c Config
	n.Into(&c)
	return c, n.Done(c.Check())
}

// Check says what is wrong with a configuration.
func (c Config) Check() error {
	switch {
	case len(c.Argv) == 0 || len(c.Argv) > maxArgv:
		return read.Bad("argv", "1 to %d words are wanted", maxArgv)
	case !filepath.IsAbs(c.Argv[0]):
		return read.Bad("argv", "the program is named with its whole path, so that no PATH decides which one it is")
	case c.Output != "" && c.Output != outputJSON && c.Output != outputText:
		return read.Bad("output", "is json or text")
	case c.Ring != 0 && c.Ring != 2 && c.Ring != 3:
		return read.Bad("ring", "is 2 or 3, not %d: a tool's command runs in no more privileged sandbox", c.Ring)
	}
	return nil
}

// Command is how the supervisor is told about it, under the given name.
func (c Config) Command(tool string) link.Command {
	ring := c.Ring
	if ring == 0 {
		ring = 3
	}
	return link.Command{
		Tool: tool, Argv: c.Argv, Ring: ring, Profile: c.Profile, Env: c.Env, Memory: c.Memory, Timeout: c.Timeout,
		Workspace: c.Workspace, ROBind: c.ROBind, Allow: c.Allow,
	}
}

// Commands returns what the tool of a `command:` section may start, for the supervisor to know beforehand.
func Commands(name string, n *read.Node) ([]link.Command, error) {
	c, err := parse(n)
	if err != nil {
		return nil, err
	}
	return []link.Command{c.Command(name)}, nil
}

// Options are what tools of this kind are given by the gateway.
type Options struct {
	Supervisor link.Supervisor // nil refuses every call
}

// Factory makes command tools for the registry's `command:` sections.
func Factory(o Options) tools.Factory {
	return func(name string, n *read.Node) (tools.Tool, error) {
		c, err := parse(n)
		if err != nil {
			return nil, err
		}
		return command{runner{o.Supervisor}, name, c.Output == outputText}, nil
	}
}
