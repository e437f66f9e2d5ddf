// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Options are what the tools are given. The zero value gives tools that work and keep nothing beyond the run.
type Options struct {
	Clock    func() time.Time // nil: time.Now
	Memory   MemoryStore      // nil: NewMemory(), which lives as long as the gateway, that is, as the run
	Embedder Embedder         // nil: LocalEmbedder, a test model
	Context  link.Contexts    // of the run's session (H-32); nil: it has none, and there are no tools for it
	Files    link.Files       // likewise, of its folder
}

// Definitions returns the tools, ready for the registry.
func Definitions(o Options) []tools.Definition {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Memory == nil {
		o.Memory = NewMemory()
	}
	if o.Embedder == nil {
		o.Embedder = LocalEmbedder{}
	}
	by := map[string]tools.Tool{
		"math":       tools.Function[mathArgs](calculate),
		"text":       tools.Function[textArgs](editText),
		"memory":     tools.Function[memoryArgs](memory{o.Memory, o.Clock}.run),
		"embeddings": tools.Function[embeddingsArgs](embeddings{o.Embedder}.run),
		"calendar":   tools.Function[calendarArgs](calendar{o.Clock}.run),
		"task":       tools.Function[taskArgs](newTaskLists().run),
	}
	if o.Context != nil {
		s := sharedContext{o.Context}
		by["context.get"] = tools.Function[contextArgs](s.get)
		by["context.put"] = tools.Function[contextArgs](s.put)
		by["context.list"] = tools.Function[contextArgs](s.list)
	}
	if o.Files != nil {
		by["file"] = tools.Function[fileArgs](files{o.Files}.run)
	}
	return tools.Described(table, by)
}

// table describes the tools to agents, and says what of them changes something.
//
//go:embed tools.json
var table []byte

func refuse(code rings.Code, next, format string, args ...any) *gate.Error {
	return tools.Refuse(code, nil, next, format, args...)
}

// ended says why a context did.
func ended(ctx context.Context) *gate.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e := refuse(gate.CodeToolTimeout, "ask for less at once", "the tool ran out of time")
		e.Asked = true // nothing outside was waited for
		return e
	}
	return refuse(gate.CodeCanceled, "", "the call was ended")
}
