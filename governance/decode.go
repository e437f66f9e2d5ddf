// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"agentrun/internal/read"
)

const (
	maxWhy     = 1000
	maxName    = 64
	maxEntries = 256 // of a list of tools
)

// planFile is a plan as it is written. Everything must be said: what a plan forgets would be for nothing, or
// for free.
type planFile struct {
	Why      reason `yaml:"why" read:"required"`
	Parallel count  `yaml:"parallel" read:"required"`
	stated
	Tools Tools               `yaml:"tools" read:"required"`
	AtCap atCap               `yaml:"at_cap"`
	Roles map[string]roleFile `yaml:"roles"`
}

// stated are quotas, each of which must be there.
type stated struct {
	Time         span   `yaml:"time" read:"required"`
	CostPerRun   amount `yaml:"cost_per_run" read:"required"`
	CostPerDay   amount `yaml:"cost_per_day" read:"required"`
	TokensPerRun count  `yaml:"tokens_per_run" read:"required"`
	TokensPerDay count  `yaml:"tokens_per_day" read:"required"`
	Steps        count  `yaml:"steps" read:"required"`
}

type roleFile struct {
	Why reason `yaml:"why" read:"say why, for whoever reviews this"`
	quotas
	Tools *Tools `yaml:"tools"`
}

type quotas struct {
	Time         span   `yaml:"time"`
	CostPerRun   amount `yaml:"cost_per_run"`
	CostPerDay   amount `yaml:"cost_per_day"`
	TokensPerRun count  `yaml:"tokens_per_run"`
	TokensPerDay count  `yaml:"tokens_per_day"`
	Steps        count  `yaml:"steps"`
}

func (q quotas) limits() Limits {
	return Limits{
		Time: time.Duration(q.Time), Steps: int64(q.Steps),
		CostPerRun: Amount(q.CostPerRun), CostPerDay: Amount(q.CostPerDay),
		TokensPerRun: int64(q.TokensPerRun), TokensPerDay: int64(q.TokensPerDay),
	}
}

// ReadNode implements read.Reader: what a role doesn't name stays as the plan has it.
func (r *roleFile) ReadNode(n *read.Node) {
	type plain roleFile
	const all = -1 // Unlimited
	r.quotas = quotas{all, all, all, all, all, all}
	n.Into((*plain)(r))
}

// Parse reads one file of plans; its error is a *read.InvalidError. name is for messages.
func Parse(name string, data []byte) (Plans, error) {
	n := read.YAML(read.Source{File: name, Max: maxFileBytes}, data)
	var f struct {
		Plans map[string]planFile `yaml:"plans"`
		Roles map[string]roleFile `yaml:"roles"`
	}
	n.Into(&f)
	var ps read.Problems
	if n.Empty() {
		ps.Add("", "empty: want plans or roles")
	}
	p := Plans{Plans: map[string]Plan{}, Roles: rolesOf(f.Roles, "roles", &ps)}
	for name, plan := range f.Plans {
		at := checkName("plans", name, &ps)
		p.Plans[name] = plan.of(name, at, &ps)
	}
	if err := n.Done(ps.Err()); err != nil {
		return Plans{}, err
	}
	return p, nil
}

func (f planFile) of(name, at string, ps *read.Problems) Plan {
	p := Plan{Why: string(f.Why), Parallel: int64(f.Parallel), Limits: quotas(f.stated).limits(), Tools: f.Tools, GoOn: f.AtCap == goOn}
	low, high := parallelOf(name)
	if free := p.Parallel == Unlimited && high == maxParallel; !free && (p.Parallel < low || p.Parallel > high) {
		ps.Add(at+".parallel", "want %d to %d", low, high)
	}
	p.Tools.check(at+".tools", ps)
	if f.Roles != nil {
		p.Roles = rolesOf(f.Roles, at+".roles", ps)
	}
	return p
}

func rolesOf(files map[string]roleFile, path string, ps *read.Problems) map[string]Role {
	roles := map[string]Role{}
	for name, f := range files {
		at := checkName(path, name, ps)
		if f.Tools != nil {
			f.Tools.check(at+".tools", ps)
		}
		roles[name] = Role{Why: string(f.Why), Limits: f.limits(), Tools: f.Tools}
	}
	return roles
}

// checkName returns the path of what is called name.
func checkName(path, name string, ps *read.Problems) string {
	at := read.Join(path, name)
	if !ValidName(name) {
		ps.Add(at, "%.80q is no name: want up to %d of a–z, 0–9, - and _, a letter first", name, maxName)
	}
	return at
}

// ValidName tells whether a plan or role can be called that.
func ValidName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if letter := 'a' <= c && c <= 'z'; !letter && (i == 0 || (c < '0' || c > '9') && c != '-' && c != '_') {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// reason is why a plan or a role is as it is.
type reason string

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *reason) UnmarshalText(text []byte) error {
	if *r = reason(text); strings.TrimSpace(string(text)) == "" || len(text) > maxWhy {
		return fmt.Errorf("want a reason of up to %d bytes", maxWhy)
	}
	return nil
}

// atCap is what becomes of a run that is at a cap of its plan: it is ended, unless the plan says go_on.
type atCap string

const (
	end  atCap = "end"
	goOn atCap = "go_on"
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *atCap) UnmarshalText(text []byte) error {
	if *a = atCap(text); *a != end && *a != goOn {
		return fmt.Errorf("%.40q: want end or go_on", text)
	}
	return nil
}

// Quotas are read from the text that stands in the file, so that they never pass through a float.
type (
	count  int64
	amount int64
	span   time.Duration
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *count) UnmarshalText(text []byte) error { return quota((*int64)(c), string(text), parseCount) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *amount) UnmarshalText(text []byte) error {
	return quota((*int64)(a), string(text), ParseAmount)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *span) UnmarshalText(text []byte) error { return quota((*int64)(s), string(text), parseSpan) }

func quota(into *int64, text string, parse func(string) (int64, error)) (err error) {
	if *into = Unlimited; text != "unlimited" {
		*into, err = parse(text)
	}
	return err
}

func parseCount(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 || v > MaxQuota || strconv.FormatInt(v, 10) != s {
		return 0, fmt.Errorf("%.40q: want an integer from 0 to %d, or unlimited", s, MaxQuota)
	}
	return v, nil
}

// M-3's bound for the time of a run, and the least that a run can be given: a plan may always give less.
const (
	minTime = time.Millisecond
	maxTime = 300 * time.Second
)

func parseSpan(s string) (int64, error) {
	v, err := time.ParseDuration(s)
	if err != nil || v < minTime || v > maxTime {
		return 0, fmt.Errorf("%.40q: want a time from %v to %v, or unlimited", s, minTime, maxTime)
	}
	return int64(v), nil
}

// maxParallel bounds the locks that are tried at an admission.
const maxParallel = 1000

// parallelOf are the runs at once that M-19 gives the plans it names. A file may choose within them.
func parallelOf(plan string) (low, high int64) {
	switch plan {
	case Freemium:
		return 1, 1
	case Casual:
		return 2, 3
	case Premium:
		return 5, 10
	case Platformium:
		return 10, 20
	default:
		return 1, maxParallel
	}
}

func (t Tools) check(at string, ps *read.Problems) {
	for key, list := range map[string][]string{"allow": t.Allow, "deny": t.Deny} {
		if len(list) > maxEntries {
			ps.Add(at+"."+key, "want a list of at most %d entries", maxEntries)
			continue
		}
		for i, s := range list {
			if !validPattern(s) {
				ps.Add(fmt.Sprintf("%s.%s[%d]", at, key, i), `%.80q: want a tool's name, a prefix such as "memory.*", or "*"`, s)
			}
		}
	}
}

func validPattern(s string) bool {
	if s == "*" {
		return true
	}
	name := strings.TrimSuffix(s, ".*")
	for i := range len(name) {
		c := name[i]
		if alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'; !alnum && (i == 0 || i == len(name)-1 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return name != "" && len(s) <= 128
}
