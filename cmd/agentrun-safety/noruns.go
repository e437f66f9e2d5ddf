// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"strconv"

	"agentrun/control"
)

// noRuns is a supervisor without runs: ps, events and kill ask every socket of the run folder.
type noRuns struct{}

var _ control.Controller = noRuns{}

func none(id string) error {
	return &control.Error{Status: 404, Code: control.CodeNotFound, Message: "no live run " + strconv.Quote(id), Hint: "agentrun ps"}
}

func (noRuns) Sandboxes(context.Context) ([]control.Sandbox, error) { return nil, nil }

func (noRuns) Inspect(_ context.Context, id string) (control.Inspection, error) {
	return control.Inspection{}, none(id)
}

func (noRuns) Freeze(_ context.Context, id, _ string) error { return none(id) }

func (noRuns) Thaw(_ context.Context, id, _ string) error { return none(id) }

func (noRuns) Pause(_ context.Context, id, _ string) (control.Pause, error) {
	return control.Pause{}, none(id)
}

func (noRuns) Resume(_ context.Context, id, _ string) error { return none(id) }

func (noRuns) Update(_ context.Context, id string, _ control.Limits, _ bool, _ string) (control.LimitChange, error) {
	return control.LimitChange{}, none(id)
}

func (noRuns) Extend(_ context.Context, id string, _ control.ExtendRequest, _ string) (control.Lease, error) {
	return control.Lease{}, none(id)
}

func (noRuns) Elevate(_ context.Context, id string, _ control.ElevateRequest, _ string) (control.Elevation, error) {
	return control.Elevation{}, none(id)
}

func (noRuns) Revoke(_ context.Context, id, _, _ string) error { return none(id) }

func (noRuns) Kill(context.Context, control.Selector, string, string) ([]control.KillResult, error) {
	return nil, nil
}

func (noRuns) Signal(_ context.Context, id string, _ int, _ string) error { return none(id) }

func (noRuns) Wait(_ context.Context, id string) (json.RawMessage, error) { return nil, none(id) }

func (noRuns) Events(ctx context.Context, _ uint64, follow bool, _ func(control.Event) error) error {
	if follow {
		<-ctx.Done()
	}
	return nil
}

func (noRuns) Output(_ context.Context, id string, _ bool, _ io.Writer) error { return none(id) }

func (noRuns) Attach(_ context.Context, id string, _ io.ReadWriter) error { return none(id) }

func (noRuns) Files(_ context.Context, id string, _ control.FilesRequest) ([]control.FileInfo, error) {
	return nil, none(id)
}

func (noRuns) Watch(_ context.Context, id string, _ control.FilesRequest, _ func(control.FileChange) error) error {
	return none(id)
}

func (noRuns) ReadFiles(_ context.Context, id string, _ control.FilesRequest, _ string, _ io.ReadWriter) error {
	return none(id)
}

func (noRuns) WriteFiles(_ context.Context, id string, _ control.FilesRequest, _ string, _ io.ReadWriter) error {
	return none(id)
}

func (noRuns) Exec(_ context.Context, id string, _ control.ExecRequest, _ string, _ io.ReadWriter) error {
	return none(id)
}

func (noRuns) Publish(_ context.Context, id string, _ control.PortRequest, _ string) (control.Published, error) {
	return control.Published{}, none(id)
}

func (noRuns) Ports(_ context.Context, id string) ([]control.PortInfo, error) { return nil, none(id) }

func (noRuns) Unpublish(_ context.Context, id string, _ int, _ string) error { return none(id) }
