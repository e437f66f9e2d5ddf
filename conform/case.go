// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// testCase is one line.
type testCase struct {
	id       json.RawMessage // nil if it can't be read
	op       string
	in, want json.RawMessage
}

// readCase returns what could be read also with an error, so that the answer to a bad case can still be told
// from others.
func readCase(line []byte) (testCase, error) {
	if !utf8.Valid(line) {
		return testCase{}, fault(InvalidJSON, "the line is not UTF-8")
	}
	if !json.Valid(line) {
		return testCase{}, fault(InvalidJSON, "the line is not JSON: %v", json.Unmarshal(line, new(json.RawMessage)))
	}
	f := readFields("case", bytes.TrimSpace(line))
	var c testCase
	if id, ok := f.must("id"); ok {
		var compact bytes.Buffer
		if err := json.Compact(&compact, id); err != nil {
			return testCase{}, err
		}
		c.id = compact.Bytes()
	}
	c.want, _ = f.take("want")
	c.op = f.text("op")
	c.in, _ = f.must("in")
	return c, f.done()
}

func (c testCase) run() (json.RawMessage, error) {
	op := operation(c.op)
	if op == nil {
		return nil, fault(UnknownOp, "no operation is called %.64q", c.op)
	}
	if kind(c.in) != "an object" {
		return nil, fault(InvalidType, "%s: in is %s, want an object", c.op, kind(c.in))
	}
	return c.contain(op)
}

// contain runs op. A panic in it must not cost the answers that are still to come. What it answers to a case
// with a mistake in it is dropped: the mistake is told instead.
func (c testCase) contain(op func(*fields) (any, error)) (out json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fault(Internal, "%s: panic: %.200v", c.op, p)
		}
	}()
	f := readFields(c.op, c.in)
	v, err := op(f)
	if bad := f.done(); bad != nil {
		return nil, bad
	}
	if err != nil {
		return nil, err
	}
	if out, err = encode(v); err != nil {
		return nil, fmt.Errorf("%s: encode answer: %w", c.op, err)
	}
	return out, nil
}

// operations are all there are. A list needs no code that runs at each start of the binary, as a map would.
var operations = []struct {
	name string
	do   func(*fields) (any, error)
}{
	{"assign", assign},
	{"should_demote", shouldDemote},
	{"classify", classify},
	{"validate_action", validateAction},
	{"check", check},
	{"constraints", constraints},
	{"resource", resource},
	{"elevate", elevate},
	{"identifier", identifier},
	{"session_config", sessionConfig},
	{"path_access", pathAccess},
	{"rate", rate},
	{"saga", saga},
	{"kill", kill},
	{"breach", breach},
	{"audit_verify", auditVerify},
}

func operation(name string) func(*fields) (any, error) {
	for _, op := range operations {
		if op.name == name {
			return op.do
		}
	}
	return nil
}
