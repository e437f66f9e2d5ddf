// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
)

// Result counts what Check saw.
type Result struct {
	Cases     int // lines answered
	Compared  int // of them, those with a "want"
	Different int // of them, those answered differently
}

// Check answers the cases of r and compares each answer with the "want" of its case, {"out":…} or {"error":…}. What want says, the
// answer must say too; fields that want doesn't have may be anything, so that a case needs not repeat sentences. Lists must
// have the same length. Differences go to w.
func Check(r io.Reader, w io.Writer) (Result, error) {
	var res Result
	out := bufio.NewWriter(w)
	err := eachLine(r, out.Flush, func(n int, line []byte, tooLong bool) error {
		a := reply(line, tooLong)
		res.Cases++
		if a.want == nil {
			return nil
		}
		res.Compared++
		if matches(a.want, a.body()) {
			return nil
		}
		res.Different++
		var want bytes.Buffer
		if err := json.Compact(&want, a.want); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "line %d, id %s:\n  want %s\n  got  %s\n", n, a.id, want.Bytes(), a.body())
		return err
	})
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	return res, err
}

func matches(want, got json.RawMessage) bool {
	w, errWant := decode(want)
	g, errGot := decode(got)
	return errWant == nil && errGot == nil && covers(g, w)
}

func decode(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return v, d.Decode(&v)
}

// covers tells whether got has everything that want has.
func covers(got, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for name, value := range w {
			if has, there := g[name]; !there || !covers(has, value) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !covers(g[i], w[i]) {
				return false
			}
		}
		return true
	case json.Number:
		g, ok := got.(json.Number)
		return ok && sameNumber(string(g), string(w))
	}
	return got == want
}

// sameNumber takes 300, 300.0 and 3e2 for one number, as other languages print them. A long exponent is compared as text:
// the number it stands for wouldn't fit into memory.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	if len(a) > 32 || len(b) > 32 {
		return false
	}
	x, _, errX := big.ParseFloat(a, 10, 128, big.ToNearestEven)
	y, _, errY := big.ParseFloat(b, 10, 128, big.ToNearestEven)
	return errX == nil && errY == nil && x.Cmp(y) == 0
}
