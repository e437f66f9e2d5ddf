// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

// Config is the section tools: of gateway.yaml, by the tools' names. The zero value has the built-in tools as they are.
type Config map[string]Spec

// Spec is one tool, one source of tools, or a change to a built-in tool, as the section says it.
type Spec struct {
	Kind          string          `yaml:"kind"`          // one of kinds; not said: by the section there is
	Enabled       bool            `yaml:"enabled"`       // false takes a built-in tool away; true if not said
	Description   string          `yaml:"description"`   // required unless built in or of a source
	Category      gate.Category   `yaml:"category"`      // likewise; a built-in tool's may only be raised
	Schema        json.RawMessage `yaml:"args"`          // JSON Schema; required likewise
	Timeout       duration        `yaml:"timeout"`       // 0: the category's
	MaxReply      size            `yaml:"max_reply"`     // 0: DefaultMaxReply
	Price         *int64          `yaml:"price"`         // millionths; nil: 0, or the built-in tool's
	Rate          *Rate           `yaml:"rate"`          // nil: none of its own
	Approve       bool            `yaml:"approve"`       // an operator is asked about each call
	Wait          duration        `yaml:"approval_wait"` // for that; 0: gate.DefaultApprovalWait
	Target        string          `yaml:"target"`        // as Definition's; of a server's tools, where they have it
	Plaintext     bool            `yaml:"plaintext"`
	Rings         Access[int]     `yaml:"rings"`
	Plans         Access[string]  `yaml:"plans"`
	Roles         Access[string]  `yaml:"roles"`
	Reversibility string          `yaml:"reversibility"`
	ReadOnly      bool            `yaml:"read_only"`
	Admin         bool            `yaml:"admin"`
	Undo          *Undo           `yaml:"undo"` // nil: its calls can't be undone

	Builtin *read.Node `yaml:"builtin"`
	HTTP    *read.Node `yaml:"http"`
	MCP     *read.Node `yaml:"mcp"`
	Command *read.Node `yaml:"command"`

	// What follows from the above.
	Action *rings.Action `yaml:"-"` // nil: the built-in tool's
	Node   *read.Node    `yaml:"-"` // the section of the kind's own; nil: none
}

// ReadNode reads a tool's section onto what holds where it says nothing.
func (s *Spec) ReadNode(n *read.Node) {
	type plain Spec
	s.Enabled = true
	n.Into((*plain)(s))
}

// kinds are what a tool can be. Each has a section of its own under its name, but for builtin.
func kinds() []string { return []string{kindBuiltin, "http", kindMCP, "command"} }

const (
	kindBuiltin = "builtin"
	kindMCP     = "mcp"

	maxName        = 64 // what clients of models take for a function's name
	maxDescription = 1024
	maxTarget      = 128
	maxTimeout     = 5 * time.Minute

	// Shorter than any operator is no question; longer than a run lasts (M-3) is no bound.
	minApprovalWait = time.Second
	maxApprovalWait = 5 * time.Minute
)

// ParseConfig reads the section; its error is a *read.InvalidError.
func ParseConfig(n *read.Node) (Config, error) {
	config := Config{}
	n.Into(&config)
	var errs []error
	if len(config) > MaxTools {
		errs = append(errs, fmt.Errorf("%d tools, at most %d", len(config), MaxTools))
	}
	for name, s := range config {
		errs = append(errs, read.Under(name, errors.Join(s.settle(name), s.check(), s.checkRequired(),
			checkName(name))))
		config[name] = s
	}
	if err := n.Done(errs...); err != nil {
		return nil, err
	}
	return config, nil
}

// settle finds out what the tool is: what it says, or else what it has a section for.
func (s *Spec) settle(name string) error {
	sections := map[string]*read.Node{kindBuiltin: s.Builtin, "http": s.HTTP, kindMCP: s.MCP,
		"command": s.Command}
	for _, k := range kinds() {
		if s.Kind == "" && sections[k] != nil {
			s.Kind = k
		}
	}
	s.Kind = cmp.Or(s.Kind, kindBuiltin)
	s.Node = sections[s.Kind]
	if s.Reversibility != "" || s.ReadOnly || s.Admin {
		reversibility := rings.Reversibility(strings.ToUpper(s.Reversibility))
		a := action(name, cmp.Or(reversibility, rings.Irreversible), s.ReadOnly)
		a.Admin = s.Admin
		s.Undo.action(&a)
		s.Action = &a
	}
	var errs []error
	for _, k := range kinds() {
		if sections[k] != nil && (k != s.Kind || k == kindBuiltin) {
			errs = append(errs, read.Bad(k, "the tool's kind is %s", s.Kind))
		}
	}
	return errors.Join(errs...)
}

func checkName(name string) error {
	if pdp.CheckToolName(name) != nil || len(name) > maxName {
		return fmt.Errorf("a tool's name is an identifier of letters, digits and . _ -, of at most %d bytes", maxName)
	}
	return nil
}

func within[T ~int | ~int64](key, unit string, v, least, most T) error {
	if v < least || v > most {
		return read.Bad(key, "%v%s is not within %v and %v", v, unit, least, most)
	}
	return nil
}

func (s *Spec) check() error {
	errs := []error{
		within("description", " bytes", len(s.Description), 0, maxDescription),
		within("timeout", "", time.Duration(s.Timeout), 0, maxTimeout),
		within("max_reply", " bytes", int64(s.MaxReply), 0, MaxReply),
		within("target", " bytes", len(s.Target), 0, maxTarget),
		s.Undo.check(s),
	}
	if s.Wait != 0 {
		errs = append(errs, within("approval_wait", "", time.Duration(s.Wait), minApprovalWait, maxApprovalWait))
	}
	if s.Price != nil {
		errs = append(errs, within("price", "", *s.Price, 0, math.MaxInt64))
	}
	for _, ring := range slices.Concat(s.Rings.Only, s.Rings.Not) {
		errs = append(errs, within("rings", "", ring, 1, 3))
	}
	if !slices.Contains(kinds(), s.Kind) {
		errs = append(errs, read.Bad("kind", "%.32q is none of %s", s.Kind, strings.Join(kinds(), ", ")))
	}
	if s.Category != "" && !s.Category.Valid() {
		errs = append(errs, read.Bad("category", "%.16q is not A, B, C or D", string(s.Category)))
	}
	if r := s.Rate; r != nil && !(r.PerSecond > 0 && r.PerSecond <= 1e6 && r.Burst >= 1 && r.Burst <= 1e6) {
		errs = append(errs, read.Bad("rate", "per_second is above 0, burst at least 1, both at most a million"))
	}
	if s.Schema != nil {
		_, err := compile(s.Schema)
		errs = append(errs, read.Under("args", err))
	}
	if s.Action != nil {
		errs = append(errs, read.Under("reversibility", s.Action.Check()))
	}
	return errors.Join(errs...)
}

// checkRequired: what isn't built in has to say what it is. The zero of a limit is a default; the zero of a class is none.
// The tools of a source bring their own description and arguments.
func (s *Spec) checkRequired() error {
	if !s.Enabled || s.Kind == kindBuiltin {
		return nil
	}
	var errs []error
	for _, need := range []struct {
		lacks    bool
		key, why string
	}{
		{s.Category == "", "category", "A to D"},
		{s.Action == nil, "reversibility", "full, partial or none; or read_only: true"},
		{s.Node == nil, s.Kind, "what the tool is made of"},
		{s.Description == "" && s.Kind != kindMCP, "description", "the agent's model chooses by it"},
		{s.Schema == nil && s.Kind != kindMCP, "args", "a JSON Schema of the arguments"},
	} {
		if need.lacks {
			errs = append(errs, read.Bad(need.key, "required, %s", need.why))
		}
	}
	return errors.Join(errs...)
}

// duration is written as 500ms, 10s, 1m.
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v <= 0 {
		return fmt.Errorf("%.32q is no duration above 0 such as 500ms or 10s", text)
	}
	*d = duration(v)
	return nil
}

// size is written in bytes, or with K or M for 1024 and 1024².
type size int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *size) UnmarshalText(text []byte) error {
	digits, unit := string(text), int64(1)
	if rest, ok := strings.CutSuffix(digits, "K"); ok {
		digits, unit = rest, 1<<10
	} else if rest, ok := strings.CutSuffix(digits, "M"); ok {
		digits, unit = rest, 1<<20
	}
	v, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || v <= 0 {
		return fmt.Errorf("%.32q is no size above 0 such as 4096, 64K or 1M", text)
	}
	*s = size(v * unit)
	return nil
}
