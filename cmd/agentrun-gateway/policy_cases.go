// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
)

// maxCasesFile bounds a file of cases, in bytes.
const maxCasesFile = 4 << 20

// policyCases is a file of cases (docs/policy.md). A case's request is laid over base, member by member.
type policyCases struct {
	Policy string         `yaml:"policy"` // file or folder, relative to this file; empty for the built-in policies alone
	Base   map[string]any `yaml:"base"`
	Cases  []policyCase   `yaml:"cases"`
}

type policyCase struct {
	Name    string         `yaml:"name"`
	Request map[string]any `yaml:"request"`
	Expect  *struct {
		Allow  *bool      `yaml:"allow"`
		Reason rings.Code `yaml:"reason"`
		Policy string     `yaml:"policy"` // empty: whichever
		// Critical: whether the run is killed for it; not said: either way.
		Critical *bool `yaml:"critical"`
	} `yaml:"expect"`
}

// caseResult is how one case went.
type caseResult struct {
	Name     string       `json:"name"`
	OK       bool         `json:"ok"`
	Message  string       `json:"message,omitempty"`
	Decision pdp.Decision `json:"decision"`
}

func policyTest(c *cli.Context, a []string) error {
	file := a[0]
	cases, err := readCases(file)
	if err != nil {
		return err
	}
	path := cases.Policy
	if path != "" && !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(file), path)
	}
	set, err := pdp.Load(path)
	if err != nil {
		return err
	}
	results, different := runCases(c.Context, set, cases)
	if err := printCases(c.Bool("json"), results, different); err != nil {
		return err
	}
	if different > 0 {
		return exitError(policyDiffers)
	}
	return nil
}

// A file without cases tests nothing, and a case that expects nothing passes whatever happens: both are mistakes.
func readCases(file string) (policyCases, error) {
	var cases policyCases
	text, err := readBounded(file, maxCasesFile)
	if err != nil {
		return cases, err
	}
	n := read.YAML(read.Source{File: file, Max: maxCasesFile}, text)
	n.Into(&cases)
	var errs []error
	if len(cases.Cases) == 0 {
		errs = append(errs, read.Bad("cases", "there are none"))
	}
	for i, each := range cases.Cases {
		if each.Expect == nil || each.Expect.Allow == nil || each.Expect.Reason == "" {
			errs = append(errs, read.Bad(fmt.Sprintf("cases[%d].expect", i), "needs allow and reason"))
		}
	}
	return cases, n.Done(errs...)
}

func runCases(ctx context.Context, set *pdp.Set, cases policyCases) (results []caseResult, different int) {
	for i, each := range cases.Cases {
		r := caseResult{Name: each.Name, Decision: decideCase(ctx, set, overlay(cases.Base, each.Request))}
		if r.Name == "" {
			r.Name = fmt.Sprintf("case %d", i+1)
		}
		r.Message = each.difference(r.Decision)
		if r.OK = r.Message == ""; !r.OK {
			different++
		}
		results = append(results, r)
	}
	return results, different
}

// decideCase gives a request that can't be understood the answer that it would get, so that a case can expect pdp_malformed.
func decideCase(ctx context.Context, set *pdp.Set, request map[string]any) pdp.Decision {
	text, err := json.Marshal(request)
	if err == nil {
		var r pdp.Request
		if r, err = pdp.DecodeRequest(text); err == nil {
			return set.Decide(ctx, r)
		}
	}
	return pdp.Denied(pdp.CodeMalformed, "the request for a decision makes no sense", err)
}

func (c policyCase) difference(d pdp.Decision) string {
	want := c.Expect
	if d.Allowed() == *want.Allow && d.Code == want.Reason && (want.Policy == "" || want.Policy == d.Policy) && (want.Critical == nil || *want.Critical == d.Critical) {
		return ""
	}
	if want.Critical != nil && d.Critical != *want.Critical && d.Allowed() == *want.Allow && d.Code == want.Reason {
		return fmt.Sprintf("got critical %v, want %v", d.Critical, *want.Critical)
	}
	s := fmt.Sprintf("got %s, want %s", outcome(d.Allowed(), d.Code, d.Policy), outcome(*want.Allow, want.Reason, want.Policy))
	if d.Cause != nil {
		s += fmt.Sprintf(" (%v)", d.Cause)
	}
	return s
}

func outcome(allow bool, reason rings.Code, policy string) string {
	s := "deny " + string(reason)
	if allow {
		s = "allow " + string(reason)
	}
	if policy != "" {
		s += " by " + policy
	}
	return s
}

// overlay returns base with the members of over in it; where both are maps, of their members.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range over {
		under, is := out[k].(map[string]any)
		if on, too := v.(map[string]any); is && too {
			v = overlay(under, on)
		}
		out[k] = v
	}
	return out
}

func printCases(asJSON bool, results []caseResult, different int) error {
	if asJSON {
		return printJSON(map[string]any{"cases": len(results), "different": different, "results": results})
	}
	for _, r := range results {
		if !r.OK {
			fmt.Printf("%s: %s\n", r.Name, r.Message)
		}
	}
	_, err := fmt.Fprintf(os.Stderr, "%d cases, %d different\n", len(results), different)
	return err
}
