// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// oneAnswer is a supervisor with one answer.
type oneAnswer struct {
	link.FileAnswer
	err error
}

func (o oneAnswer) File(context.Context, link.FileRequest) (link.FileAnswer, error) {
	return o.FileAnswer, o.err
}

// M-11, H-6: what the tool asks for, and what an agent hears of a refusal. A piece ends with a whole character.
func TestM11File(t *testing.T) {
	for name, tt := range map[string]struct {
		args   string
		answer oneAnswer
		want   string // of the output, or a code
	}{
		"read":            {`{"op":"read","path":"a"}`, oneAnswer{link.FileAnswer{Allowed: true, Data: []byte("text"), Bytes: 4}, nil}, `{"text":"text","bytes":4}`},
		"read a piece":    {`{"op":"read","path":"a"}`, oneAnswer{link.FileAnswer{Allowed: true, Data: []byte("caf\xc3"), Bytes: 9}, nil}, `{"text":"caf","bytes":9,"next":3}`},
		"read on":         {`{"op":"read","path":"a","offset":3}`, oneAnswer{link.FileAnswer{Allowed: true, Data: []byte("é"), Bytes: 5}, nil}, `{"text":"é","bytes":5}`},
		"read no text":    {`{"op":"read","path":"a"}`, oneAnswer{link.FileAnswer{Allowed: true, Data: []byte("\xff\xff\xff\xff"), Bytes: 9}, nil}, string(gate.CodeToolRestricted)},
		"read nothing":    {`{"op":"read"}`, oneAnswer{}, string(gate.CodeBadArguments)},
		"read and write":  {`{"op":"read","path":"a","text":"x"}`, oneAnswer{}, string(gate.CodeBadArguments)},
		"write":           {`{"op":"write","path":"a","text":"four"}`, oneAnswer{link.FileAnswer{Allowed: true}, nil}, `"bytes":4`},
		"write too much":  {`{"op":"write","path":"a","text":"` + strings.Repeat("é", 32769) + `"}`, oneAnswer{}, string(gate.CodeBadArguments)},
		"list":            {`{"op":"list"}`, oneAnswer{link.FileAnswer{Allowed: true}, nil}, `{"entries":[],"more":false}`},
		"no path":         {`{"op":"delete","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FilePath}, nil}, string(gate.CodeBadArguments)},
		"no file":         {`{"op":"delete","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FileMissing}, nil}, string(gate.CodeNotFound)},
		"a link":          {`{"op":"delete","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FileKind}, nil}, string(gate.CodeToolRestricted)},
		"not empty":       {`{"op":"delete","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FileFilled}, nil}, string(gate.CodeToolRestricted)},
		"guarded":         {`{"op":"delete","path":".git"}`, oneAnswer{link.FileAnswer{Refused: link.FileGuarded}, nil}, string(gate.CodeToolRestricted)},
		"the ring":        {`{"op":"delete","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FileRing}, nil}, string(gate.CodeRing)},
		"full":            {`{"op":"write","path":"a"}`, oneAnswer{link.FileAnswer{Refused: link.FileQuota}, nil}, string(gate.CodeQuota)},
		"the zero answer": {`{"op":"write","path":"a"}`, oneAnswer{}, string(gate.CodeUnavailable)},
		"no supervisor":   {`{"op":"write","path":"a"}`, oneAnswer{link.FileAnswer{}, errors.New("gone")}, string(gate.CodeUnavailable)},
	} {
		t.Run(name, func(t *testing.T) {
			d := only(t, Definitions(Options{Files: tt.answer}), "file")
			r, err := d.Tool.Call(t.Context(), tools.Call{Args: telemetry.NewPlaintext(json.RawMessage(tt.args)), Limit: 1 << 20})
			got := string(r.Output)
			if e, ok := errors.AsType[*gate.Error](err); ok {
				got = string(e.Code)
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	d := only(t, Definitions(Options{Files: oneAnswer{}}), "file")
	if d.Action.RequiredRing() != rings.Sandbox || strings.Join(d.Writes, " ") != "write delete" || !d.Plaintext || d.Category != gate.CategoryB {
		t.Errorf("got %v, %v, %v, %v", d.Action, d.Writes, d.Plaintext, d.Category)
	}
}

func only(t *testing.T, all []tools.Definition, name string) tools.Definition {
	t.Helper()
	for _, d := range all {
		if d.Name == name {
			return d
		}
	}
	t.Fatalf("there is no %s", name)
	return tools.Definition{}
}
