// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"agentrun/internal/read"
	"agentrun/toolproxy/cmdtool"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Config is the `mcp:` section of a source of tools: either url or command.
type Config struct {
	URL string `yaml:"url"`
	httptool.Server
	Command *cmdtool.Config `yaml:"command"`
	Only    []string        `yaml:"only"`   // names upstream; empty: all
	Errors  string          `yaml:"errors"` // hide (default) or pass: the text of errors
}

// Options are what sources are given by the gateway.
type Options struct {
	Secrets    httptool.Secrets
	Supervisor link.Supervisor                  // for commands; nil: none can be started
	Context    context.Context                  // of the run: processes and sessions end with it; nil: background
	Clock      func() time.Time                 // nil: time.Now
	Trace      func(ctx context.Context) string // traceparent for upstreams; nil: none
	// Report is told which tool of a server isn't offered, and why. It gets no contents. nil: nobody is.
	Report func(server, tool, why string)
}

// CommandName is the name under which the supervisor knows the command of a server. A tool's name has no slash, so it can't
// be one.
func CommandName(server string) string { return "mcp/" + server }

func parse(n *read.Node) (Config, error) {
	var c Config
	n.Into(&c)
	return c, n.Done(c.check())
}

func (c Config) check() error {
	switch {
	case (c.URL == "") == (c.Command == nil):
		return read.Bad("url", "exactly one of url and command is wanted")
	case c.Command != nil && (len(c.Headers) > 0 || c.CAFile != "" || c.AllowPrivate):
		return read.Bad("command", "headers, ca_file and allow_private belong to url")
	case c.Command != nil && c.Command.Output != "":
		return read.Bad("command.output", "a server's output is MCP")
	case c.Errors != "" && c.Errors != "hide" && c.Errors != "pass":
		return read.Bad("errors", "is hide or pass")
	case slices.ContainsFunc(c.Only, func(n string) bool { return !toolName(n) }):
		return read.Bad("only", "has what can't be a tool's name")
	}
	if c.Command != nil {
		return read.Under("command", c.Command.Check())
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return read.Bad("url", "is http:// or https:// with a host, without user, password and fragment")
	}
	return nil
}

// Commands returns what the source of an `mcp:` section may start, for the supervisor to know beforehand.
func Commands(name string, n *read.Node) ([]link.Command, error) {
	c, err := parse(n)
	if err != nil || c.Command == nil {
		return nil, err
	}
	return []link.Command{c.Command.Command(CommandName(name))}, nil
}

// Sources makes sources for the registry's `mcp:` sections. It reads ca_file, so it runs before privileges are dropped;
// it connects nowhere.
func Sources(o Options) tools.SourceFactory {
	return func(name string, n *read.Node) (tools.Source, error) {
		c, err := parse(n)
		if err != nil {
			return nil, err
		}
		s, err := New(name, c, o)
		if err := n.Done(err); err != nil {
			return nil, err
		}
		return s, nil
	}
}

// New makes a source. Close ends its connection.
func New(name string, c Config, o Options) (*Source, error) {
	if o.Context == nil {
		o.Context = context.Background()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Report == nil {
		o.Report = func(string, string, string) {}
	}
	s := &Source{name: name, config: c, options: o, turn: make(chan struct{}, 1)}
	if c.Command != nil {
		if o.Supervisor == nil {
			return nil, read.Bad("command", "commands can't be run here")
		}
		s.dial = s.dialCommand
		return s, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, read.Bad("url", "is malformed")
	}
	var headers http.Header
	if s.client, headers, s.hide, err = c.Server.Client(u.Scheme, o.Secrets); err != nil {
		return nil, err
	}
	s.client.Transport = &guard{next: s.client.Transport, origin: *u, headers: headers, trace: o.Trace, largest: &s.largest}
	s.dial = s.dialHTTP
	return s, nil
}
