// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/urfave/cli/v2"

	"agentrun/runtime"
)

func (l *liveVerbs) wait() *cli.Command {
	return l.agentsVerb(&cli.Command{
		Name:      "wait",
		Usage:     "wait for the end of runs, and end as they did",
		ArgsUsage: "REF…",
		Description: `   agentrun wait planner; echo $?
   agentrun wait k3x7 p5d8 --json

Runs that are over are found too, by id or by name, for as long as their accounts are kept: some days.

Exit code: the run's, as exec gives it; of several the first that isn't 0, in the order given. 125 if agentrun can't tell: no such
run, a supervisor that was killed, a mistake in the command line.`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print how each ended, one line of JSON each"}},
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, manyRefs)
			if err != nil {
				return err
			}
			found, err := l.findWaited(c.Context, a)
			if err != nil {
				return err
			}
			return l.waitAll(c.Context, found, c.Bool("json"))
		},
	})
}

// waited is a run that is waited for: a live one, or one that is over.
type waited struct {
	liveRun
	over *endedRun
}

// findWaited gives every run named, once each, live or over, or an error for each that is neither.
func (l *liveVerbs) findWaited(ctx context.Context, refs []string) (found []waited, err error) {
	for _, ref := range refs {
		live, one := l.findOne(ctx, ref)
		w := waited{liveRun: live}
		if hasEnded(one) {
			var over endedRun
			over, one = l.findEnded(ref, one)
			w = waited{liveRun{Sandbox: over.sandbox()}, &over}
		}
		if err = errors.Join(err, one); !slices.ContainsFunc(found, func(f waited) bool { return f.ID == w.ID }) {
			found = append(found, w)
		}
	}
	return found, err
}

func (l *liveVerbs) waitAll(ctx context.Context, runs []waited, asJSON bool) error {
	codes := make([]int, len(runs))
	var mu sync.Mutex // one line at a time
	var wg sync.WaitGroup
	for i, r := range runs {
		wg.Go(func() {
			status, raw, err := l.waitOne(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				codes[i] = runtime.ExitFailed
				complain(err)
				return
			}
			codes[i] = status.ExitCode
			if asJSON {
				fmt.Println(shownJSON(raw))
			}
			tellEnd(r.liveRun, status)
		})
	}
	wg.Wait()
	for _, code := range codes {
		if code != 0 {
			return exitError(code)
		}
	}
	return nil
}

func (l *liveVerbs) waitOne(ctx context.Context, r waited) (status runtime.Status, raw json.RawMessage, err error) {
	if r.over == nil {
		if raw, err = r.by.Wait(ctx, r.ID); err == nil {
			err = json.Unmarshal(raw, &status)
		}
		if err == nil && status.State == "" {
			err = errors.New("the answer doesn't say how it ended")
		}
		if err == nil || ctx.Err() != nil {
			return status, raw, refusal("wait for "+r.label(), err)
		}
		// It may have ended as it was asked about, and its supervisor with it.
		over, err := l.findEnded(r.ID, refusal("wait for "+r.label(), err))
		if err != nil {
			return status, raw, err
		}
		r.over = &over
	}
	raw, err = json.Marshal(r.over.Status)
	return r.over.Status, raw, err
}

// tellEnd says what the exit code alone doesn't, as exec does.
func tellEnd(r liveRun, s runtime.Status) {
	switch s.State {
	case runtime.Exited, runtime.Signaled:
	case runtime.Failed:
		fmt.Fprintf(os.Stderr, "agentrun: %s: %s\n", r.label(), oneLine(s.Error))
	default:
		fmt.Fprintf(os.Stderr, "agentrun: %s: %s: %s\n", r.label(), s.State, oneLine(s.Reason))
	}
}
