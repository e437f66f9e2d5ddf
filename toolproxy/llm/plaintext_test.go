// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// M-18: no way of printing what holds the words of an agent or a model on their way shows them.
func TestM18PromptsAndRepliesRefuseToPrint(t *testing.T) {
	const word = "quetzalcoatlus"
	g, err := New(Options{Entrance: &entrance{limit: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	var chat chatRequest
	if e := decode([]byte(strings.ReplaceAll(`{"model":"m","user":"W","metadata":{"W":1},"stop":"W","response_format":{"W":1},"tools":[{"type":"function","function":{"name":"W"}}],
		"messages":[{"role":"user","content":"W"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"W"}}]}]}`, "W", word)), &chat); e != nil {
		t.Fatal(e)
	}
	var vectors embeddingsRequest
	if e := decode([]byte(`{"model":"m","input":["`+word+`"],"user":"`+word+`"}`), &vectors); e != nil {
		t.Fatal(e)
	}
	target := g.order[0]
	p, e := g.prompt(&chat, target)
	if e != nil {
		t.Fatal(e)
	}
	permit, e := g.o.Entrance.Enter(t.Context(), gate.Call{})
	if e != nil {
		t.Fatal(e)
	}
	defer permit.End(gate.Outcome{})
	c := newCall(g, target, permit, 0, 100, time.Minute)
	defer c.cancel(nil)
	ev, err := parseChunk([]byte(`{"choices":[{"delta":{"content":"` + word + `<"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	passes, e := g.passing(dialectOf(dialectChat), httptest.NewRequest("POST", "/v1/chat/completions", nil), []byte(`{"model":"`+TestModelName+`","messages":["`+word+`"]}`))
	if e != nil {
		t.Fatal(e)
	}
	out := newSink(nil, g, &chat)
	if e := c.give(&ev, out); e != nil {
		t.Fatal(e)
	}
	for name, v := range map[string]any{
		"request": chat, "transparent": passes, "request for vectors": vectors, "prompt": p, "event": ev, "call": c, "sink": out, "stripper": c.strip,
		"texts": Embedding{Texts: telemetry.NewPlaintext([]string{word})},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d"} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, word) || strings.Contains(out, "113 117 101 116") {
				t.Errorf("%s by %s: %s", name, verb, out)
			}
		}
	}
}
