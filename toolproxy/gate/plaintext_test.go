// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"agentrun/telemetry"
)

// M-18: no way of printing what holds an agent's words on their way through the gate shows them.
func TestM18CallsRefuseToPrint(t *testing.T) {
	const word = "quetzalcoatlus"
	c := Call{Tool: "t", Args: telemetry.NewPlaintext(json.RawMessage(`{"a":"` + word + `"}`)), Target: telemetry.NewPlaintext(word)}
	e := noIntent("t", word)
	for name, v := range map[string]any{"call": c, "permit": &permit{call: c}, "error": e, "outcome": Outcome{Err: e}, "wrapped": fmt.Errorf("x: %w", e)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d"} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, word) || strings.Contains(out, "113 117 101 116") {
				t.Errorf("%s by %s: %s", name, verb, out)
			}
		}
	}
	if b, err := json.Marshal(c.Args); err != nil || strings.Contains(string(b), word) {
		t.Errorf("got %s, %v", b, err)
	}
}

// M-18: what went wrong is told to the operator, and not what it went wrong with.
func TestM18CauseOf(t *testing.T) {
	const word = "quetzalcoatlus"
	var none *Error
	number := 0
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("upstream was silent"), "upstream was silent"},
		{&url.Error{Op: "Get", URL: "https://h/" + word, Err: syscall.ECONNREFUSED}, "connection refused"},
		{fmt.Errorf("%s: %w", word, &url.Error{Op: "Get", URL: word, Err: url.EscapeError(word)}), "url.EscapeError"},
		{json.Unmarshal([]byte(`"`+word+`"`), &number), "*json.UnmarshalTypeError"},
		{errors.Join(fmt.Errorf("%s %w", word, errors.New("a")), syscall.EPIPE), "a; broken pipe"},
		{none, "*gate.Error"},
		{broke(word).Cause, "decide: panic of type string"},
		{&Error{Code: CodeBadArguments, Message: word}, "*gate.Error"},
	} {
		if got := CauseOf(c.err); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
