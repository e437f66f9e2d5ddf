// SPDX-License-Identifier: Apache-2.0

package elevation

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// request is the body. Its text must have one meaning: names exact, known and once, numbers integers.
type request struct {
	Target jsontext.Value `json:"target_ring"`
	TTL    int64          `json:"ttl_seconds"`
	Reason string         `json:"reason"`
	Wait   int64          `json:"wait_seconds"`
}

// decode reads a request. A TTL of 0 or less is the default, a longer one than can be had is cut (H-14).
func decode(body []byte) (link.Elevation, *gate.Error) {
	var r request
	if err := json.Unmarshal(body, &r, json.RejectUnknownMembers(true)); err != nil {
		return link.Elevation{}, badRequest("the body is no JSON object of target_ring, ttl_seconds, reason and wait_seconds that can be read in one way", err)
	}
	var target rings.Ring
	if err := target.UnmarshalJSON(r.Target); err != nil {
		return link.Elevation{}, badRequest("target_ring isn't 0, 1, 2 or 3", nil)
	}
	if r.Wait < 0 || r.Wait > int64(link.MaxWait/time.Second) {
		return link.Elevation{}, badRequest("wait_seconds isn't within 0 and 300", nil)
	}
	// Compared before it is multiplied: 2^60 seconds would come out as any time.
	ttl := min(max(r.TTL, 0), int64(rings.MaxElevation/time.Second))
	e := link.Elevation{Target: target, TTL: time.Duration(ttl) * time.Second, Reason: r.Reason, Wait: time.Duration(r.Wait) * time.Second}
	if e.Check() != nil {
		return link.Elevation{}, badRequest("reason isn't one line of at most 1024 bytes", nil)
	}
	return e, nil
}

func badRequest(message string, cause error) *gate.Error {
	return &gate.Error{Code: gate.CodeBadRequest, Message: message, Next: `send {"target_ring":2,"ttl_seconds":60,"reason":"…"} as application/json`, Cause: cause}
}

func unavailable(cause error) *gate.Error {
	return &gate.Error{Code: gate.CodeUnavailable, Message: "the supervisor can't be asked for an elevation", Next: "go on in the ring you have", Cause: cause}
}

// refused is what the agent is told of the supervisor's answer; nil: granted. Half a grant is none.
func refused(a link.Elevated) *gate.Error {
	if a.Granted && a.Code == rings.CodeOK && a.ID != "" && a.Target.Valid() && !a.Expires.IsZero() {
		return nil
	}
	e := &gate.Error{Code: a.Code, Message: a.Message, Next: a.Next, Rule: "H-13"}
	said := words[a.Code]
	if said.message == "" && a.Message != "" && word(a.Code) {
		said.message, said.next = a.Message, stay // a reason of the supervisor's own, a profile's for one
	}
	if said.message == "" {
		e.Code, said.message, said.next = gate.CodeUnavailable, "the supervisor's answer makes no sense", "go on in the ring you have"
	}
	e.Message, e.Next = cmp.Or(e.Message, said.message), cmp.Or(e.Next, said.next)
	return e
}

func word(code rings.Code) bool {
	return code != "" && code != rings.CodeOK && len(code) <= 64 && strings.Trim(string(code), "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

const stay = "work in the ring you have"

// words are the sentence and the next step of a code that the supervisor said no more of.
var words = map[rings.Code]struct{ message, next string }{
	rings.CodeInvalidTarget:      {"the target is not more privileged than the ring you are in", "GET /internal/elevation tells the ring you are in"},
	rings.CodeRing0Forbidden:     {"ring 0 is never an agent's", "ask for ring 2 or 1"},
	rings.CodeDuplicateElevation: {"there is an elevation already", "use it; GET /internal/elevation tells until when it lasts"},
	gate.CodeQuarantined:         {"the agent is in quarantine", "stop; an operator has to release the agent"},
	rings.CodeInsufficientTrust:  {"the agent's trust isn't high enough for that ring", stay},
	rings.CodeNoConsensus:        {"that ring needs a consensus, and there is none", "ask for ring 2"},
	rings.CodeInvalidTTL:         {"the time to live is none", "ask for 1 to 3600 seconds"},
	gate.CodeApproval:            {"no operator agreed in time", "ask the operator, or wait longer with wait_seconds"},
	gate.CodeRateLimited:         {"too many requests", "wait, then try again"},
	gate.CodeRing:                {"this run can't have that ring", stay},
	gate.CodeCanceled:            {"the run has ended", "end"},
	gate.CodeUnavailable:         {"the supervisor can't decide now", "try again later"},
}
