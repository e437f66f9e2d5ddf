// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// Options of New.
type Options struct {
	Config    Config
	Builtin   []Definition
	Factories map[string]Factory       // by kind: "http", "command"
	Sources   map[string]SourceFactory // by kind: "mcp"
	Entrance  gate.Entrance            // required. One that has May decides what List shows, too.
	Caller    link.Caller

	// Filter is what every output passes before the agent sees it (M-15, M-16); it returns flags for the record. Required.
	Filter func(mode string, output json.RawMessage) (json.RawMessage, []string, error)
	// Inspect names what is suspicious about arguments (M-16); nil: nothing is looked for.
	Inspect func(args json.RawMessage) []string

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil: nothing is logged
}

// Listing is what an agent is told of a tool.
type Listing struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Category    gate.Category   `json:"category"`
	Args        json.RawMessage `json:"args"`
	Approval    bool            `json:"approval,omitempty"` // an operator is asked about each call
	Price       int64           `json:"price,omitempty"`
}

// Registry has the tools of one run. It is safe for concurrent use.
type Registry struct {
	o       Options
	mu      sync.Mutex         // writers of tools
	rates   map[string]*bucket // of sources' tools, also of those that are gone
	tools   atomic.Pointer[map[string]*tool]
	sources []*source
	asked   chan struct{} // closed when every source was asked once
	making  sync.RWMutex  // held for reading by each call that can be undone; see Finish
}

// tool is a definition that is ready to be called.
type tool struct {
	Definition
	args  arguments
	rules rules
	rate  *bucket
	stuck atomic.Int32 // calls that didn't end with their context
	from  *source      // nil: of the configuration
	undo  Tool         // what undoes a call, to see what it takes; nil: nothing does

	targets []string          // arguments that a call may be about
	spelled map[string]string // its arguments' names, by what they are without case
}

// New returns the registry of what the configuration and the built-in definitions say. Tools of sources are there after Refresh.
func New(o Options) (*Registry, error) {
	if o.Entrance == nil || o.Filter == nil {
		return nil, errors.New("make the registry of tools: no entrance or no filter")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Inspect == nil {
		o.Inspect = func(json.RawMessage) []string { return nil }
	}
	r := &Registry{o: o, asked: make(chan struct{}), rates: map[string]*bucket{}}
	all, err := r.assemble()
	if err != nil {
		return nil, err
	}
	r.tools.Store(&all)
	return r, nil
}

func (r *Registry) assemble() (map[string]*tool, error) {
	all := map[string]*tool{}
	var errs []error
	add := func(d Definition, s Spec) {
		t, err := r.make(d, s)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("tools.%s: %w", d.Name, err))
		case all[d.Name] != nil:
			errs = append(errs, fmt.Errorf("tools.%s: defined twice", d.Name))
		default:
			all[d.Name] = t
		}
	}
	for _, d := range r.o.Builtin {
		s, changed := r.o.Config[d.Name]
		if !changed {
			s = Spec{Kind: kindBuiltin, Enabled: true}
		}
		if s.Enabled && s.Kind == kindBuiltin {
			add(s.change(d), s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.o.Config)) {
		s := r.o.Config[name]
		builtin := slices.ContainsFunc(r.o.Builtin, func(d Definition) bool { return d.Name == name })
		switch {
		case s.Kind == kindBuiltin && builtin:
		case s.Kind == kindBuiltin:
			errs = append(errs, fmt.Errorf("tools.%s: there is no built-in tool of that name", name))
		case !s.Enabled:
		case r.o.Sources[s.Kind] != nil:
			errs = append(errs, r.addSource(name, s))
		case r.o.Factories[s.Kind] != nil:
			t, err := r.o.Factories[s.Kind](name, s.Node)
			if err != nil {
				errs = append(errs, fmt.Errorf("tools.%s.%s: %w", name, s.Kind, err))
				continue
			}
			add(s.change(Definition{Name: name, Schema: s.Schema, Undo: s.Undo, Tool: t}), s)
			undo, err := r.makeUndo(name, s.Undo)
			if errs = append(errs, err); all[name] != nil {
				all[name].undo = undo
			}
		default:
			errs = append(errs, fmt.Errorf("tools.%s.kind: %s isn't part of this gateway", name, s.Kind))
		}
	}
	return all, errors.Join(errs...)
}

// makeUndo makes what undoes a tool's calls. It is never called here: another process does that, when it is asked for.
func (r *Registry) makeUndo(name string, u *Undo) (t Tool, err error) {
	switch {
	case u == nil:
	case u.HTTP != nil && r.o.Factories["http"] != nil:
		t, err = r.o.Factories["http"](name, u.HTTP)
	case u.Command != nil && r.o.Factories["command"] != nil:
		t, err = r.o.Factories["command"](name, u.Command)
	default:
		err = errors.New("what undoes a call isn't part of this gateway")
	}
	if err != nil {
		return nil, fmt.Errorf("tools.%s.undo: %w", name, err)
	}
	return t, nil
}

// change lays what the configuration says of a tool over what it is. A built-in tool can be made dearer,
// slower to pass and rarer; its schema is its own.
func (s Spec) change(d Definition) Definition {
	d.Description = cmp.Or(s.Description, d.Description)
	d.Category = max(s.Category, d.Category)
	d.Timeout = cmp.Or(time.Duration(s.Timeout), d.Timeout)
	d.MaxReply = cmp.Or(int64(s.MaxReply), d.MaxReply)
	d.Approve = d.Approve || s.Approve
	d.Wait = cmp.Or(time.Duration(s.Wait), d.Wait)
	d.Target = cmp.Or(s.Target, d.Target)
	d.Plaintext = d.Plaintext || s.Plaintext
	if s.Price != nil {
		d.Price = *s.Price
	}
	if s.Action != nil {
		d.Action, d.Writes = *s.Action, nil // the operator's word
	}
	return d
}

func (r *Registry) make(d Definition, s Spec) (*tool, error) {
	t := &tool{
		Definition: d, rules: rules{s.Rings, s.Plans, s.Roles}, rate: newBucket(s.Rate, r.o.Now), targets: d.targets(), spelled: d.spelled(),
	}
	if t.MaxReply == 0 {
		t.MaxReply = DefaultMaxReply
	}
	var err error
	if t.args, err = compile(d.Schema); err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	t.Schema, _ = canonical(d.Schema)
	switch {
	case checkName(d.Name) != nil:
		return nil, checkName(d.Name)
	case d.Tool == nil:
		return nil, errors.New("no tool")
	case !d.Category.Valid():
		return nil, fmt.Errorf("category %.16q is not A, B, C or D", string(d.Category))
	case d.Action.Check() != nil:
		return nil, fmt.Errorf("action: %w", d.Action.Check())
	case d.checkTarget() != nil || d.checkWith() != nil:
		return nil, errors.Join(d.checkTarget(), d.checkWith())
	case d.Wait != 0 && (d.Wait < minApprovalWait || d.Wait > maxApprovalWait):
		return nil, errors.New("approval_wait is out of bounds")
	case d.Price < 0 || d.Timeout < 0 || d.MaxReply < 0 || d.MaxReply > MaxReply || len(d.Description) > maxDescription:
		return nil, errors.New("price, timeout, max_reply or description is out of bounds")
	}
	return t, nil
}

func (r *Registry) lookup(name string) *tool { return (*r.tools.Load())[name] }

// Has tells whether name can stand for a tool: one that is there, "llm" and "embeddings", which the model's
// routes are granted as, or one of an MCP server, which says what it has only when it is asked.
func (r *Registry) Has(name string) bool {
	return name == "llm" || name == "embeddings" || r.lookup(name) != nil || r.sourceOf(name) != nil
}

// Names are those of the tools that are known now, in order.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(*r.tools.Load())) }

// call is what the entrance decides about.
func (r *Registry) call(t *tool) gate.Call {
	return gate.Call{
		Kind: "tool", Tool: t.Name, Category: t.Category, Action: t.Action, Approve: t.Approve, Estimate: t.Price,
		Timeout: t.Timeout, ApprovalWait: t.Wait, PlaintextFree: !t.Plaintext,
		Admit: func(ring rings.Ring) *gate.Error { return r.admit(t, ring) },
		Rate:  t.rate.take,
	}
}

// admit has the refusal of plaintext (M-15) too, though the policies' guard has it: a registry in front of another policy
// must not depend on that.
func (r *Registry) admit(t *tool, ring rings.Ring) *gate.Error {
	if t.Plaintext && r.o.Caller.Mode != "public" {
		return &gate.Error{
			Code: gate.CodeConfidential, Message: "this tool bears plaintext, and the team is in confidential mode",
			Next: "work with embeddings, summaries and metadata", Rule: "M-15",
		}
	}
	return t.rules.admit(r.o.Caller, ring)
}

// List returns what this agent may call as things are now, by name; never what it may not.
func (r *Registry) List(ctx context.Context) []Listing {
	gatekeeper, _ := r.o.Entrance.(interface {
		May(ctx context.Context, c gate.Call) bool
	})
	list := []Listing{}
	all := *r.tools.Load()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t := all[name]
		if gatekeeper == nil || !gatekeeper.May(ctx, r.call(t)) {
			continue
		}
		list = append(list, Listing{
			Name: t.Name, Description: t.Description, Category: t.Category, Args: t.Schema,
			Approval: t.Approve || t.Category == gate.CategoryD, Price: t.Price,
		})
	}
	return list
}
