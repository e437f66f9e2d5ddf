// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	cedar "github.com/cedar-policy/cedar-go"
)

// question is a request in Cedar's terms: at most six entities, found by comparing, which is cheaper than building a map.
type question struct {
	request  cedar.Request
	entities [6]cedar.Entity
	n        int
	anchors  []cedar.EntityUID // the principal, the resource, and all that they are in
}

// Get returns an entity of the request's.
func (q *question) Get(uid cedar.EntityUID) (cedar.Entity, bool) {
	for i := range q.entities[:q.n] {
		if q.entities[i].UID == uid {
			return q.entities[i], true
		}
	}
	return cedar.Entity{}, false
}

func (q *question) entity(uid cedar.EntityUID, attributes cedar.RecordMap, parents ...cedar.EntityUID) {
	q.entities[q.n] = cedar.Entity{UID: uid, Parents: cedar.NewEntityUIDSet(parents...), Attributes: cedar.NewRecord(attributes)}
	q.n++
}

func uid(kind cedar.EntityType, id string) cedar.EntityUID {
	return cedar.NewEntityUID(kind, cedar.String(id))
}

// translate turns a request that passed Check into Cedar's terms.
func translate(r Request) *question {
	q := &question{}
	target := uid("Resource", r.Resource.ID)
	q.request = cedar.Request{
		Principal: q.principal(r),
		Action:    uid("Action", r.Action), // RunAction or ElevationAction; of a tool below
		Resource:  target,
		Context:   contextOf(r, target),
	}
	owner := uid("Team", r.Resource.TeamID)
	q.entity(target, cedar.RecordMap{"team": owner, "mode": cedar.String(r.Resource.Mode)}, owner)
	if r.Resource.TeamID != r.TeamID {
		q.entity(owner, nil)
	}
	if name, ok := ToolOf(r.Action); ok {
		tool := uid("Tool", name)
		q.request.Action, q.request.Resource = uid("Action", "tool.invoke"), tool
		q.entity(tool, cedar.RecordMap{
			"category":       cedar.String(r.Context.Tool.Category),
			"plaintext_free": cedar.Boolean(r.Context.Tool.PlaintextFree),
		})
		q.anchors = append(q.anchors, tool)
	} else {
		q.anchors = append(q.anchors, target, owner)
	}
	return q
}

func (q *question) principal(r Request) cedar.EntityUID {
	kind := cedar.EntityType("User")
	if r.Subject.Type == Agent {
		kind = "Agent"
	}
	who, team := uid(kind, r.Subject.ID), uid("Team", r.TeamID)
	parents := []cedar.EntityUID{team}
	if r.Context.Role != "" {
		role := uid("Role", r.Context.Role)
		q.entity(role, nil)
		parents = append(parents, role)
	}
	q.entity(team, nil)
	q.entity(who, cedar.RecordMap{"team": team}, parents...)
	q.anchors = append(append(make([]cedar.EntityUID, 0, 6), who), parents...)
	return who
}

// risk is that of a tool call; one that isn't said is as risky as can be (H-8).
func (r Request) risk() int {
	if _, tool := ToolOf(r.Action); tool && r.Context.Risk == 0 {
		return 100
	}
	return r.Context.Risk
}

func contextOf(r Request, target cedar.EntityUID) cedar.Record {
	c := r.Context
	granted := make([]cedar.Value, len(c.Capabilities))
	for i, name := range c.Capabilities {
		granted[i] = cedar.String(name)
	}
	m := cedar.RecordMap{
		"target":        target,
		"capability":    cedar.String(r.Action),
		"capabilities":  cedar.NewSet(granted...),
		"key_valid":     cedar.Boolean(c.KeyValid),
		"keyless":       cedar.Boolean(c.Keyless),
		"ring":          cedar.Long(c.Ring.Value()),
		"required_ring": cedar.Long(c.RequiredRing.Value()),
		"risk":          cedar.Long(r.risk()),
		"plan":          cedar.String(c.Plan),
		"input":         cedar.String(c.Input),
		"quota": cedar.NewRecord(cedar.RecordMap{
			"used": cedar.Long(c.Quota.Used), "limit": cedar.Long(c.Quota.Limit),
		}),
	}
	if c.Role != "" {
		m["role"] = cedar.String(c.Role)
	}
	if r.KeyID != "" {
		m["key_id"] = cedar.String(r.KeyID)
	}
	return cedar.NewRecord(m)
}
