// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
)

const (
	maxProblems = 100 // more tell nothing new
	maxWhy      = 1000
	maxName     = 64
	maxEntries  = 256 // of a list or mapping
)

// decoder reads the YAML tree by itself, so that numbers never pass through a float and every key that is not understood, or
// comes twice, is told with its line.
type decoder struct {
	file     string
	problems []read.Problem
}

func (d *decoder) report(n *yaml.Node, path, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, read.Problem{File: d.file, Line: n.Line, Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// Parse reads one file of plans. name is for messages.
func Parse(name string, data []byte) (Plans, error) {
	d := &decoder{file: name}
	p := d.document(data)
	if len(d.problems) > 0 {
		return Plans{}, &read.InvalidError{Problems: d.problems}
	}
	return p, nil
}

func (d *decoder) document(data []byte) Plans {
	p := Plans{Plans: map[string]Plan{}, Roles: map[string]Role{}}
	root := &yaml.Node{}
	switch {
	case len(data) > maxFileBytes:
		d.report(root, "", "larger than %d bytes", maxFileBytes)
		return p
	case !utf8.Valid(data):
		d.report(root, "", "not UTF-8")
		return p
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(root); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("empty: want plans or roles")
		}
		d.report(&yaml.Node{}, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return p
	}
	d.mapping(root.Content[0], "", func(key string, n *yaml.Node) bool {
		switch key {
		case "plans":
			d.named(n, key, func(name, path string, n *yaml.Node) { p.Plans[name] = d.plan(name, path, n) })
		case "roles":
			d.named(n, key, func(name, path string, n *yaml.Node) { p.Roles[name] = d.role(path, n) })
		default:
			return false
		}
		return true
	})
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		d.report(&yaml.Node{}, "", "more than one document")
	}
	return p
}

// mapping calls fn for each key; fn tells whether it knows it.
func (d *decoder) mapping(n *yaml.Node, path string, fn func(key string, value *yaml.Node) bool) (seen map[string]bool) {
	seen = map[string]bool{}
	if !d.plain(n, path) {
		return seen
	}
	if n.Kind != yaml.MappingNode {
		d.report(n, path, "want a mapping (key: value)")
		return seen
	}
	if len(n.Content) > 2*maxEntries {
		d.report(n, path, "more than %d keys", maxEntries)
		return seen
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := join(path, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || !d.plain(key, at):
			d.report(key, at, "a key must be a plain word")
		case seen[key.Value]:
			d.report(key, at, "given twice")
		default:
			seen[key.Value] = true
			if !fn(key.Value, n.Content[i+1]) {
				d.report(key, at, "unknown key")
			}
		}
	}
	return seen
}

// plain refuses what could make one text mean another: aliases, anchors, tags.
func (d *decoder) plain(n *yaml.Node, path string) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		d.report(n, path, "anchors, aliases and tags are not part of the format")
		return false
	}
	return true
}

func join(path, key string) string {
	key = fmt.Sprintf("%.64s", key)
	if path == "" {
		return key
	}
	return path + "." + key
}

// named reads a mapping from names to entries.
func (d *decoder) named(n *yaml.Node, path string, fn func(name, path string, n *yaml.Node)) {
	d.mapping(n, path, func(name string, value *yaml.Node) bool {
		if at := join(path, name); !ValidName(name) {
			d.report(value, at, "%.80q is no name: want up to %d of a–z, 0–9, - and _, a letter first", name, maxName)
		} else {
			fn(name, at, value)
		}
		return true
	})
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

func (d *decoder) plan(name, path string, n *yaml.Node) Plan {
	p := Plan{Limits: unlimited()}
	seen := d.mapping(n, path, func(key string, v *yaml.Node) bool {
		at := join(path, key)
		switch key {
		case "why":
			p.Why = d.why(v, at)
		case "parallel":
			p.Parallel = d.parallel(name, v, at)
		case "tools":
			p.Tools = d.tools(v, at)
		case "roles":
			p.Roles = map[string]Role{}
			d.named(v, at, func(role, path string, n *yaml.Node) { p.Roles[role] = d.role(path, n) })
		default:
			return d.limit(&p.Limits, key, v, at)
		}
		return true
	})
	// Everything must be said: what a plan forgets would be for nothing, or for free.
	for _, key := range []string{"why", "parallel", "tools", "time", "cost_per_run", "cost_per_day", "tokens_per_run", "tokens_per_day", "steps"} {
		if !seen[key] {
			d.report(n, join(path, key), "missing")
		}
	}
	return p
}

func (d *decoder) role(path string, n *yaml.Node) Role {
	r := Role{Limits: unlimited()}
	seen := d.mapping(n, path, func(key string, v *yaml.Node) bool {
		at := join(path, key)
		switch key {
		case "why":
			r.Why = d.why(v, at)
		case "tools":
			t := d.tools(v, at)
			r.Tools = &t
		default:
			return d.limit(&r.Limits, key, v, at)
		}
		return true
	})
	if !seen["why"] {
		d.report(n, join(path, "why"), "missing: say why, for whoever reviews this")
	}
	return r
}

func (d *decoder) limit(l *Limits, key string, v *yaml.Node, at string) bool {
	switch key {
	case "time":
		l.Time = d.time(v, at)
	case "cost_per_run":
		l.CostPerRun = d.quota(v, at, ParseAmount)
	case "cost_per_day":
		l.CostPerDay = d.quota(v, at, ParseAmount)
	case "tokens_per_run":
		l.TokensPerRun = d.quota(v, at, parseCount)
	case "tokens_per_day":
		l.TokensPerDay = d.quota(v, at, parseCount)
	case "steps":
		l.Steps = d.quota(v, at, parseCount)
	default:
		return false
	}
	return true
}

// word returns a scalar's text as it stands in the file.
func (d *decoder) word(n *yaml.Node, path string) (string, bool) {
	if !d.plain(n, path) {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.report(n, path, "want one value")
		return "", false
	}
	return n.Value, true
}

func (d *decoder) why(n *yaml.Node, path string) string {
	s, ok := d.word(n, path)
	if ok && (strings.TrimSpace(s) == "" || len(s) > maxWhy) {
		d.report(n, path, "want a reason of up to %d bytes", maxWhy)
	}
	return s
}

func (d *decoder) quota(n *yaml.Node, path string, parse func(string) (int64, error)) int64 {
	s, ok := d.word(n, path)
	if !ok {
		return 0
	}
	if s == "unlimited" {
		return Unlimited
	}
	v, err := parse(s)
	if err != nil {
		d.report(n, path, "%v", err)
		return 0
	}
	return v
}

func parseCount(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 || v > MaxQuota || strconv.FormatInt(v, 10) != s {
		return 0, fmt.Errorf("%.40q: want an integer from 0 to %d, or unlimited", s, MaxQuota)
	}
	return v, nil
}

// The bounds of M-3 for the time of a run.
const (
	minTime = 60 * time.Second
	maxTime = 300 * time.Second
)

func (d *decoder) time(n *yaml.Node, path string) time.Duration {
	return time.Duration(d.quota(n, path, func(s string) (int64, error) {
		v, err := time.ParseDuration(s)
		if err != nil || v < minTime || v > maxTime {
			return 0, fmt.Errorf("%.40q: want a time from %v to %v, or unlimited", s, minTime, maxTime)
		}
		return int64(v), nil
	}))
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

func (d *decoder) parallel(plan string, n *yaml.Node, path string) int64 {
	low, high := parallelOf(plan)
	v := d.quota(n, path, parseCount)
	if v == Unlimited && high == maxParallel {
		return v
	}
	if v < low || v > high {
		d.report(n, path, "want %d to %d", low, high)
	}
	return v
}

func (d *decoder) tools(n *yaml.Node, path string) Tools {
	var t Tools
	seen := d.mapping(n, path, func(key string, v *yaml.Node) bool {
		switch key {
		case "allow":
			t.Allow = d.patterns(v, join(path, key))
		case "deny":
			t.Deny = d.patterns(v, join(path, key))
		default:
			return false
		}
		return true
	})
	if !seen["allow"] {
		d.report(n, join(path, "allow"), `missing: name tools, or "*" for all`)
	}
	return t
}

func (d *decoder) patterns(n *yaml.Node, path string) (list []string) {
	if !d.plain(n, path) {
		return nil
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxEntries {
		d.report(n, path, "want a list of at most %d entries", maxEntries)
		return nil
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if s, ok := d.word(item, at); ok {
			if !validPattern(s) {
				d.report(item, at, `%.80q: want a tool's name, a prefix such as "memory.*", or "*"`, s)
			}
			list = append(list, s)
		}
	}
	return list
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
