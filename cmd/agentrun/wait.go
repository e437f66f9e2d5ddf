// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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

Exit code: the run's, as exec gives it; of several the first that isn't 0, in the order given. 125 if agentrun can't tell: no such
run, a supervisor that is gone, a mistake in the command line.`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print how each ended, one line of JSON each"}},
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, manyRefs)
			if err != nil {
				return err
			}
			found, err := l.find(c.Context, a)
			if err != nil {
				return err
			}
			return waitAll(c.Context, found, c.Bool("json"))
		},
	})
}

func waitAll(ctx context.Context, runs []liveRun, asJSON bool) error {
	codes := make([]int, len(runs))
	var mu sync.Mutex // one line at a time
	var wg sync.WaitGroup
	for i, r := range runs {
		wg.Go(func() {
			status, raw, err := waitOne(ctx, r)
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
			tellEnd(r, status)
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

func waitOne(ctx context.Context, r liveRun) (runtime.Status, json.RawMessage, error) {
	var status runtime.Status
	raw, err := r.by.Wait(ctx, r.ID)
	if err == nil {
		err = json.Unmarshal(raw, &status)
	}
	if err == nil && status.State == "" {
		err = errors.New("the answer doesn't say how it ended")
	}
	return status, raw, refusal("wait for "+r.label(), err)
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
