// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/safetyloop"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/mcpaql"
	"agentrun/safetyloop/policy"
)

// judging is what a verdict depends on, as flags and environment say it; zero values leave it to the policy.
type judging struct {
	policy    string
	workspace string
	tolerance safetyloop.Tolerance
	mode      safetyloop.Mode
}

func judgingFlags(c *cli.Context) (o judging, err error) {
	o.policy, o.workspace = c.String("policy"), c.String("workspace")
	var errs []error
	if word := c.String("tolerance"); c.IsSet("tolerance") {
		o.tolerance, err = judge.ParseTolerance(word)
		errs = append(errs, wrap("--tolerance", err))
	}
	if word := c.String("mode"); c.IsSet("mode") {
		o.mode, err = judge.ParseMode(word)
		errs = append(errs, wrap("--mode", err))
	} else {
		o.mode, err = judge.ModeOf(os.LookupEnv, safetyloop.NoMode)
		errs = append(errs, err)
	}
	if o.workspace != "" && !filepath.IsAbs(o.workspace) {
		errs = append(errs, fmt.Errorf("--workspace %.64q: want an absolute path", o.workspace))
	}
	if err := errors.Join(errs...); err != nil {
		return o, hinted.New(err, c.Command.HelpName+" --help lists the flags")
	}
	return o, nil
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// hintJudge is the policy as it is now, with the settings that it had at the start.
type hintJudge struct {
	mode      safetyloop.Mode
	tolerance safetyloop.Tolerance
	maxSteps  int
	confirm   safetyloop.Confirm

	current   func() *policy.Policy
	workspace string
}

// openJudge reads the policy. Flags go before what it says.
func (o judging) openJudge(log *slog.Logger) (*hintJudge, error) {
	j := &hintJudge{workspace: o.workspace, current: func() *policy.Policy { return &policy.Policy{} }}
	if o.policy != "" {
		w, err := policy.Watch(o.policy, policy.WatchOptions{
			Now:     time.Now,
			Changed: func(p *policy.Policy) { j.changed(p, log) },
			Failed:  func(err error) { log.Error("the policy is wrong; the last good one holds", "err", err) },
		})
		if err != nil {
			return nil, withHint("agentrun safety schema prints what a policy may have", "--policy: %w", err)
		}
		j.current = w.Current
	}
	s := j.current().For("", true).Settings()
	j.mode = cmp.Or(o.mode, s.Mode, safetyloop.Enforcing)
	j.tolerance = cmp.Or(o.tolerance, s.Tolerance, safetyloop.Moderate)
	j.maxSteps = cmp.Or(s.MaxSteps, defaultSteps)
	j.confirm = cmp.Or(s.Confirm, safetyloop.ConfirmServer)
	return j, nil
}

// changed says what a running loop doesn't take over: who is told "monitoring" by introspection must not be stopped, and the other
// way round.
func (j *hintJudge) changed(p *policy.Policy, log *slog.Logger) {
	s := p.For("", true).Settings()
	log.Info("the policy was read anew")
	if s.Mode != safetyloop.NoMode && s.Mode != j.mode || s.Tolerance != safetyloop.NoTolerance && s.Tolerance != j.tolerance || s.MaxSteps != 0 && s.MaxSteps != j.maxSteps ||
		s.Confirm != safetyloop.NoConfirm && s.Confirm != j.confirm {
		log.Warn("its mode, tolerance, maxAutonomousSteps and confirm hold from the next start; patterns hold now")
	}
}

// view is the policy for whoever called. Its entry for an agent goes by the principal, which the operator gives: by --principal,
// or with a token.
func (j *hintJudge) view(ctx context.Context) *policy.View {
	return j.current().For(mcpaql.Principal(ctx), true).In(j.workspace)
}

// Judge is safetyloop.Judge.
func (j *hintJudge) Judge(ctx context.Context, hint string) (safetyloop.Judgement, error) {
	return j.view(ctx).Judge(ctx, hint)
}
