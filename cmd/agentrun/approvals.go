// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
)

func approvalsCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "approvals",
		Usage: "calls that wait for an operator, and standing grants",
		Description: `Tools that reach outside for good (category D) wait until an operator approves the very call. An approval is good for that
call only; a standing grant is for every call of a tool by one agent, until it ends.

   agentrun approvals list --watch
   agentrun approvals show k3x7q2m5t9w1a8c4
   agentrun approvals approve k3x7q2m5t9w1a8c4
   agentrun approvals grant --agent mailer --tool webhook.send --for 1h
   agentrun approvals revoke p5d8s2j6v1n9b3f7`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "what waits, and the standing grants", Action: g.onNode(approvalsList),
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "all", Usage: "also what was answered or ended, for a day"},
					&cli.BoolFlag{Name: "watch", Usage: "go on, and print each new call that waits"},
					jsonFlag(),
				}},
			{Name: "show", Usage: "one call with its arguments, secrets masked", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(approvalsShow)},
			{Name: "approve", Usage: "let a call go on, once", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(approvalsAnswer(true))},
			{Name: "deny", Usage: "refuse a call", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(approvalsAnswer(false))},
			{Name: "grant", Usage: "approve a tool's calls beforehand", Action: verb.Action(g.approvalsGrant),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "agent", Usage: "`ID` of the agent"},
					&cli.StringFlag{Name: "tool", Usage: "`NAME` of the tool"},
					&cli.StringFlag{Name: "args", Usage: "only with the arguments of this `DIGEST`, as show prints it (default: any arguments)"},
					&cli.DurationFlag{Name: "for", Usage: "how long, `TIME` as 30m or 24h, at most 720h", Value: time.Hour},
					jsonFlag(),
				}},
			{Name: "revoke", Usage: "take a standing grant back", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(approvalsRevoke)},
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

func approvalsList(c *cli.Context, h *hypervisor.Hypervisor, _ []string) error {
	calls, err := h.Approvals(c.Context)
	if err != nil {
		return err
	}
	grants, err := h.StandingGrants(c.Context)
	if err != nil {
		return err
	}
	shown, rows := []hypervisor.Approval{}, [][]any{}
	for _, a := range calls {
		if a.State == hypervisor.ApprovalPending || c.Bool("all") {
			shown, rows = append(shown, a), append(rows, approvalRow(a))
		}
	}
	if c.Bool("watch") {
		return approvalsWatch(c, h, shown)
	}
	for _, s := range grants {
		rows = append(rows, []any{s.ID, "standing grant", s.Tool, s.Agent, "-", s.Expires})
	}
	return printList(c, map[string]any{"approvals": shown, "grants": grants},
		"APPROVAL\tSTATE\tTOOL\tAGENT\tRUN\tUNTIL", rows, func(row []any) []any { return row })
}

func approvalRow(a hypervisor.Approval) []any {
	return []any{a.ID, a.State, a.Tool, orDash(a.Agent), a.Run, a.Expires}
}

// approvalsWatch prints each call once, as one line, until it is interrupted.
func approvalsWatch(c *cli.Context, h *hypervisor.Hypervisor, calls []hypervisor.Approval) error {
	seen := map[string]bool{}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		for _, a := range calls {
			if seen[a.ID] || a.State != hypervisor.ApprovalPending {
				continue
			}
			seen[a.ID] = true
			if err := printResult(c, a, "%s\t%s\t%s\t%s\t%s\t%s\n", approvalRow(a)...); err != nil {
				return err
			}
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-t.C:
		}
		var err error
		if calls, err = h.Approvals(c.Context); err != nil {
			return err
		}
	}
}

func approvalsShow(c *cli.Context, h *hypervisor.Hypervisor, id []string) error {
	a, err := h.Approval(c.Context, id[0])
	if err != nil {
		return approvalHint(err)
	}
	err = printResult(c, a, "approval   %s\nstate      %s\ntool       %s\nagent      %s\nrun        %s\n"+
		"until      %s\nreason     %s\ndigest     %s\narguments  %s\n", a.ID, a.State, a.Tool, orDash(a.Agent), orDash(a.Run),
		a.Expires, orDash(printable(a.Reason)), a.Digest, shownJSON(a.Args))
	if a.By != "" && !c.Bool("json") {
		fmt.Printf("by         %s\n", printable(a.By))
	}
	return err
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

func approvalsAnswer(approve bool) func(*cli.Context, *hypervisor.Hypervisor, []string) error {
	return func(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
		call, err := h.AnswerApproval(c.Context, a[0], approve, operatorName())
		if err != nil {
			return approvalHint(err)
		}
		return printResult(c, call, "call %s of %s is %s\n", call.ID, call.Tool, call.State)
	}
}

func (g *global) approvalsGrant(c *cli.Context, _ []string) error {
	if c.String("agent") == "" || c.String("tool") == "" {
		return hinted.New(errors.New("--agent or --tool is missing"), "agentrun approvals grant --agent ID --tool NAME --for 1h")
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		s, err := h.GrantApproval(c.Context, hypervisor.StandingGrant{
			Agent: c.String("agent"), Tool: c.String("tool"), Digest: c.String("args"), By: operatorName(),
			Expires: time.Now().Add(c.Duration("for")),
		})
		if err != nil {
			return approvalHint(err)
		}
		return printResult(c, s, "grant %s: agent %s may call %s until %s\n", s.ID, s.Agent, s.Tool, s.Expires)
	})
}

func approvalsRevoke(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	s, err := h.RevokeApproval(c.Context, a[0], operatorName())
	if s.ID == "" {
		return approvalHint(err)
	}
	return errors.Join(err, printResult(c, s, "grant %s is revoked: agent %s, %s\n", s.ID, s.Agent, s.Tool))
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
