// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
)

func approvalsCommand(g *global) *cli.Command {
	asJSON := func() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }
	return &cli.Command{
		Name:            "approvals",
		Usage:           "calls that wait for an operator, and standing grants",
		HideHelpCommand: true,
		Description: `Tools that reach outside for good (category D) wait until an operator approves the very call. An approval is good for that
call only; a standing grant is for every call of a tool by one agent, until it ends.

   agentrun approvals list --watch
   agentrun approvals show k3x7q2m5t9w1a8c4
   agentrun approvals approve k3x7q2m5t9w1a8c4
   agentrun approvals grant --agent mailer --tool webhook.send --for 1h
   agentrun approvals revoke p5d8s2j6v1n9b3f7`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "what waits, and the standing grants", OnUsageError: usageError,
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "all", Usage: "also what was answered or ended, for a day"},
					&cli.BoolFlag{Name: "watch", Usage: "go on, and print each new call that waits"},
					asJSON(),
				},
				Action: func(c *cli.Context) error { return approvalsList(g, c) }},
			{Name: "show", Usage: "one call with its arguments, secrets masked", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return approvalsShow(g, c) }},
			{Name: "approve", Usage: "let a call go on, once", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return approvalsAnswer(g, c, true) }},
			{Name: "deny", Usage: "refuse a call", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return approvalsAnswer(g, c, false) }},
			{Name: "grant", Usage: "approve a tool's calls beforehand", OnUsageError: usageError,
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "agent", Usage: "`ID` of the agent"},
					&cli.StringFlag{Name: "tool", Usage: "`NAME` of the tool"},
					&cli.StringFlag{Name: "args", Usage: "only with the arguments of this `DIGEST`, as show prints it (default: any arguments)"},
					&cli.DurationFlag{Name: "for", Usage: "how long, `TIME` as 30m or 24h, at most 720h", Value: time.Hour},
					asJSON(),
				},
				Action: func(c *cli.Context) error { return approvalsGrant(g, c) }},
			{Name: "revoke", Usage: "take a standing grant back", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return approvalsRevoke(g, c) }},
		},
	}
}

// operatorName is who answers, as the audit has it: the user who logged in, also behind sudo, if the kernel knows.
func operatorName() string {
	if b, err := os.ReadFile("/proc/self/loginuid"); err == nil {
		if uid := strings.TrimSpace(string(b)); uid != "" && uid != "4294967295" {
			return "uid:" + uid
		}
	}
	return "uid:" + strconv.Itoa(os.Getuid())
}

func approvalsList(g *global, c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		calls, err := h.Approvals(ctx)
		if err != nil {
			return err
		}
		grants, err := h.StandingGrants(ctx)
		if err != nil {
			return err
		}
		shown := []hypervisor.Approval{}
		for _, a := range calls {
			if a.State == hypervisor.ApprovalPending || c.Bool("all") {
				shown = append(shown, a)
			}
		}
		if c.Bool("watch") {
			return approvalsWatch(ctx, c, h, shown)
		}
		if c.Bool("json") {
			return printJSON(map[string]any{"approvals": shown, "grants": grants})
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "APPROVAL\tSTATE\tTOOL\tAGENT\tRUN\tUNTIL")
		for _, a := range shown {
			fmt.Fprintln(w, approvalLine(a))
		}
		for _, s := range grants {
			fmt.Fprintf(w, "%s\tstanding grant\t%s\t%s\t-\t%s\n", s.ID, s.Tool, s.Agent, s.Expires.Format(time.RFC3339))
		}
		return w.Flush()
	})
}

func approvalLine(a hypervisor.Approval) string {
	agent := a.Agent
	if agent == "" {
		agent = "-"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", a.ID, a.State, a.Tool, agent, a.Run, a.Expires.Format(time.RFC3339))
}

// approvalsWatch prints each call once, as one line, until it is interrupted.
func approvalsWatch(ctx context.Context, c *cli.Context, h *hypervisor.Hypervisor, calls []hypervisor.Approval) error {
	seen := map[string]bool{}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		for _, a := range calls {
			if seen[a.ID] || a.State != hypervisor.ApprovalPending {
				continue
			}
			seen[a.ID] = true
			if !c.Bool("json") {
				fmt.Println(approvalLine(a))
			} else if err := printJSON(a); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		var err error
		if calls, err = h.Approvals(ctx); err != nil {
			return err
		}
	}
}

func approvalsShow(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		call, err := h.Approval(ctx, a[0])
		if err != nil {
			return approvalHint(err)
		}
		return printApproval(c, call)
	})
}

func printApproval(c *cli.Context, a hypervisor.Approval) error {
	if c.Bool("json") {
		return printJSON(a)
	}
	fmt.Printf("approval   %s\nstate      %s\ntool       %s\nagent      %s\nrun        %s\nuntil      %s\nreason     %s\ndigest     %s\narguments  %s\n",
		a.ID, a.State, a.Tool, a.Agent, a.Run, a.Expires.Format(time.RFC3339), printable(a.Reason), a.Digest, shownJSON(a.Args))
	if a.By != "" {
		fmt.Printf("by         %s\n", printable(a.By))
	}
	return nil
}

// shownJSON is JSON as it is, on one line, but for what a terminal would obey or not show: control characters, directions and
// what can't be seen are written as JSON writes them. So what is shown means what was asked, and can be pasted elsewhere.
func shownJSON(raw json.RawMessage) string {
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return printable(string(raw))
	}
	return visible(line.String())
}

// visible is JSON that a terminal shows as it is. Line ends stay: within JSON's strings there are none.
func visible(text string) string { return shown.Text(text) }

func approvalsAnswer(g *global, c *cli.Context, approve bool) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		call, err := h.AnswerApproval(ctx, a[0], approve, operatorName())
		if err != nil {
			return approvalHint(err)
		}
		if c.Bool("json") {
			return printJSON(call)
		}
		fmt.Printf("call %s of %s is %s\n", call.ID, call.Tool, call.State)
		return nil
	})
}

func approvalsGrant(g *global, c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if c.String("agent") == "" || c.String("tool") == "" {
		return hinted.New(errors.New("--agent or --tool is missing"), "agentrun approvals grant --agent ID --tool NAME --for 1h")
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		s, err := h.GrantApproval(ctx, hypervisor.StandingGrant{
			Agent: c.String("agent"), Tool: c.String("tool"), Digest: c.String("args"), By: operatorName(), Expires: time.Now().Add(c.Duration("for")),
		})
		if err != nil {
			return approvalHint(err)
		}
		if c.Bool("json") {
			return printJSON(s)
		}
		fmt.Printf("grant %s: agent %s may call %s until %s\n", s.ID, s.Agent, s.Tool, s.Expires.Format(time.RFC3339))
		return nil
	})
}

func approvalsRevoke(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		s, err := h.RevokeApproval(ctx, a[0], operatorName())
		if s.ID == "" {
			return approvalHint(err)
		}
		if c.Bool("json") {
			return errors.Join(err, printJSON(s))
		}
		fmt.Printf("grant %s is revoked: agent %s, %s\n", s.ID, s.Agent, s.Tool)
		return err
	})
}

func approvalHint(err error) error {
	switch {
	case errors.Is(err, hypervisor.ErrNoApproval):
		return hinted.New(err, "agentrun approvals list shows what waits and what is granted")
	case errors.Is(err, hypervisor.ErrLate):
		return hinted.New(err, "the agent has to ask again; agentrun approvals grant approves beforehand")
	case errors.Is(err, hypervisor.ErrGrant):
		return hinted.New(err, "agentrun approvals grant --agent ID --tool NAME --for 1h")
	}
	return err
}
