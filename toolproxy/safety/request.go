// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"encoding/json"
	"fmt"
	"strings"

	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/tool"
	"agentrun/toolproxy/link"
)

// stepOperation is the operation with a hint.
const stepOperation = "record_execution_step"

// decode reads a request that has one meaning, so that the loop's own reader finds in params what is found
// here. It checks also what the link would refuse: the loop knows a better answer to everything else.
func decode(body []byte) (q tool.Request, refused *answer) {
	q, e := tool.Read(body, MaxBody)
	switch {
	case e != nil:
		return q, refusing(e)
	case q.Operation == "" || len(q.Operation) > link.MaxSafetyWord:
		return q, refuse(judge.CodeNoOperation, fmt.Sprintf("Unknown operation: '%s'", tool.Short(q.Operation)), nil)
	case len(q.Params) > link.MaxSafetyParams:
		return q, refuse(judge.CodeTooLarge,
			fmt.Sprintf("params have %d bytes, at most %d are taken", len(q.Params), link.MaxSafetyParams),
			map[string]any{"limit": link.MaxSafetyParams, "size": len(q.Params)})
	}
	return q, nil
}

// toJudge gives what a request is judged by: a step by its hint, what EXECUTE asks for by its operation and element.
func toJudge(q tool.Request, at judge.Endpoint) (hint string, ok bool) {
	switch {
	case at == judge.Create && q.Operation == stepOperation:
		return hintOf(q.Params)
	case at == judge.Execute:
		element, ok := textOf(q.Params, "elementName", "element_name")
		return judge.OperationHint(q.Operation, element), ok
	}
	return "", false
}

// hintOf gives the hint as the loop will read it.
func hintOf(params []byte) (hint string, ok bool) {
	return textOf(params, "nextActionHint", "next_action_hint")
}

// textOf gives a parameter as the loop will read it. Under both names, under none, and what is no string, the loop refuses by itself.
func textOf(params []byte, camelName, snakeName string) (hint string, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(params, &fields) != nil {
		return "", false
	}
	raw, camel := fields[camelName]
	other, snake := fields[snakeName]
	if camel == snake {
		return "", false
	}
	if snake {
		raw = other
	}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &hint) != nil {
		return "", false
	}
	return hint, true
}

func cut(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText-len("…")], "") + "…"
	}
	return s
}
