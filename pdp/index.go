// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"iter"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// index finds the policies that can apply to a request without trying them all. Each policy lies in one place: under the one
// entity that its scope demands, or among those that demand none. A policy under another entity than the request's own, their
// roles and teams can't match, whatever its conditions say; so leaving it out changes no decision. TestM10IndexChangesNothing
// compares with trying all.
type index struct {
	general []*policy
	under   map[cedar.EntityUID][]*policy
}

func (x *index) add(p *policy) {
	anchor, ok := anchorOf((*ast.Policy)(p.compiled.AST()))
	if !ok {
		x.general = append(x.general, p)
		return
	}
	if x.under == nil {
		x.under = map[cedar.EntityUID][]*policy{}
	}
	x.under[anchor] = append(x.under[anchor], p)
}

// anchorOf prefers what divides most finely: one tool or resource, then one subject, its role or its team.
func anchorOf(p *ast.Policy) (cedar.EntityUID, bool) {
	if s, ok := p.Resource.(ast.ScopeTypeEq); ok {
		return s.Entity, true
	}
	switch s := p.Principal.(type) {
	case ast.ScopeTypeEq:
		return s.Entity, true
	case ast.ScopeTypeIn:
		return s.Entity, true
	case ast.ScopeTypeIsIn:
		return s.Entity, true
	}
	switch s := p.Resource.(type) {
	case ast.ScopeTypeIn:
		return s.Entity, true
	case ast.ScopeTypeIsIn:
		return s.Entity, true
	}
	return cedar.EntityUID{}, false
}

// candidates are the policies that can apply to a request with these entities.
type candidates struct {
	in      *index
	anchors []cedar.EntityUID
}

// All gives each policy once.
func (c candidates) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, p := range c.in.general {
			if !yield(p.id, p.compiled) {
				return
			}
		}
		for i, anchor := range c.anchors {
			if slices.Contains(c.anchors[:i], anchor) {
				continue // the subject's team is often the resource's too
			}
			for _, p := range c.in.under[anchor] {
				if !yield(p.id, p.compiled) {
					return
				}
			}
		}
	}
}
