// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"unicode/utf8"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// files is the tool for the folder of the run's session (M-11). Where that is, what may be changed in it, and by which ring, is the
// supervisor's; the gateway opens no file.
type files struct{ to link.Files }

type fileArgs struct {
	Op     string `json:"op"`
	Path   string `json:"path"`
	Text   string `json:"text"`
	Offset int64  `json:"offset"`
}

type fileRead struct {
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`         // of the whole file
	Next  int64  `json:"next,omitzero"` // offset of what follows; none: that was all
}

func (f files) run(ctx context.Context, _ tools.Call, args fileArgs) (any, error) {
	if len(args.Text) > link.MaxFilePiece {
		return nil, tools.BadArguments("the text has %d bytes, at most %d are allowed", len(args.Text), link.MaxFilePiece)
	}
	a, e := f.ask(ctx, link.FileRequest{Op: args.Op, Path: args.Path, Offset: args.Offset, Data: []byte(args.Text)})
	switch {
	case e != nil:
		return nil, e
	case args.Op == link.FileRead:
		return readOf(a, args.Offset)
	case args.Op == link.FileList:
		if a.Entries == nil {
			a.Entries = []link.FileEntry{}
		}
		return map[string]any{"entries": a.Entries, "more": a.More}, nil
	}
	return map[string]any{"path": args.Path, "bytes": len(args.Text)}, nil
}

// readOf gives the text up to its last whole character: the next piece begins there.
func readOf(a link.FileAnswer, offset int64) (any, error) {
	text, next := a.Data, offset+int64(len(a.Data))
	for cut := 0; next < a.Bytes && cut < utf8.UTFMax-1 && len(text) > 1 && !utf8.Valid(text); cut++ {
		text, next = text[:len(text)-1], next-1
	}
	if !utf8.Valid(text) {
		return nil, refuse(gate.CodeToolRestricted, "read a text, from where next of the last piece says", "there is no text in UTF-8")
	}
	if next >= a.Bytes {
		next = 0
	}
	return fileRead{string(text), a.Bytes, next}, nil
}

// fileRefusals are the agent's words for why a supervisor refuses.
var fileRefusals = map[string]struct {
	code          rings.Code
	message, next string
}{
	link.FilePath: {gate.CodeBadArguments, "the path names nothing beneath the session's folder",
		"names between single slashes, without . and .., from the folder on: notes/plan.md"},
	link.FileMissing: {gate.CodeNotFound, "there is no such file", "op list tells what there is"},
	link.FileKind: {gate.CodeToolRestricted, "a link is on the path, or it is another kind of file",
		"links aren't followed; op list tells kinds"},
	link.FileFilled:  {gate.CodeToolRestricted, "the folder isn't empty", "delete what is in it first"},
	link.FileRing:    {gate.CodeRing, "the run may only read here", "ask the operator for ring 2; a strong session has one writer at a time"},
	link.FileGuarded: {gate.CodeToolRestricted, "names that begin with a dot, and programs that settings in them name, are only read", "take another name"},
	link.FileQuota:   {gate.CodeQuota, "the run has written as much as it may", "do with the files that there are"},
}

// ask gives an answer that allows, or what the agent may know of why not.
func (f files) ask(ctx context.Context, q link.FileRequest) (link.FileAnswer, *gate.Error) {
	if err := q.Check(); err != nil {
		e := tools.BadArguments("want op and path; text goes with write, offset with read")
		e.Cause = err
		return link.FileAnswer{}, e
	}
	a, err := f.to.File(ctx, q)
	if err == nil && a.Allowed {
		return a, nil
	}
	e := refuse(gate.CodeUnavailable, "try again later", "the session's folder can't be reached")
	if r, known := fileRefusals[a.Refused]; known {
		e = refuse(r.code, r.next, "%s", r.message)
	} else if ctx.Err() != nil {
		e = ended(ctx)
	}
	if err == nil {
		err = errors.New("the supervisor refused: " + a.Refused)
	}
	e.Cause, e.Rule = err, "M-11"
	return link.FileAnswer{}, e
}
