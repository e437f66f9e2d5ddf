// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

// Schema is the JSON Schema of the section tools: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

// Config is the section tools: of gateway.yaml, by the tools' names. The zero value has the built-in tools as they are.
type Config map[string]Spec

// Spec is one tool, one source of tools, or a change to a built-in tool.
type Spec struct {
	Kind        string        // builtin, or one for which New gets a factory: http, mcp, command; not said: by the section there is
	Enabled     bool          // false takes a built-in tool away; true if not said
	Description string        // for the agent's model; required unless built in or of a source
	Category    gate.Category // required as Description is; of a built-in tool it may only be raised
	Schema      json.RawMessage
	Timeout     time.Duration // 0: the category's
	MaxReply    int64         // bytes; 0: DefaultMaxReply
	Price       *int64        // millionths; nil: 0, or the built-in tool's
	Rate        Rate
	Approve     bool
	Wait        time.Duration // for an operator's approval; 0: gate.DefaultApprovalWait
	Target      string        // as Definition's; of an MCP server, of those of its tools that have the argument
	Plaintext   bool
	Rings       Access[int]
	Plans       Access[string]
	Roles       Access[string]
	Action      *rings.Action // nil: the built-in tool's; else as reversibility, read_only, admin and undo_api say
	Node        *read.Node    // the section of the kind's own; nil: none
}

// The section as it is written. Pointers tell what was said.
type rawSpec struct {
	Kind          string          `yaml:"kind"`
	Enabled       *bool           `yaml:"enabled"`
	Description   string          `yaml:"description"`
	Category      gate.Category   `yaml:"category"`
	Args          json.RawMessage `yaml:"args"`
	Timeout       duration        `yaml:"timeout"`
	MaxReply      size            `yaml:"max_reply"`
	Price         *int64          `yaml:"price"`
	Rate          *Rate           `yaml:"rate"`
	Approve       bool            `yaml:"approve"`
	ApprovalWait  duration        `yaml:"approval_wait"`
	Target        string          `yaml:"target"`
	Plaintext     bool            `yaml:"plaintext"`
	Rings         Access[int]     `yaml:"rings"`
	Plans         Access[string]  `yaml:"plans"`
	Roles         Access[string]  `yaml:"roles"`
	Reversibility string          `yaml:"reversibility"`
	ReadOnly      bool            `yaml:"read_only"`
	Admin         bool            `yaml:"admin"`
	UndoAPI       string          `yaml:"undo_api"`

	Builtin *read.Node `yaml:"builtin"`
	HTTP    *read.Node `yaml:"http"`
	MCP     *read.Node `yaml:"mcp"`
	Command *read.Node `yaml:"command"`
}

// kinds have a section of their own under their name, but for builtin.
func kinds() []string { return []string{"builtin", "http", "mcp", "command"} }

const (
	kindBuiltin = "builtin"
	maxTimeout  = 5 * time.Minute
	maxTarget   = 128

	// Shorter than any operator is no question; longer than a run lasts (M-3) is no bound.
	minApprovalWait = time.Second
	maxApprovalWait = 5 * time.Minute
)

// ParseConfig reads the section; its error is a *read.InvalidError.
func ParseConfig(n *read.Node) (Config, error) {
	var raw map[string]rawSpec
	n.Into(&raw)
	var errs []error
	if len(raw) > MaxTools {
		errs = append(errs, fmt.Errorf("%d tools, at most %d", len(raw), MaxTools))
	}
	config := Config{}
	for name, r := range raw {
		spec, faults := r.spec(name)
		errs = append(errs, read.Under(name, errors.Join(faults...)))
		config[name] = spec
	}
	if err := n.Done(errs...); err != nil {
		return nil, err
	}
	return config, nil
}

func (r *rawSpec) own() map[string]*read.Node {
	return map[string]*read.Node{kindBuiltin: r.Builtin, "http": r.HTTP, kindMCP: r.MCP, "command": r.Command}
}

// kind is what a tool is: what it says, or else what it has a section for.
func (r *rawSpec) kind() (string, error) {
	kind := cmp.Or(r.Kind, kindBuiltin)
	own := r.own()
	for _, k := range kinds() {
		if r.Kind == "" && own[k] != nil {
			kind = k
			break
		}
	}
	for k, section := range own {
		if section != nil && (k != kind || k == kindBuiltin) {
			return kind, read.Bad(k, "the tool's kind is %s", kind)
		}
	}
	return kind, nil
}

func checkName(name string) error {
	if pdp.CheckToolName(name) != nil || len(name) > maxName {
		return fmt.Errorf("a tool's name is an identifier of letters, digits and . _ -, of at most %d bytes", maxName)
	}
	return nil
}

const maxName = 64 // what clients of models take for a function's name

func (r *rawSpec) spec(name string) (Spec, []error) {
	kind, err := r.kind()
	s := Spec{
		Kind: kind, Enabled: r.Enabled == nil || *r.Enabled, Description: r.Description, Category: r.Category, Schema: r.Args,
		Timeout: time.Duration(r.Timeout), MaxReply: int64(r.MaxReply), Price: r.Price, Approve: r.Approve, Plaintext: r.Plaintext,
		Wait: time.Duration(r.ApprovalWait), Target: r.Target, Rings: r.Rings, Plans: r.Plans, Roles: r.Roles, Node: r.own()[kind],
	}
	if r.Rate != nil {
		s.Rate = *r.Rate
	}
	if r.Reversibility != "" || r.ReadOnly || r.Admin || r.UndoAPI != "" {
		a := action(name, rings.Reversibility(strings.ToUpper(r.Reversibility)), r.ReadOnly)
		if r.Reversibility == "" {
			a.Reversibility = rings.Irreversible
		}
		a.Admin = r.Admin
		if r.UndoAPI != "" {
			a.UndoAPI = &r.UndoAPI
		}
		s.Action = &a
	}
	return s, append(s.check(r), checkName(name), err)
}

func (s Spec) check(r *rawSpec) (errs []error) {
	fault := func(key, format string, args ...any) { errs = append(errs, read.Bad(key, format, args...)) }
	if !slices.Contains(kinds(), s.Kind) {
		fault("kind", "%.32q is none of %s", s.Kind, strings.Join(kinds(), ", "))
	}
	if s.Category != "" && !s.Category.Valid() {
		fault("category", "%.16q is not A, B, C or D", string(s.Category))
	}
	if len(s.Description) > maxDescription {
		fault("description", "%d bytes, at most %d", len(s.Description), maxDescription)
	}
	if s.Timeout < 0 || s.Timeout > maxTimeout {
		fault("timeout", "%v is not within 0 and %v", s.Timeout, maxTimeout)
	}
	if s.Wait != 0 && (s.Wait < minApprovalWait || s.Wait > maxApprovalWait) {
		fault("approval_wait", "%v is not within %v and %v", s.Wait, minApprovalWait, maxApprovalWait)
	}
	if s.MaxReply < 0 || s.MaxReply > MaxReply {
		fault("max_reply", "%d is not within 0 and %d", s.MaxReply, int64(MaxReply))
	}
	if len(s.Target) > maxTarget {
		fault("target", "%d bytes, at most %d", len(s.Target), maxTarget)
	}
	if s.Price != nil && *s.Price < 0 {
		fault("price", "%d is negative", *s.Price)
	}
	if r.Rate != nil && (!(s.Rate.PerSecond > 0 && s.Rate.PerSecond <= 1e6) || s.Rate.Burst < 1 || s.Rate.Burst > 1e6) {
		fault("rate", "per_second is above 0, burst at least 1, both at most a million")
	}
	for _, ring := range append(slices.Clone(s.Rings.Only), s.Rings.Not...) {
		if ring < 1 || ring > 3 {
			fault("rings", "%d is not 1, 2 or 3", ring)
		}
	}
	if s.Schema != nil {
		if _, err := compile(s.Schema); err != nil {
			fault("args", "%v", err)
		}
	}
	if s.Action != nil {
		if err := s.Action.Check(); err != nil {
			fault("reversibility", "%v", err)
		}
	}
	return append(errs, s.checkRequired()...)
}

// checkRequired: what isn't built in has to say what it is. The zero of a limit is a default; the zero of a class is none.
func (s Spec) checkRequired() (errs []error) {
	if !s.Enabled || s.Kind == kindBuiltin {
		return nil
	}
	missing := func(key, why string) { errs = append(errs, read.Bad(key, "required, %s", why)) }
	if s.Category == "" {
		missing("category", "A to D")
	}
	if s.Action == nil {
		missing("reversibility", "full, partial or none; or read_only: true")
	}
	if s.Node == nil {
		missing(s.Kind, "what the tool is made of")
	}
	if s.Kind == kindMCP {
		return errs // its tools bring their own
	}
	if s.Description == "" {
		missing("description", "the agent's model chooses by it")
	}
	if s.Schema == nil {
		missing("args", "a JSON Schema of the arguments")
	}
	return errs
}

const (
	kindMCP        = "mcp"
	maxDescription = 1024
)

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
