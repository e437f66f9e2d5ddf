// SPDX-License-Identifier: Apache-2.0

package sagafile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentrun/internal/read"
	"agentrun/sagas"
)

// File is a saga as it is written. The json names are the keys of the YAML file, and what journals keep.
type File struct {
	Name    string `json:"name"`
	Agent   string `json:"agent,omitempty"`
	Session string `json:"session,omitempty"`
	Steps   []Step `json:"steps"`
}

// Step has exactly one of Execute and ExecuteAPI, and at most one of Undo and UndoAPI.
type Step struct {
	ID         string         `json:"id"`
	Execute    *Command       `json:"execute,omitempty"`
	Undo       *Command       `json:"undo,omitempty"`
	ExecuteAPI string         `json:"execute_api,omitempty"`
	UndoAPI    string         `json:"undo_api,omitempty"`
	Input      map[string]any `json:"input,omitzero"` // for the APIs; an empty one is sent, none isn't
	Idempotent bool           `json:"idempotent,omitempty"`
	// nil: the defaults of H-19.
	MaxRetries  *int     `json:"max_retries,omitempty"`
	RetryDelay  *float64 `json:"retry_delay_seconds,omitempty"`
	StepTimeout *float64 `json:"step_timeout_seconds,omitempty"`
}

// Command runs in a sandbox.
type Command struct {
	Command   []string `json:"command"`
	Ring      int      `json:"ring"` // 1 to 3; left out: 3
	Profile   string   `json:"profile,omitempty"`
	Workspace string   `json:"workspace,omitempty"` // absolute once parsed
}

// Runner runs a command in a sandbox and returns when all of it is dead. limit is the time limit that the step gives, 0 where it
// gives none; the context ends with the one that holds. An exit code other than 0 is an error.
type Runner interface {
	RunCommand(ctx context.Context, c Command, limit time.Duration, call sagas.Call) error
}

// API calls a URL with the step's input, already JSON.
type API interface {
	Call(ctx context.Context, url string, input []byte, call sagas.Call) error
}

// Means are what steps are made with. A file that needs one that is nil is refused.
type Means struct {
	Runner Runner
	API    API
}

// Definition is what a journal keeps.
func (f File) Definition() ([]byte, error) { return json.Marshal(f) }

// Decode reads what Definition gave, and checks it as Parse does a file.
func Decode(definition []byte) (File, error) {
	var f File
	if err := read.Exactly(definition, &f); err != nil {
		return File{}, fmt.Errorf("saga in the journal: %w", err)
	}
	var c checker
	c.check(&f)
	if err := errors.Join(c.errs...); err != nil {
		return File{}, fmt.Errorf("saga in the journal: %w", err)
	}
	return f, nil
}

// Saga makes the file runnable. The id is left to the caller.
func (f File) Saga(m Means) (sagas.Saga, error) {
	definition, err := f.Definition()
	if err != nil {
		return sagas.Saga{}, err
	}
	s := sagas.Saga{Name: f.Name, Agent: f.Agent, Session: f.Session, Definition: definition}
	for i := range f.Steps {
		step, err := f.Steps[i].bind(m)
		if err != nil {
			return sagas.Saga{}, fmt.Errorf("saga %s, step %s: %w", f.Name, f.Steps[i].ID, err)
		}
		s.Steps = append(s.Steps, step)
	}
	return s, nil
}

func (s *Step) bind(m Means) (sagas.Step, error) {
	step := sagas.Step{ID: s.ID, Idempotent: s.Idempotent, Timeout: seconds(s.StepTimeout, 0), RetryDelay: seconds(s.RetryDelay, sagas.None)}
	if s.MaxRetries != nil {
		step.MaxRetries = *s.MaxRetries
		if step.MaxRetries == 0 {
			step.MaxRetries = sagas.None
		}
	}
	input, err := json.Marshal(s.Input)
	if err != nil {
		return step, err
	}
	if s.Input == nil {
		input = nil
	}
	if step.Execute, err = m.function(s.Execute, s.ExecuteAPI, input, step.Timeout); err != nil {
		return step, err
	}
	step.Undo, err = m.function(s.Undo, s.UndoAPI, input, step.Timeout)
	return step, err
}

func (m Means) function(c *Command, url string, input []byte, limit time.Duration) (sagas.Func, error) {
	switch {
	case c != nil && m.Runner == nil:
		return nil, errors.New("no means to run commands")
	case c != nil:
		return func(ctx context.Context, call sagas.Call) error { return m.Runner.RunCommand(ctx, *c, limit, call) }, nil
	case url != "" && m.API == nil:
		return nil, errors.New("no means to call APIs")
	case url != "":
		return func(ctx context.Context, call sagas.Call) error { return m.API.Call(ctx, url, input, call) }, nil
	}
	return nil, nil
}

// seconds converts; zero, where given, becomes what sagas takes for it.
func seconds(s *float64, zero time.Duration) time.Duration {
	if s == nil {
		return 0
	}
	if *s == 0 {
		return zero
	}
	return time.Duration(*s * float64(time.Second))
}
