// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"slices"
	"sync"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

type taskArgs struct {
	Op    string  `json:"op"`
	ID    int     `json:"id"`
	Title string  `json:"title"`
	Note  *string `json:"note"`
	State string  `json:"state"`
}

const (
	maxTasks    = 200
	maxTitle    = 4 * 200 // bytes: the schema counts characters
	maxNote     = 4 * 2000
	maxTaskRuns = 64
)

type task struct {
	ID    int    `json:"id"`
	Title string `json:"title"`
	Note  string `json:"note,omitempty"`
	State string `json:"state"`
}

// taskLists holds one list for each run; a gateway has one.
type taskLists struct {
	mu   sync.Mutex
	runs map[string][]task
}

func newTaskLists() *taskLists { return &taskLists{runs: map[string][]task{}} }

func (l *taskLists) run(_ context.Context, c tools.Call, args taskArgs) (any, error) {
	if len(args.Title) > maxTitle || args.Note != nil && len(*args.Note) > maxNote {
		return nil, tools.BadArguments("title or note is too long")
	}
	if args.State != "" && !slices.Contains([]string{"open", "doing", "done", "dropped"}, args.State) {
		return nil, tools.BadArguments("state %.20q is not one of the schema's", args.State)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch args.Op {
	case "create":
		return l.createLocked(c.Caller.Run, args)
	case "list":
		return l.listLocked(c.Caller.Run, args.State), nil
	case "update":
		return l.changeLocked(c.Caller.Run, args)
	case "complete":
		args.State = "done"
		return l.changeLocked(c.Caller.Run, args)
	}
	return nil, tools.BadArguments("op %.20q is not one of the schema's", args.Op)
}

func (l *taskLists) createLocked(run string, args taskArgs) (any, error) {
	if args.Title == "" {
		return nil, tools.BadArguments("create needs a title")
	}
	list := l.runs[run]
	if len(list) >= maxTasks || list == nil && len(l.runs) >= maxTaskRuns {
		return nil, refuse(gate.CodeQuota, "update tasks that are done or dropped instead", "the run has %d tasks, no more are kept", maxTasks)
	}
	t := task{ID: len(list) + 1, Title: args.Title, State: "open"}
	t.set(args)
	l.runs[run] = append(list, t)
	return t, nil
}

func (t *task) set(args taskArgs) {
	if args.Title != "" {
		t.Title = args.Title
	}
	if args.Note != nil {
		t.Note = *args.Note
	}
	if args.State != "" {
		t.State = args.State
	}
}

func (l *taskLists) listLocked(run, state string) []task {
	kept := []task{}
	for _, t := range l.runs[run] {
		if state == "" || t.State == state {
			kept = append(kept, t)
		}
	}
	return kept
}

func (l *taskLists) changeLocked(run string, args taskArgs) (any, error) {
	list := l.runs[run]
	if args.ID < 1 || args.ID > len(list) {
		return nil, refuse(gate.CodeNotFound, "op list tells what is there", "the run has no such task")
	}
	t := &list[args.ID-1]
	t.set(args)
	return *t, nil
}
