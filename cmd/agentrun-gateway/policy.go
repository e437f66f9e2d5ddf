// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/policycmd"
	"agentrun/internal/read"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/pdp"
)

// policyDiffers is told apart from 125, as conformDiffers is: the cases were decided, not as they want.
const policyDiffers = 1

// policyMain does what `agentrun policy` hands over; args begin with "policy". Messages name agentrun, which people call.
func policyMain(args []string) int {
	app := &cli.App{
		Name: "agentrun", HideHelpCommand: true, HideVersion: true, UseShortOptionHandling: true,
		Commands: []*cli.Command{policycmd.New(policycmd.Actions{
			Check: verb.Action(policyCheck), Test: verb.Action(policyTest), Explain: verb.Action(policyExplain),
			Schema: writeOut(pdp.Schema), Builtin: writeOut(pdp.Builtin),
		}, usageError)},
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {}, // report decides about output and exit code
		OnUsageError:              usageError,
		CommandNotFound: func(c *cli.Context, name string) {
			os.Exit(report(os.Stderr, hinted.New(fmt.Errorf("%q is no command of %s", name, c.Command.HelpName), c.Command.HelpName+" --help lists the commands")))
		},
	}
	return report(os.Stderr, app.RunContext(context.Background(), append([]string{app.Name}, args...)))
}

func writeOut(text func() []byte) cli.ActionFunc {
	return verb.Action(func(*cli.Context, []string) error { _, err := os.Stdout.Write(text()); return err })
}

func policyCheck(c *cli.Context, a []string) error {
	path := a[0]
	if path == "" { // pdp takes it for the built-in policies; here it is an unset variable
		return hinted.New(errors.New("the path is empty"), c.Command.HelpName+" FILE|DIR")
	}
	set, err := pdp.Load(path)
	invalid, faulty := errors.AsType[*read.InvalidError](err)
	if err != nil && !faulty {
		return err
	}
	problems := read.Problems{}
	if faulty {
		problems = invalid.Problems
	}
	if c.Bool("json") {
		err = printJSON(checkReport(path, set, problems))
	} else {
		err = printCheck(path, set, problems)
	}
	if err == nil && faulty {
		return exitError(exitFailed)
	}
	return err
}

func checkReport(path string, set *pdp.Set, problems read.Problems) any {
	report := struct {
		Path         string        `json:"path"`
		Valid        bool          `json:"valid"`
		Policies     int           `json:"policies"`
		BuiltinGrant bool          `json:"builtin_grant"`
		Revision     string        `json:"revision,omitempty"`
		Problems     read.Problems `json:"problems"`
	}{Path: path, Valid: set != nil, Problems: problems}
	if set != nil {
		report.Policies, report.BuiltinGrant, report.Revision = set.Len(), set.BuiltinGrant(), set.Revision()
	}
	return report
}

func printCheck(path string, set *pdp.Set, problems read.Problems) error {
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, shown.Line(p.Error()))
	}
	if set == nil {
		return nil
	}
	grant := "they hold permits, so nothing else is granted"
	if set.BuiltinGrant() {
		grant = "they hold no permit, so the built-in grant stays"
	}
	_, err := fmt.Printf("%s is valid: %d policies; %s\n", shown.Line(path), set.Len(), grant)
	return err
}

func policyExplain(c *cli.Context, _ []string) error {
	text, err := readBounded(c.String("request"), pdp.MaxRequestJSON)
	if err != nil {
		return err
	}
	request, err := pdp.DecodeRequest(text)
	if err != nil {
		return hinted.New(fmt.Errorf("request: %w", err), "docs/policy.md has the fields of a request")
	}
	set, err := pdp.Load(c.String("policy"))
	if err != nil {
		return err
	}
	x := set.Explain(c.Context, request)
	if c.Bool("json") {
		return printJSON(x)
	}
	return printExplanation(os.Stdout, x)
}

// readBounded reads one byte more than allowed, so that what is too long is seen to be.
func readBounded(name string, most int64) ([]byte, error) {
	in := os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

func printExplanation(w io.Writer, x pdp.Explanation) error {
	d := x.Decision
	verdict := "deny"
	if d.Allowed() {
		verdict = "allow"
	}
	_, err := fmt.Fprintf(w, "%s: %s: %s\n", verdict, d.Code, d.Message)
	if d.Policy != "" {
		fmt.Fprintf(w, "decided by %s (%s)\n", d.Policy, d.Where)
	}
	if d.Critical {
		fmt.Fprintln(w, "critical: the run is killed")
	}
	if d.Cause != nil {
		fmt.Fprintf(w, "cause: %v\n", d.Cause)
	}
	for _, m := range x.Forbids {
		fmt.Fprintf(w, "  forbids  %s (%s), reason %s\n", m.Policy, m.Where, m.Reason)
	}
	for _, m := range x.Permits {
		fmt.Fprintf(w, "  permits  %s (%s)\n", m.Policy, m.Where)
	}
	for _, m := range x.Errors {
		fmt.Fprintf(w, "  broken   %s (%s): %s\n", m.Policy, m.Where, m.Error)
	}
	return err
}
