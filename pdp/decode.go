// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"errors"

	"github.com/go-json-experiment/json"

	"agentrun/rings"
)

// DecodeRequest reads one request from JSON and checks it. It returns a request that passes Check, or the zero Request and
// rings.Problems.
//
// The text must have one meaning: names are exact, known and come once, text is UTF-8, numbers are integers. Nothing needs to
// be looked for that is missing: a field that isn't there has its zero value, and that refuses.
func DecodeRequest(text []byte) (Request, error) {
	if len(text) > MaxRequestJSON {
		return Request{}, rings.Problems{problem("", "request has %d bytes, at most %d are allowed", len(text), MaxRequestJSON)}
	}
	var r Request
	if err := json.Unmarshal(text, &r, json.RejectUnknownMembers(true)); err != nil {
		return Request{}, rings.Problems{whereInJSON(err)}
	}
	if err := r.Check(); err != nil {
		return Request{}, err
	}
	return r, nil
}

// whereInJSON says it in our words: the library's repeat parts of the text, and change between releases.
func whereInJSON(err error) rings.Problem {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		if errors.Is(e.Err, json.ErrUnknownName) {
			return problem(printable(string(e.JSONPointer)), "is not a field of a request")
		}
		return problem(printable(string(e.JSONPointer)), "has the wrong type or value")
	}
	return problem("", "request is not JSON with one meaning: %.200v", err)
}

func printable(pointer string) string {
	const most = 100
	out := make([]byte, 0, most)
	for i := 0; i < len(pointer) && len(out) < most; i++ {
		if c := pointer[i]; c > ' ' && c < 0x7f {
			out = append(out, c)
		}
	}
	return string(out)
}
