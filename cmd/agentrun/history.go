// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/audit"
	"agentrun/internal/verb"
)

// pastRun is what the audit has of a run. The JSON of `agentrun history --json` is stable.
type pastRun struct {
	ID      string     `json:"id"`
	Agent   string     `json:"agent_id,omitempty"`
	Session string     `json:"session_id,omitempty"`
	Profile string     `json:"profile"`
	Ring    int        `json:"ring"`
	State   string     `json:"state"` // as in the status file; running; lost: no end is on record, and the run doesn't live
	Exit    *int64     `json:"exit_code"`
	Started time.Time  `json:"started_at"`
	Ended   *time.Time `json:"ended_at"`
	Wall    int64      `json:"wall_time_ns,omitempty"`
	Refused int64      `json:"refused,omitempty"` // system calls
	Digest  string     `json:"plan_digest"`
}

func historyCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "history",
		Usage: "list the runs that there were, from the audit",
		Description: `The newest last. STATE is how a run ended; running; or lost, where its supervisor was killed and nobody was left to record an end.

   agentrun history -n 20
   agentrun history --agent planner-1 --since 24h
   agentrun history --json | jq '.[] | select(.state != "exited")'`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "agent", Usage: "only runs of agent `ID`"},
			&cli.StringFlag{Name: "session", Usage: "only runs of session `ID`"},
			&cli.StringFlag{Name: "since", Usage: "runs that were started from `TIME` on: RFC 3339, or how long ago, as 90m"},
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Usage: "how many at most, the newest; 0: all", Value: 50},
			jsonFlag(),
		},
		Action: verb.Action(g.history),
	}
}

func (g *global) history(c *cli.Context, _ []string) error {
	if c.Int("lines") < 0 {
		return fmt.Errorf("--lines %d: want 0 or more", c.Int("lines"))
	}
	since, err := timeFlag(c, "since", time.Now())
	if err != nil {
		return err
	}
	agent, session := c.String("agent"), c.String("session")
	runs, unread := auditCLI{g}.runs(c.Int("lines"), func(r *pastRun) bool {
		return (agent == "" || r.Agent == agent) && (session == "" || r.Session == session) && !r.Started.Before(since)
	})
	g.whoLives(c.Context, runs)
	err = printList(c, runs, "STARTED\tID\tAGENT\tSESSION\tRING\tPROFILE\tSTATE\tEXIT\tTIME", runs, func(r *pastRun) []any {
		exit, wall := "-", "-"
		if r.Exit != nil {
			exit, wall = fmt.Sprint(*r.Exit), time.Duration(r.Wall).Round(time.Millisecond).String()
		}
		return []any{r.Started, r.ID, orDash(r.Agent), orDash(r.Session), r.Ring, r.Profile, r.State, exit, wall}
	})
	return errors.Join(err, unread)
}

// runs reads the newest runs that fit out of every chain, oldest first. What can't be read is told beside what could.
func (a auditCLI) runs(most int, fits func(*pastRun) bool) ([]*pastRun, error) {
	all := []*pastRun{}
	chains, err := audit.Chains(a.logs(), a.checkpoints())
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil // nothing has ever run here
	}
	errs := []error{err}
	for _, chain := range chains {
		runs, err := a.runsOf(chain, most, fits)
		all, errs = append(all, runs...), append(errs, err)
	}
	slices.SortFunc(all, func(a, b *pastRun) int {
		return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	if most > 0 && len(all) > most {
		all = all[len(all)-most:]
	}
	return all, errors.Join(errs...)
}

// runsOf reads one chain. It keeps few more than are asked for: a node may have had millions.
func (a auditCLI) runsOf(chain string, most int, fits func(*pastRun) bool) (runs []*pastRun, err error) {
	r, err := audit.OpenReader(a.logs(), chain)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // only its checkpoint is there, which audit verify complains of
	}
	if err != nil {
		return nil, auditError(err)
	}
	defer r.Close()
	byID := map[string]*pastRun{}
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return runs, nil
		}
		if err != nil {
			return runs, auditError(err)
		}
		switch e := l.Entry.Data.(type) {
		case *audit.SandboxStart:
			run := &pastRun{
				ID: e.RunID, Agent: e.AgentID, Session: e.SessionID, Profile: e.Profile, Ring: int(e.Ring - audit.Root), State: stateLost,
				Started: l.Entry.Time, Digest: e.PlanDigest.String(),
			}
			if !fits(run) {
				continue
			}
			byID[run.ID], runs = run, append(runs, run)
			if most > 0 && len(runs) >= 2*most {
				for _, old := range runs[:most] {
					delete(byID, old.ID)
				}
				runs = slices.Clone(runs[most:])
			}
		case *audit.SandboxEnd:
			if run := byID[e.RunID]; run != nil {
				at := l.Entry.Time
				run.State, run.Exit, run.Ended, run.Wall, run.Refused = e.State, &e.ExitCode, &at, e.WallTimeNS, e.Refused
			}
		}
	}
}

// whoLives tells runs that go on from those whose supervisor was killed. Where a supervisor doesn't answer, its runs count as lost
// until it does.
func (g *global) whoLives(ctx context.Context, runs []*pastRun) {
	if !slices.ContainsFunc(runs, func(r *pastRun) bool { return r.State == stateLost }) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	live, _ := boundRuns{runDir: g.RunDir}.All(ctx)
	for _, r := range runs {
		if r.State == stateLost && slices.ContainsFunc(live, func(l liveRun) bool { return l.ID == r.ID }) {
			r.State = "running"
		}
	}
}
