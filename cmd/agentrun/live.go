// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/rings"
	"agentrun/runtime"
)

// Exit codes of the verbs about live runs (docs/control.md). wait and attach pass on the agent's own code and
// keep to exec's table.
const (
	exitNotDone = 1 // refused, or a supervisor didn't answer
	exitUsage   = 2 // the command line makes no sense; nothing was asked of anybody
)

// answerTime is how long a supervisor may take over one request that doesn't wait for a run's end. It freezes
// and kills in milliseconds; one that is stopped or gone must not hold up an operator's answer for ever.
const answerTime = 30 * time.Second

// liveRuns finds live runs and who answers for them: package control (livebind.go), or a fake in tests.
type liveRuns interface {
	// All lists the live runs. The error names supervisors that don't answer; the runs of all others come beside
	// it.
	All(ctx context.Context) ([]liveRun, error)
	// Find takes an id, the unique prefix of one, or an exact name.
	Find(ctx context.Context, ref string) (liveRun, error)
	// Supervisors lists everybody who may have runs. The error names those that can't be asked.
	Supervisors(ctx context.Context) ([]liveSupervisor, error)
}

type liveRun struct {
	control.Sandbox
	by control.Controller
}

// label is how messages call a run. Its name is what somebody chose.
func (r liveRun) label() string {
	if r.Name == "" {
		return "run " + oneLine(r.ID)
	}
	return fmt.Sprintf("run %s (%s)", oneLine(r.ID), oneLine(r.Name))
}

type liveSupervisor struct {
	name string
	key  string // never that of an earlier one
	control.Controller
}

// hasEnded tells that there is nobody at a socket any more: its runs died with it.
func hasEnded(err error) bool {
	e, ok := errors.AsType[*control.Error](err)
	return ok && e.Code == control.CodeNotFound
}

// incomplete says of a list that others may be missing in it.
func incomplete(err error) error {
	if err == nil {
		return nil
	}
	return hinted.New(err, "what was printed is what the other supervisors say")
}

// liveVerbs is what the verbs about live runs work with.
type liveVerbs struct {
	g    *global
	runs func() liveRuns // after the flags are read: the run folder is one of them
	now  func() time.Time
	tick func(time.Duration) (<-chan time.Time, func())
}

func liveOf(g *global) *liveVerbs {
	return &liveVerbs{
		g: g, now: time.Now,
		runs: func() liveRuns { return boundRuns{runDir: g.RunDir} },
		tick: func(d time.Duration) (<-chan time.Time, func()) { t := time.NewTicker(d); return t.C, t.Stop },
	}
}

func (l *liveVerbs) commands() []*cli.Command {
	return append([]*cli.Command{
		l.ps(), l.top(), l.inspect(), l.events(), l.wait(), l.freeze(), l.thaw(), l.pause(), l.resume(), l.update(), l.extend(), l.elevate(), l.revoke(),
		l.quarantine(), l.release(), l.score(), l.kill(), l.signal(), l.attach(), l.shell(), l.port(), l.output(), l.logs(),
	}, l.filesCommands()...)
}

// verb completes a command whose exit codes are its own.
func (l *liveVerbs) verb(c *cli.Command) *cli.Command { return l.ending(c, exitNotDone, exitUsage) }

// agentsVerb completes a command that ends with the agent's exit code.
func (l *liveVerbs) agentsVerb(c *cli.Command) *cli.Command {
	return l.ending(c, runtime.ExitFailed, runtime.ExitFailed)
}

func (l *liveVerbs) ending(c *cli.Command, notDone, usage int) *cli.Command {
	action := c.Action
	c.Category = "live runs"
	c.HideHelpCommand = true
	if strings.Contains(c.ArgsUsage, "REF") {
		c.BashComplete = l.completeRuns
	}
	c.OnUsageError = func(c *cli.Context, err error, _ bool) error {
		return ended(usage, hinted.New(verb.FlagError(c, err), c.Command.HelpName+" --help lists the flags"))
	}
	c.Action = func(c *cli.Context) error {
		err := action(c)
		if _, ok := errors.AsType[*badUsage](err); ok {
			return ended(usage, err)
		}
		return ended(notDone, err)
	}
	return c
}

// ended says what went wrong, as report does, and gives the code.
func ended(code int, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[exitError](err); ok {
		return own
	}
	complain(err)
	return exitError(code)
}

// complain says what went wrong without ending. What of the text comes from agents acts on no terminal (report).
func complain(err error) {
	report(os.Stderr, err)
}

// badUsage is an error of the command line, found before anybody was asked.
type badUsage struct{ err error }

func (e *badUsage) Error() string { return e.err.Error() }
func (e *badUsage) Unwrap() error { return e.err }

func usagef(hint, format string, args ...any) error {
	return &badUsage{hinted.New(fmt.Errorf(format, args...), hint)}
}

// refused is what a supervisor answered, on one line: its text may hold names that agents chose.
type refused struct {
	text string
	err  error
}

func (e *refused) Error() string { return e.text }
func (e *refused) Unwrap() error { return e.err }

// refusal says what was being done, what the answer was with its code, and the way out.
func refusal(doing string, err error) error {
	if err == nil {
		return nil
	}
	r := &refused{text: doing + ": " + oneLine(err.Error()), err: err}
	if errors.Is(err, context.DeadlineExceeded) {
		return hinted.New(r, "its supervisor doesn't answer; if that is to end, kill the process: the kernel then kills the run")
	}
	e, ok := errors.AsType[*control.Error](err)
	if !ok {
		return r
	}
	if e.Code != "" {
		r.text += " (" + oneLine(e.Code) + ")"
	}
	hint := oneLine(e.Hint)
	if hint == "" {
		hint = liveHint(e.Code)
	}
	return hinted.New(r, hint)
}

func liveHint(code string) string {
	switch code {
	case control.CodeNotFound, control.CodeEnded:
		return "agentrun ps --all lists the live runs and those that are over"
	case control.CodeForbidden:
		return "only root, or a group that the operator's configuration names, may ask a supervisor this"
	case string(rings.CodeInsufficientTrust), string(rings.CodeNoConsensus):
		return "agentrun score REF SCORE [--consensus] says what the agent has earned"
	case string(rings.CodeDuplicateElevation):
		return "agentrun revoke REF ends the one there is"
	case string(rings.CodeQuarantined):
		return "agentrun release REF --witness FILE lets its agent out"
	case string(rings.CodeInvalidTarget):
		return "agentrun ps shows the ring of each run; an elevation goes to a lower number"
	}
	return ""
}

// oneLine is text that a terminal shows as it is, on one line.
func oneLine(s string) string { return shown.Line(s) }

// maxRef bounds what may name a run: identifiers have at most 256 bytes (H-29).
const maxRef = 256

// refs are the runs that the arguments name, looked at before anybody is asked.
func refs(c *cli.Context, lo, hi int) ([]string, error) {
	hint := c.Command.HelpName + " " + c.Command.ArgsUsage + "; agentrun ps lists the live runs"
	switch n := c.NArg(); {
	case n < lo && lo == 1:
		return nil, usagef(hint, "%s: which run?", c.Command.HelpName)
	case n > hi:
		return nil, usagef(hint, "%s takes %d argument(s), got %d", c.Command.HelpName, hi, n)
	}
	for _, r := range c.Args().Slice() {
		if r == "" || len(r) > maxRef {
			return nil, usagef(hint, "%.64q names no run: want an id, the beginning of one, or a name", r)
		}
	}
	return c.Args().Slice(), nil
}

const manyRefs = 4096

// find gives every run named, once each, or an error for each that isn't there: then nothing is done to any.
func (l *liveVerbs) find(ctx context.Context, refs []string) ([]liveRun, error) {
	found, errs := l.findEach(ctx, refs)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return found, nil
}

func (l *liveVerbs) findEach(ctx context.Context, refs []string) (found []liveRun, errs []error) {
	runs := l.runs()
	for _, ref := range refs {
		r, err := runs.Find(ctx, ref)
		switch {
		case err != nil:
			errs = append(errs, refusal(fmt.Sprintf("run %q", ref), err))
		case !slices.ContainsFunc(found, func(f liveRun) bool { return f.ID == r.ID }):
			found = append(found, r)
		}
	}
	return found, errs
}

func (l *liveVerbs) findOne(ctx context.Context, ref string) (liveRun, error) {
	r, err := l.runs().Find(ctx, ref)
	return r, refusal(fmt.Sprintf("run %q", ref), err)
}

// done is what became of one run in a verb that takes several.
type done struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
	// GivenBack is of pause: bytes of memory.
	GivenBack *int64 `json:"given_back_bytes,omitempty"`
}

// one asks the supervisor of the run that the command names. doing says what for, with %s for the run.
func one[T any](l *liveVerbs, c *cli.Context, doing string, ask func(context.Context, liveRun) (T, error)) (
	r liveRun, answer T, err error,
) {
	a, err := refs(c, 1, 1)
	if err != nil {
		return r, answer, err
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	if r, err = l.findOne(ctx, a[0]); err != nil {
		return r, answer, err
	}
	answer, err = ask(ctx, r)
	return r, answer, refusal(fmt.Sprintf(doing, r.label()), err)
}

// each does one thing to every run that the command names, at most most, and goes on where it is refused.
// Nothing is done unless all of them are there.
func (l *liveVerbs) each(
	c *cli.Context, most int, doing, did string, do func(context.Context, liveRun) error,
) error {
	return l.eachTelling(c, most, doing, func(ctx context.Context, r liveRun, _ *done) (string, error) { return did, do(ctx, r) })
}

// eachTelling is each of what has something to tell of each run.
func (l *liveVerbs) eachTelling(
	c *cli.Context, most int, doing string, do func(context.Context, liveRun, *done) (did string, err error),
) error {
	a, err := refs(c, 1, most)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	found, err := l.find(ctx, a)
	if err != nil {
		return err
	}
	results, bad := []done{}, false
	for _, r := range found {
		d := done{ID: r.ID, Name: r.Name, Done: true}
		did, err := do(ctx, r, &d)
		if err := refusal(doing+" "+r.label(), err); err != nil {
			d.Done, d.Error, bad = false, err.Error(), true
			complain(err)
		} else if !c.Bool("json") {
			fmt.Printf("%s %s\n", r.label(), did)
		}
		results = append(results, d)
	}
	if c.Bool("json") {
		if err := printJSON(results); err != nil {
			return err
		}
	}
	if bad {
		return exitError(exitNotDone)
	}
	return nil
}

// completeRuns offers what names a live run to the shell.
func (l *liveVerbs) completeRuns(c *cli.Context) {
	if l.g.RunDir == "" && l.g.load(c) != nil { // the library skips what comes before a command
		return
	}
	ctx, cancel := context.WithTimeout(c.Context, time.Second)
	defer cancel()
	runs, _ := l.runs().All(ctx) // a shell's completion has nowhere to complain
	for _, r := range runs {
		for _, word := range []string{r.ID, r.Name} {
			if rings.CheckAgentID(word) == nil { // of the form of all identifiers (H-29): safe in a shell
				fmt.Fprintln(c.App.Writer, word)
			}
		}
	}
}
