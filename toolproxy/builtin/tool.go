// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

// Options are what the tools are given. The zero value gives tools that work and keep nothing beyond the run.
type Options struct {
	Clock    func() time.Time // nil: time.Now
	Memory   MemoryStore      // nil: NewMemory(), which lives as long as the gateway, that is, as the run
	Embedder Embedder         // nil: LocalEmbedder, a test model
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
	return []tools.Definition{
		define("math", gate.CategoryA, mathSchema, "Computes an arithmetic expression: + - * / % ^, parentheses, sqrt abs min max floor ceil round exp log log2 log10 sin cos tan, pi, e.", function[mathArgs](calculate)),
		define("text", gate.CategoryA, textSchema, "Works on text: count, upper, lower, trim, replace, split, join, find (RE2 pattern), truncate.", function[textArgs](editText)),
		define("memory", gate.CategoryA, memorySchema, "Keeps summaries and embeddings, never raw messages: put, get, list, delete, search by tag and by similarity.", function[memoryArgs](memory{o.Memory, o.Clock}.run)),
		define("embeddings", gate.CategoryA, embeddingsSchema, "Turns up to 64 texts into vectors.", function[embeddingsArgs](embeddings{o.Embedder}.run)),
		define("calendar", gate.CategoryA, calendarSchema, "Computes with dates: now, add, weekday, difference, range; in any IANA time zone.", function[calendarArgs](calendar{o.Clock}.run)),
		define("task", gate.CategoryB, taskSchema, "Keeps this run's task list: create, list, update, complete.", function[taskArgs](newTaskLists().run)),
	}
}

// define makes a definition that ring 3 may use; the package comment says why that holds for memory and task too.
func define(name string, c gate.Category, schema, description string, t tools.Tool) tools.Definition {
	return tools.Definition{Name: name, Description: description, Category: c, Schema: stdjson.RawMessage(schema), Action: tools.ReadAction(name), Tool: t}
}

// function is a tool made of a function of its decoded arguments.
type function[A any] func(ctx context.Context, c tools.Call, args A) (any, error)

// Call decodes strictly, though the schema was checked before: a tool that reads another spelling of a name than the
// policy saw would act on what nobody decided about.
func (f function[A]) Call(ctx context.Context, c tools.Call) (tools.Result, error) {
	var args A
	if err := json.Unmarshal(c.Args, &args, json.RejectUnknownMembers(true)); err != nil {
		e := badArguments("the arguments of %.64s don't fit its schema", c.Tool)
		e.Cause = err
		return tools.Result{}, e
	}
	value, err := f(ctx, c, args)
	r, priced := value.(tools.Result)
	if err != nil {
		r.Output = nil // what it cost stays
		return r, err
	}
	if !priced {
		if r.Output, err = json.Marshal(value, json.Deterministic(true)); err != nil {
			return tools.Result{}, fmt.Errorf("encode the output of %s: %w", c.Tool, err)
		}
	}
	limit := c.Limit
	if limit <= 0 {
		limit = tools.DefaultMaxReply
	}
	if int64(len(r.Output)) > limit {
		size := len(r.Output)
		r.Output = nil
		return r, refuse(gate.CodeTooLarge, "ask for less at once", "the output has %d bytes, at most %d are allowed", size, limit)
	}
	return r, nil
}

func refuse(code rings.Code, next, format string, args ...any) *gate.Error {
	return &gate.Error{Code: code, Message: fmt.Sprintf(format, args...), Next: next}
}

func badArguments(format string, args ...any) *gate.Error {
	return refuse(gate.CodeBadArguments, "correct the arguments; GET /internal/tools has the schema", format, args...)
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
