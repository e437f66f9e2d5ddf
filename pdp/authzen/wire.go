// SPDX-License-Identifier: Apache-2.0

package authzen

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/pdp"
	"agentrun/rings"
)

// The information model of the specification: an entity is a type, an id and properties; an action a name. Names of properties
// are those of pdp.Request's JSON.
type entity struct {
	Type       string `json:"type"`
	ID         string `json:"id"`
	Properties any    `json:"properties,omitempty"`
}

type subjectProperties struct {
	TeamID string `json:"team_id"`
	Role   string `json:"role"`
	KeyID  string `json:"key_id"`
}

type resourceProperties struct {
	TeamID string `json:"team_id"`
	Mode   string `json:"mode"`
}

type action struct {
	Name string `json:"name"`
}

type evaluation struct {
	Subject  entity      `json:"subject"`
	Action   action      `json:"action"`
	Resource entity      `json:"resource"`
	Context  pdp.Context `json:"context"`
}

// encode writes the same text for the same request: structs keep their order, and there is no map in it. So the text is the
// cache's key too, and no field can be forgotten in it.
func encode(r pdp.Request) ([]byte, error) {
	return json.Marshal(evaluation{
		Subject:  entity{string(r.Subject.Type), r.Subject.ID, subjectProperties{r.TeamID, r.Context.Role, r.KeyID}},
		Action:   action{r.Action},
		Resource: entity{"resource", r.Resource.ID, resourceProperties{r.Resource.TeamID, string(r.Resource.Mode)}},
		Context:  r.Context,
	})
}

var (
	errNoDecision    = errors.New(`no "decision" that is true or false`)
	errContradiction = errors.New("allowed, with a reason to deny or a severity of one")
)

// decode reads an answer. Members that aren't known are passed over, as the specification lets a PDP add some; a name given twice is
// an error to the library, so no decision can follow another. The context is free: only a reason of M-9's and a
// severity mean something here.
func decode(text []byte) (pdp.Decision, error) {
	var answer struct {
		Decision jsontext.Value `json:"decision"`
		Context  jsontext.Value `json:"context"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return pdp.Decision{}, err
	}
	reason, critical := reasonIn(answer.Context)
	switch string(answer.Decision) {
	case "true":
		if pdp.KnownReason(reason) || critical {
			return pdp.Decision{}, errContradiction
		}
		return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK, Message: "permitted by the remote policy decision point"}, nil
	case "false":
		if !pdp.KnownReason(reason) {
			reason = pdp.CodeRBACDenied
		}
		d := pdp.Denied(reason, "the remote policy decision point refuses", nil)
		d.Critical = critical
		return d, nil
	}
	return pdp.Decision{}, errNoDecision
}

// reasonIn finds the reason of a denial, and whether it is one that kills (H-23): "severity": "critical".
func reasonIn(context jsontext.Value) (reason rings.Code, critical bool) {
	var c struct {
		Reason   jsontext.Value `json:"reason"`
		Severity jsontext.Value `json:"severity"`
	}
	if !bytes.HasPrefix(context, []byte("{")) || json.Unmarshal(context, &c) != nil {
		return "", false
	}
	var why, severity string
	if json.Unmarshal(c.Reason, &why) != nil {
		why = ""
	}
	if json.Unmarshal(c.Severity, &severity) != nil {
		severity = ""
	}
	return rings.Code(why), severity == "critical"
}
