// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
)

func (l *liveVerbs) events() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "events",
		Usage:     "what happens to the live runs",
		ArgsUsage: "[REF]",
		Description: `Starts, ends, rings, elevations, freezes, limits, refused calls, breaches, kills: of all runs, or of one. With --follow it goes on,
also with supervisors that start later; of one run it goes on to its end. A gap event says how many a slow reader has lost. For
evidence read the audit: events are for watching.

   agentrun events
   agentrun events --follow planner
   agentrun events --follow --json | jq -r 'select(.kind == "ring_changed") | .id'

Exit code: 0; 1 if a supervisor didn't answer, or no such run; 2 usage.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on"},
			&cli.StringFlag{Name: "since", Usage: "only after number `N` of each supervisor, or after now", DefaultText: "0"},
			&cli.BoolFlag{Name: "json", Usage: "print one line of JSON for each"},
		},
		Action: l.eventsAction,
	})
}

func (l *liveVerbs) eventsAction(c *cli.Context) error {
	a, err := refs(c, 0, 1)
	if err != nil {
		return err
	}
	var since uint64
	if v := c.String("since"); v == "now" {
		since = control.SinceNow
	} else if c.IsSet("since") {
		if since, err = strconv.ParseUint(c.String("since"), 10, 64); err != nil {
			return usagef("numbers are shown by agentrun events --json as seq", "--since %.32q: want a number, or now", c.String("since"))
		}
	}
	w := watching{l: l, since: since, seen: map[string]uint64{}, streams: map[string]bool{}, silent: map[string]bool{}, to: printEvent}
	if c.Bool("json") {
		w.to = printEventJSON
	}
	if len(a) == 1 {
		return w.one(c.Context, a[0], c.Bool("follow"))
	}
	if err := w.past(c.Context); err != nil && !c.Bool("follow") {
		return err
	}
	if !c.Bool("follow") {
		return nil
	}
	return w.follow(c.Context)
}

// watching prints the events of many supervisors, each once.
type watching struct {
	l     *liveVerbs
	since uint64

	mu      sync.Mutex
	seen    map[string]uint64 // supervisor → number of the last event printed
	streams map[string]bool   // supervisors that are being followed
	silent  map[string]bool   // what has been complained about
	unable  error             // of writing
	to      func(control.Event) error
}

// pastTime is how long the others are kept waiting by a supervisor that hangs.
const pastTime = 5 * time.Second

// past prints what there is, of all supervisors in the order of time.
func (w *watching) past(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pastTime)
	defer cancel()
	list, err := w.l.runs().Supervisors(ctx)
	errs := []error{err}
	var all []control.Event
	var wg sync.WaitGroup
	for _, s := range list {
		wg.Go(func() {
			events, err := w.pastOf(ctx, s)
			w.mu.Lock()
			defer w.mu.Unlock()
			all, errs = append(all, events...), append(errs, err)
		})
	}
	wg.Wait()
	slices.SortStableFunc(all, func(a, b control.Event) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq))
	})
	for _, e := range all {
		if err := w.to(e); err != nil {
			return err
		}
	}
	if err := errors.Join(errs...); err != nil {
		w.complain(incomplete(err))
		return exitError(exitNotDone)
	}
	return nil
}

func (w *watching) pastOf(ctx context.Context, s liveSupervisor) (events []control.Event, err error) {
	last := w.since
	err = s.Events(ctx, w.since, false, func(e control.Event) error {
		events, last = append(events, e), e.Seq
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[s.key] = last
	if hasEnded(err) {
		return events, nil
	}
	return events, refusal("events of supervisor "+oneLine(s.name), err)
}

// lookTime is how often follow looks for supervisors that have started.
const lookTime = 300 * time.Millisecond

// follow goes on until ctx ends or nobody reads any more.
func (w *watching) follow(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	ticks, stop := w.l.tick(lookTime)
	defer stop()
	for ctx.Err() == nil {
		list, err := w.l.runs().Supervisors(ctx)
		if err != nil && ctx.Err() == nil {
			w.complain(incomplete(err))
		}
		for _, s := range list {
			if since, ok := w.begin(s.key); ok {
				wg.Go(func() { w.stream(ctx, s, since, end) })
			}
		}
		select {
		case <-ctx.Done():
		case <-ticks:
		}
	}
	return w.outcome()
}

func (w *watching) outcome() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unable == nil && len(w.silent) > 0 {
		return exitError(exitNotDone)
	}
	return w.unable
}

func (w *watching) begin(name string) (since uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams[name] {
		return 0, false
	}
	w.streams[name] = true
	return w.seen[name], true
}

func (w *watching) stream(ctx context.Context, s liveSupervisor, since uint64, end context.CancelCauseFunc) {
	// How it ends is of no interest: with the supervisor, or it is taken up again where it stopped.
	_ = s.Events(ctx, since, true, func(e control.Event) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen[s.key] = e.Seq
		if err := w.to(e); err != nil {
			w.unable = err
			end(err)
			return err
		}
		return nil
	})
	w.mu.Lock()
	delete(w.streams, s.key)
	w.mu.Unlock()
}

// complain says each thing once.
func (w *watching) complain(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := err.Error(); !w.silent[text] {
		w.silent[text] = true
		complain(err)
	}
}

var errLast = errors.New("the run has ended")

// one prints the events of one run.
func (w *watching) one(ctx context.Context, ref string, follow bool) error {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := w.l.findOne(asking, ref)
	if err != nil {
		return err
	}
	if !follow {
		ctx = asking
	}
	err = r.by.Events(ctx, w.since, follow, func(e control.Event) error {
		if e.ID != r.ID && e.Kind != control.EventGap { // what was lost may have been of this run
			return nil
		}
		if err := w.to(e); err != nil {
			return err
		}
		if e.ID == r.ID && e.Kind == control.EventEnded {
			return errLast
		}
		return nil
	})
	if errors.Is(err, errLast) {
		return nil
	}
	return refusal("events of "+r.label(), err)
}

func printEvent(e control.Event) error {
	_, err := fmt.Println(eventText(e))
	return err
}

func printEventJSON(e control.Event) error { return printLine(e) }

func eventText(e control.Event) string {
	text := fmt.Sprintf("%s  %s  %s", e.At.UTC().Format("2006-01-02T15:04:05.000Z"), orDash(e.ID), e.Kind)
	if e.Ring != 0 {
		text += fmt.Sprintf("  ring=%d", e.Ring)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		v := e.Data[k]
		if v == "" || strings.ContainsAny(v, " \"=\n") {
			v = strconv.Quote(v)
		}
		text += "  " + k + "=" + v
	}
	return oneLine(text)
}
