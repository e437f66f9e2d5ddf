// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentrun/telemetry"
)

// M-18: no way of printing what holds parameters, approved steps and codes shows them.
func TestM18StepsAndCodesRefuseToPrint(t *testing.T) {
	const word = "quetzalcoatlus"
	raw := json.RawMessage(`{"element_name":"a","nextActionHint":"` + word + `"}`)
	v, refused := decode(operation(opStep), raw)
	if refused != nil || v.text(pHint) != word {
		t.Fatalf("got %v, %v", v, refused)
	}
	c := Challenge{ID: "i", Hint: word, Code: telemetry.NewPlaintext(word)}
	for name, held := range map[string]any{
		"call": Call{Params: telemetry.NewPlaintext(raw)}, "parameters": v, "intent": intent{hint: telemetry.NewPlaintext(word)},
		"challenge": c, "shown": c.Shown(), "kept": &challenge{code: telemetry.NewPlaintext(word)},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d"} {
			if out := fmt.Sprintf(verb, held); strings.Contains(out, word) || strings.Contains(out, "113 117 101 116") {
				t.Errorf("%s by %s: %s", name, verb, out)
			}
		}
	}
}
