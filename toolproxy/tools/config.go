// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

// Schema is the JSON Schema of the section tools: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

const maxSection = 4 << 20

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
	Node        *yaml.Node    // the section of the kind's own; nil: none
}

// The section as it is written. Pointers tell what was said.
type rawSpec struct {
	Kind          string         `yaml:"kind"`
	Enabled       *bool          `yaml:"enabled"`
	Description   string         `yaml:"description"`
	Category      gate.Category  `yaml:"category"`
	Args          map[string]any `yaml:"args"`
	Timeout       duration       `yaml:"timeout"`
	MaxReply      size           `yaml:"max_reply"`
	Price         *int64         `yaml:"price"`
	Rate          *Rate          `yaml:"rate"`
	Approve       bool           `yaml:"approve"`
	ApprovalWait  duration       `yaml:"approval_wait"`
	Target        string         `yaml:"target"`
	Plaintext     bool           `yaml:"plaintext"`
	Rings         Access[int]    `yaml:"rings"`
	Plans         Access[string] `yaml:"plans"`
	Roles         Access[string] `yaml:"roles"`
	Reversibility string         `yaml:"reversibility"`
	ReadOnly      bool           `yaml:"read_only"`
	Admin         bool           `yaml:"admin"`
	UndoAPI       string         `yaml:"undo_api"`
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

// ParseConfig reads the section. Its error names every fault by its key path.
func ParseConfig(section []byte) (Config, error) {
	if len(section) > maxSection {
		return nil, fmt.Errorf("tools: %d bytes, at most %d", len(section), maxSection)
	}
	var nodes map[string]yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(section))
	if err := d.Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tools: %w", err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("tools: a second document")
	}
	if len(nodes) > MaxTools {
		return nil, fmt.Errorf("tools: %d of them, at most %d", len(nodes), MaxTools)
	}
	config := Config{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[name]
		spec, err := parseSpec(name, &node)
		if err != nil {
			errs = append(errs, fmt.Errorf("tools.%s: %w", name, err))
			continue
		}
		config[name] = spec
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return config, nil
}

func parseSpec(name string, node *yaml.Node) (Spec, error) {
	if err := checkName(name); err != nil {
		return Spec{}, err
	}
	common, own, err := splitKind(node)
	if err != nil {
		return Spec{}, err
	}
	var raw rawSpec
	if err := strict(common, &raw); err != nil {
		return Spec{}, err
	}
	if raw.Kind == "" {
		raw.Kind = kindOf(own)
	}
	for kind := range own {
		if kind != raw.Kind || kind == kindBuiltin {
			return Spec{}, fmt.Errorf("%s: the tool's kind is %s", kind, raw.Kind)
		}
	}
	return raw.spec(name, own[raw.Kind])
}

// kindOf is what a tool is that doesn't say so: what it has a section for.
func kindOf(own map[string]*yaml.Node) string {
	for _, kind := range kinds() {
		if own[kind] != nil {
			return kind
		}
	}
	return kindBuiltin
}

// splitKind takes the kinds' own sections out of a tool's.
func splitKind(node *yaml.Node) (common *yaml.Node, own map[string]*yaml.Node, err error) {
	if node.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("line %d: no mapping", node.Line)
	}
	if line := aliased(node); line != 0 {
		return nil, nil, fmt.Errorf("line %d: anchors and aliases are not part of the format", line)
	}
	rest := *node
	rest.Content = nil
	own = map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if !slices.Contains(kinds(), key.Value) {
			rest.Content = append(rest.Content, key, value)
			continue
		}
		if own[key.Value] != nil {
			return nil, nil, fmt.Errorf("%s: stands there twice", key.Value)
		}
		own[key.Value] = value
	}
	return &rest, own, nil
}

// aliased returns the line of an anchor, alias or merge. They can make a small text grow without bound.
func aliased(n *yaml.Node) int {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" {
		return n.Line
	}
	for _, child := range n.Content {
		if line := aliased(child); line != 0 {
			return line
		}
	}
	return 0
}

// strict decodes a node and refuses keys that into doesn't have.
func strict(node *yaml.Node, into any) error {
	text, err := yaml.Marshal(node)
	if err != nil {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("from line %d: %w", node.Line, err)
	}
	return nil
}

func checkName(name string) error {
	if pdp.CheckToolName(name) != nil || len(name) > maxName {
		return fmt.Errorf("a tool's name is an identifier of letters, digits and . _ -, of at most %d bytes", maxName)
	}
	return nil
}

const maxName = 64 // what clients of models take for a function's name

func (r rawSpec) spec(name string, own *yaml.Node) (Spec, error) {
	s := Spec{
		Kind: r.Kind, Enabled: r.Enabled == nil || *r.Enabled, Description: r.Description, Category: r.Category,
		Timeout: time.Duration(r.Timeout), MaxReply: int64(r.MaxReply), Price: r.Price, Approve: r.Approve, Plaintext: r.Plaintext,
		Wait: time.Duration(r.ApprovalWait), Target: r.Target, Rings: r.Rings, Plans: r.Plans, Roles: r.Roles, Node: own,
	}
	if r.Rate != nil {
		s.Rate = *r.Rate
	}
	var err error
	if r.Args != nil {
		if s.Schema, err = json.Marshal(r.Args); err != nil {
			return Spec{}, fmt.Errorf("args: %w", err)
		}
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
	return s, errors.Join(s.check(r)...)
}

func (s Spec) check(r rawSpec) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains(kinds(), s.Kind) {
		fault("kind: %.32q is none of %s", s.Kind, strings.Join(kinds(), ", "))
	}
	if s.Category != "" && !s.Category.Valid() {
		fault("category: %.16q is not A, B, C or D", string(s.Category))
	}
	if len(s.Description) > maxDescription {
		fault("description: %d bytes, at most %d", len(s.Description), maxDescription)
	}
	if s.Timeout < 0 || s.Timeout > maxTimeout {
		fault("timeout: %v is not within 0 and %v", s.Timeout, maxTimeout)
	}
	if s.Wait != 0 && (s.Wait < minApprovalWait || s.Wait > maxApprovalWait) {
		fault("approval_wait: %v is not within %v and %v", s.Wait, minApprovalWait, maxApprovalWait)
	}
	if s.MaxReply < 0 || s.MaxReply > MaxReply {
		fault("max_reply: %d is not within 0 and %d", s.MaxReply, int64(MaxReply))
	}
	if len(s.Target) > maxTarget {
		fault("target: %d bytes, at most %d", len(s.Target), maxTarget)
	}
	if s.Price != nil && *s.Price < 0 {
		fault("price: %d is negative", *s.Price)
	}
	if r.Rate != nil && (!(s.Rate.PerSecond > 0 && s.Rate.PerSecond <= 1e6) || s.Rate.Burst < 1 || s.Rate.Burst > 1e6) {
		fault("rate: per_second is above 0, burst at least 1, both at most a million")
	}
	for _, ring := range append(slices.Clone(s.Rings.Only), s.Rings.Not...) {
		if ring < 1 || ring > 3 {
			fault("rings: %d is not 1, 2 or 3", ring)
		}
	}
	if s.Schema != nil {
		if _, err := compile(s.Schema); err != nil {
			fault("args: %w", err)
		}
	}
	if s.Action != nil {
		if err := s.Action.Check(); err != nil {
			fault("reversibility: %w", err)
		}
	}
	return append(errs, s.checkRequired()...)
}

// checkRequired: what isn't built in has to say what it is. The zero of a limit is a default; the zero of a class is none.
func (s Spec) checkRequired() (errs []error) {
	if !s.Enabled || s.Kind == kindBuiltin {
		return nil
	}
	missing := func(key, why string) { errs = append(errs, fmt.Errorf("%s: required, %s", key, why)) }
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

func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v <= 0 {
		return fmt.Errorf("line %d: %.32q is no duration above 0 such as 500ms or 10s", n.Line, n.Value)
	}
	*d = duration(v)
	return nil
}

// size is written in bytes, or with K or M for 1024 and 1024².
type size int64

func (s *size) UnmarshalYAML(n *yaml.Node) error {
	digits, unit := n.Value, int64(1)
	switch {
	case strings.HasSuffix(digits, "K"):
		unit = 1 << 10
	case strings.HasSuffix(digits, "M"):
		unit = 1 << 20
	}
	v, err := strconv.ParseInt(strings.TrimRight(digits, "KM"), 10, 32)
	if err != nil || v <= 0 || unit > 1 && len(digits)-len(strings.TrimRight(digits, "KM")) != 1 {
		return fmt.Errorf("line %d: %.32q is no size above 0 such as 4096, 64K or 1M", n.Line, n.Value)
	}
	*s = size(v * unit)
	return nil
}
