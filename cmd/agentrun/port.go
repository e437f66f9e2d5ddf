// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/shown"
)

const portExample = "agentrun port publish REF 8000"

func (l *liveVerbs) port() *cli.Command {
	return &cli.Command{
		Name:     "port",
		Usage:    "look at a server inside a live run",
		Category: "live runs",
		Description: `A TCP port that the agent serves is reached from the host, and by whoever has its secret alone. Everything open is cut when the run
loses its ring, is put in quarantine or killed, and what is published ends with the run.

   agentrun port publish planner 8000    # a link for a browser, which works once
   agentrun port link planner 8000       # another one
   agentrun port rm planner 8000

On record as port_publish, and each connection as egress of type ingress.

Exit code: 0; 1 refused or not done; 2 usage.`,
		HideHelpCommand: true,
		Subcommands: []*cli.Command{
			l.verb(&cli.Command{
				Name: "publish", Usage: "let a port be reached from the host", ArgsUsage: "REF PORT", Action: l.publishAction,
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "to", Usage: "listen on `ADDRESS:PORT`, loopback unless --anywhere", DefaultText: "a loopback address of its own, a free port"},
					&cli.BoolFlag{Name: "anywhere", Usage: "--to may be an address that others than this host reach"},
					&cli.BoolFlag{Name: "no-token", Usage: "pass the bytes as they are, to whoever connects"},
					jsonFlag(),
				},
			}),
			l.verb(&cli.Command{
				Name: "link", Usage: "make a new link to a published port, which works once", ArgsUsage: "REF PORT", Action: l.linkAction,
				Flags: []cli.Flag{jsonFlag()},
			}),
			l.verb(&cli.Command{
				Name: "ls", Usage: "list the published ports of a run", ArgsUsage: "REF", Action: l.portsAction, Flags: []cli.Flag{jsonFlag()},
			}),
			l.verb(&cli.Command{
				Name: "rm", Usage: "end the publication of a port, and all its connections", ArgsUsage: "REF PORT", Action: l.unpublishAction,
			}),
		},
	}
}

// portOf takes REF and PORT.
func (l *liveVerbs) portOf(c *cli.Context) (ref string, port int, err error) {
	a, err := refs(c, 1, 2)
	if err != nil {
		return "", 0, err
	}
	if len(a) < 2 {
		return "", 0, usagef(portExample, "which port? It is the one in the sandbox")
	}
	n, err := strconv.ParseUint(a[1], 10, 16)
	if err != nil || n == 0 {
		return "", 0, usagef(portExample, "PORT %.64q: want 1 to 65535", a[1])
	}
	return a[0], int(n), nil //nolint:gosec // of 16 bits
}

func (l *liveVerbs) publishAction(c *cli.Context) error {
	ref, port, err := l.portOf(c)
	if err != nil {
		return err
	}
	ask := control.PortRequest{Port: port, To: c.String("to"), Anywhere: c.Bool("anywhere"), Raw: c.Bool("no-token")}
	if host, at, ok := strings.Cut(ask.To, ":"); ok && host == "localhost" {
		ask.To = "127.0.0.1:" + at
	}
	if _, err := ask.Addr(); err != nil {
		if e, ok := errors.AsType[*control.Error](err); ok && e.Hint != "" {
			return usagef("--anywhere says that they may; nothing is encrypted, the token neither", "--to %.64q: others than this host reach it", ask.To)
		}
		return usagef("such as --to 127.0.0.1:8080", "--to %.64q: want ADDRESS:PORT", ask.To)
	}
	return l.publish(c, ref, ask)
}

func (l *liveVerbs) linkAction(c *cli.Context) error {
	ref, port, err := l.portOf(c)
	if err != nil {
		return err
	}
	return l.publish(c, ref, control.PortRequest{Port: port, Link: true})
}

func (l *liveVerbs) publish(c *cli.Context, ref string, ask control.PortRequest) error {
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, ref)
	if err != nil {
		return err
	}
	p, err := r.by.Publish(ctx, r.ID, ask, operatorName())
	switch {
	case err != nil:
		return refusal(fmt.Sprintf("publish port %d of %s", ask.Port, r.label()), err)
	case c.Bool("json"):
		return printJSON(p)
	case p.Raw:
		_, err = fmt.Println(oneLine(p.Address))
	default:
		_, err = fmt.Println(oneLine(p.URL))
	}
	return err
}

func (l *liveVerbs) portsAction(c *cli.Context) error {
	a, err := refs(c, 1, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, a[0])
	if err != nil {
		return err
	}
	list, err := r.by.Ports(ctx, r.ID)
	if err != nil {
		return refusal("list ports of "+r.label(), err)
	}
	if c.Bool("json") {
		return printJSON(list)
	}
	t := shown.Table{Columns: []shown.Column{{Head: "PORT", Right: true}, {Head: "ADDRESS"}, {Head: "TOKEN"}, {Head: "OPEN", Right: true}}}
	for _, p := range list {
		token := "yes"
		if p.Raw {
			token = "no"
		}
		t.Row(fmt.Sprint(p.Port), oneLine(p.Address), token, fmt.Sprint(p.Open))
	}
	_, err = fmt.Print(t.String())
	return err
}

func (l *liveVerbs) unpublishAction(c *cli.Context) error {
	ref, port, err := l.portOf(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, ref)
	if err != nil {
		return err
	}
	return refusal(fmt.Sprintf("end port %d of %s", port, r.label()), r.by.Unpublish(ctx, r.ID, port, operatorName()))
}
