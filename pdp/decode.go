// SPDX-License-Identifier: Apache-2.0

package pdp

import "agentrun/internal/read"

// DecodeRequest reads one request from JSON and checks it. It returns a request that passes Check, or the
// zero Request and a *read.InvalidError.
//
// The text must have one meaning: names are exact, known and come once, text is UTF-8, numbers are integers.
// Nothing needs to be looked for that is missing: a field that isn't there has its zero value, and that
// refuses.
func DecodeRequest(text []byte) (Request, error) {
	n := read.JSON(read.Source{Max: MaxRequestJSON}, text)
	var r Request
	n.Into(&r)
	if err := n.Done(r.Check()); err != nil {
		return Request{}, err
	}
	return r, nil
}
