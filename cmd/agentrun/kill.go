// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/rings"
)

// killTime bounds a kill: handlers and compensations have their own limits (H-21), and the processes are frozen all the while.
const killTime = 5 * time.Minute

func (l *liveVerbs) kill() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "kill",
		Usage:     "end runs: when it returns, no process of theirs is alive",
		ArgsUsage: "REF… | --agent ID | --session ID | --all",
		Description: `Processes are frozen at once, then the kill handlers and compensations run, then everything is killed and counted. A run that
isn't there any more keeps none of the others alive. --all asks once on a terminal.

   agentrun kill planner
   agentrun kill --agent planner-1 --reason "reads what it shouldn't"
   agentrun kill --all --yes --json

Exit code: 0 all are dead (for --agent, --session, --all also if there was none); 1 one isn't known to be, or a supervisor
doesn't answer; 2 usage.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "agent", Usage: "every run of agent `ID`"},
			&cli.StringFlag{Name: "session", Usage: "every run of session `ID`"},
			&cli.BoolFlag{Name: "all", Usage: "every run on this host"},
			&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the audit"},
			&cli.BoolFlag{Name: "yes", Usage: "don't ask"},
			jsonFlag(),
		},
		Action: l.killAction,
	})
}

func (l *liveVerbs) killAction(c *cli.Context) error {
	which, names, err := killSelector(c)
	if err != nil {
		return err
	}
	if which.All && !c.Bool("yes") && isTerminal(os.Stdin) {
		if err := l.confirm(c.Context); err != nil {
			return err
		}
	}
	k := killing{reason: c.String("reason"), results: []control.KillResult{}, print: !c.Bool("json")}
	ctx, cancel := context.WithTimeout(c.Context, killTime)
	defer cancel()
	if names != nil {
		l.killRuns(ctx, &k, names)
	} else {
		// Before, and for what ends by itself meanwhile behind it: what waits to be started again is ended too.
		again := func() error { return l.g.StopBetweenRuns(operatorName(), which.Agent, which.Session) }
		if err := again(); err != nil {
			k.fail(err)
		}
		l.killEverywhere(ctx, &k, which)
		if err := again(); err != nil {
			k.fail(err)
		}
	}
	slices.SortFunc(k.results, func(a, b control.KillResult) int { return strings.Compare(a.ID, b.ID) })
	if c.Bool("json") {
		if err := printJSON(k.results); err != nil {
			return err
		}
	} else if len(k.results) == 0 && !k.bad {
		fmt.Println("no such run is live")
	}
	if k.bad {
		return exitError(exitNotDone)
	}
	return nil
}

// killSelector takes exactly one way of saying which runs: with two, one of them would be ignored.
func killSelector(c *cli.Context) (which control.Selector, names []string, err error) {
	const example = "agentrun kill REF…, or one of --agent ID, --session ID, --all"
	which = control.Selector{Agent: c.String("agent"), Session: c.String("session"), All: c.Bool("all")}
	ways := 0
	for _, given := range []bool{c.NArg() > 0, c.IsSet("agent"), c.IsSet("session"), which.All} {
		ways += count(given)
	}
	switch {
	case ways == 0:
		return which, nil, usagef(example, "agentrun kill: which runs?")
	case ways > 1:
		return which, nil, usagef(example, "agentrun kill: runs are named in more than one way")
	case c.IsSet("agent"):
		err = identifier("--agent", which.Agent, rings.CheckAgentID)
	case c.IsSet("session"):
		err = identifier("--session", which.Session, rings.CheckSessionID)
	case !which.All:
		names, err = refs(c, 1, manyRefs)
	}
	if err == nil && c.IsSet("reason") {
		err = checkReason("--reason", c.String("reason"), `agentrun kill REF --reason "what was seen"`)
	}
	return which, names, err
}

func identifier(flag, id string, check func(string) error) error {
	if err := check(id); err != nil {
		return usagef("identifiers are letters and digits, inside also . _ : -", "%s %.64q: %w", flag, id, err)
	}
	return nil
}

func (l *liveVerbs) confirm(ctx context.Context) error {
	all := func(control.Sandbox) bool { return true }
	list, err := l.list(ctx, all)
	if err != nil {
		complain(err) // the kill reaches for those too
	}
	fmt.Fprintf(os.Stderr, "Kill every run on this host (%d now)? Type yes: ", len(list))
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return hinted.New(errors.New("nothing was killed"), "--yes doesn't ask")
	}
	return nil
}

// killing gathers what several supervisors did.
type killing struct {
	reason string
	print  bool

	mu      sync.Mutex
	results []control.KillResult
	bad     bool
}

func (k *killing) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bad = true
	complain(err)
}

func (k *killing) ask(ctx context.Context, of string, by control.Controller, which control.Selector) {
	results, err := by.Kill(ctx, which, k.reason, operatorName())
	for _, r := range results {
		k.add(r)
	}
	switch {
	case which.ID == "" && hasEnded(err):
	case err != nil:
		k.fail(refusal("kill "+of, err))
	case which.ID != "" && len(results) == 0:
		k.fail(hinted.New(fmt.Errorf("kill %s: it is not live any more", of), liveHint(control.CodeEnded)))
	}
}

// add counts a run as dead only if its result says that no process is left.
func (k *killing) add(r control.KillResult) {
	var is struct {
		Processes int     `json:"processes_killed"`
		Dead      bool    `json:"processes_dead"`
		Seconds   float64 `json:"duration"`
		Errors    []struct {
			Stage   string `json:"stage"`
			Name    string `json:"name"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	err := json.Unmarshal(r.Result, &is)
	k.mu.Lock()
	k.results = append(k.results, r)
	took := time.Duration(is.Seconds * float64(time.Second)).Round(10 * time.Microsecond)
	if k.print && err == nil && is.Dead {
		processes := "processes"
		if is.Processes == 1 {
			processes = "process"
		}
		fmt.Printf("run %s is dead: %d %s killed in %v\n", oneLine(r.ID), is.Processes, processes, took)
	}
	k.mu.Unlock()
	if err != nil || !is.Dead {
		k.fail(hinted.New(fmt.Errorf("kill run %s: its processes are not known to be dead", oneLine(r.ID)), "agentrun inspect "+oneLine(r.ID)+" lists them; agentrun gc cleans up after a supervisor that is gone"))
	}
	for _, e := range is.Errors { // the processes are dead all the same; what wasn't undone is for the operator
		k.mu.Lock()
		fmt.Fprintf(os.Stderr, "agentrun: kill run %s: %s\n", oneLine(r.ID), oneLine(strings.TrimSpace(e.Stage+" "+e.Name)+": "+e.Message))
		k.mu.Unlock()
	}
}

func (l *liveVerbs) killRuns(ctx context.Context, k *killing, names []string) {
	found, errs := l.findEach(ctx, names)
	for _, err := range errs {
		k.fail(err)
	}
	var wg sync.WaitGroup
	for _, r := range found {
		wg.Go(func() { k.ask(ctx, r.label(), r.by, control.Selector{ID: r.ID}) })
	}
	wg.Wait()
}

// killRounds bounds how often killEverywhere looks for supervisors that have come since: whoever starts runs faster than they
// can be killed has to be stopped first.
const killRounds = 8

// killEverywhere asks every supervisor, and those that have come while it asked.
func (l *liveVerbs) killEverywhere(ctx context.Context, k *killing, which control.Selector) {
	asked := map[string]bool{}
	for range killRounds {
		list, err := l.runs().Supervisors(ctx)
		var wg sync.WaitGroup
		fresh := false
		for _, s := range list {
			if !asked[s.key] {
				asked[s.key], fresh = true, true
				wg.Go(func() { k.ask(ctx, "at supervisor "+oneLine(s.name), s.Controller, which) })
			}
		}
		wg.Wait()
		if !fresh {
			if err != nil {
				k.fail(err)
			}
			return
		}
	}
	k.fail(hinted.New(errors.New("runs are being started faster than they can be killed"), "stop what starts them, then kill again"))
}
