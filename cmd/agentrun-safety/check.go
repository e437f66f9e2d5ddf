// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/audit"
	"agentrun/internal/hinted"
	"agentrun/safetyloop"
	"agentrun/safetyloop/policy"
	"agentrun/store"
	"agentrun/telemetry"
)

// checked is a hint as the policy reads it, and what the loop itself answers to it as the first step of an agent it has never seen.
type checked struct {
	policy.Explanation
	Directive *safetyloop.Directive `json:"directive,omitempty"`
	Error     *safetyloop.Error     `json:"error,omitempty"`
}

// nowhere takes records and codes that nobody is to get.
type nowhere struct{}

func (nowhere) Record(context.Context, string, audit.Record) error { return nil }

func (nowhere) Show(context.Context, safetyloop.Challenge) error { return nil }

// answer runs the loop on one hint, with a state of its own that ends with it.
func answer(ctx context.Context, j *hintJudge, hint string) (*safetyloop.Directive, *safetyloop.Error, error) {
	loop, err := safetyloop.New(safetyloop.Settings{
		Mode: j.mode, Tolerance: j.tolerance, MaxSteps: j.maxSteps, Confirm: safetyloop.ConfirmClient,
		Store: store.NewMemory(), Record: nowhere{}, Judge: j, Channels: []safetyloop.Channel{nowhere{}}, Now: time.Now,
	})
	if err != nil {
		return nil, nil, err
	}
	defer loop.Close()
	params, err := json.Marshal(map[string]string{"element_name": "check", "nextActionHint": hint})
	if err != nil {
		return nil, nil, err
	}
	reply := loop.Do(ctx, safetyloop.Call{Caller: safetyloop.Caller{Principal: "check"}, Endpoint: safetyloop.Create, Operation: "record_execution_step", Params: telemetry.NewPlaintext(json.RawMessage(params))})
	if !reply.Success {
		return nil, reply.Error, nil
	}
	var d safetyloop.Directive
	data, err := json.Marshal(reply.Data)
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the directive: %w", err)
	}
	d.Notifications = nil // of a challenge that is gone already
	return &d, nil, nil
}

func check(c *cli.Context, a []string) error {
	hint := a[0]
	o, err := judgingFlags(c)
	if err != nil {
		return err
	}
	j, err := o.openJudge(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	// As the loop will see it: what it says of the tolerance is what counts.
	view := j.current().For("", true).In(j.workspace)
	var v checked
	if v.Explanation, err = view.Explain(c.Context, hint); err != nil {
		return err
	}
	if v.Directive, v.Error, err = answer(c.Context, j, hint); err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(v)
	}
	_, err = fmt.Print(v.text())
	return err
}

func (v *checked) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hint       %s\n", shown(v.Hint))
	if v.Folded != v.Hint {
		fmt.Fprintf(&b, "read as    %s\n", shown(v.Folded))
	}
	vague := ""
	if v.Vague {
		vague = "; too vague to judge: at least confirm"
	}
	fmt.Fprintf(&b, "score      %d: %s%s\n", v.Score, v.Tier, vague)
	for _, f := range v.Factors {
		fmt.Fprintf(&b, "  %+4d     %s: %s\n", f.Points, f.Name, shown(f.Detail))
	}
	for _, s := range v.Stages {
		decides := ""
		if s.Decides {
			decides = "  <- decides"
		}
		fmt.Fprintf(&b, "stage      %-10s %-8s %s%s\n", s.Name, s.Verdict, shown(s.Detail), decides)
	}
	if v.Error != nil {
		fmt.Fprintf(&b, "answer     refused: %s (%s)\n", shown(v.Error.Message), v.Error.Code)
		return b.String()
	}
	d := v.Directive
	fmt.Fprintf(&b, "answer     continue: %v, stopped: %v", d.Continue, d.Stopped)
	if d.Reason != "" {
		fmt.Fprintf(&b, ": %s", shown(d.Reason))
	}
	b.WriteByte('\n')
	for _, f := range d.Factors {
		fmt.Fprintf(&b, "           %s\n", shown(f))
	}
	return b.String()
}

// test compares a policy with a file of cases.
func test(c *cli.Context, a []string) error {
	path := a[0]
	o, err := judgingFlags(c)
	if err != nil {
		return err
	}
	j, err := o.openJudge(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	text, err := readCases(path)
	if err != nil {
		return err
	}
	cases, err := policy.ParseCases(filepath.Base(path), text)
	if err != nil {
		return hinted.New(err, "docs/safety-dongle.md has a file of cases")
	}
	cases.Workspace = cmp.Or(o.workspace, cases.Workspace)
	outcomes, err := j.current().Test(c.Context, cases)
	if err != nil {
		return err
	}
	different := []policy.Outcome{}
	for _, one := range outcomes {
		if len(one.Wrong) > 0 {
			different = append(different, one)
		}
	}
	if c.Bool("json") {
		err = printJSON(different)
	} else {
		for _, one := range different {
			for _, wrong := range one.Wrong {
				fmt.Printf("%s: %s\n", shown(one.Hint), shown(wrong))
			}
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d cases, %d different\n", len(outcomes), len(different))
	if len(different) > 0 {
		return exitError(exitDiffers)
	}
	return nil
}

func readCases(path string) ([]byte, error) {
	const most = 8 << 20
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("%s: longer than %d bytes", path, most)
	}
	return b, err
}
