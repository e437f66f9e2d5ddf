// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"sync"
)

// Route is a request about something other than runs, which whoever made the Server answers. The same
// credentials, bounds and strictness hold for it. What must not be seen by members of ReadGroup isn't a GET.
type Route struct {
	Method, Path string // {id} stands for one segment
	// Own is for root and the supervisor's own user alone: for what a member of the operators' group could become
	// either by.
	Own bool
	// Waits says that the answer may take long, as one that waits for a run's start or end.
	Waits bool
	// Do gives what is sent: JSON, or a Text as it is. Errors are as a Controller's.
	Do func(ctx context.Context, r Request) (any, error)
}

// Request is what a Route gets.
type Request struct {
	ID   string // the segment, decoded
	By   string // who asks, for the audit: "uid:0"
	body []byte
}

// Text is an answer that is no JSON.
type Text struct{ ContentType, Body string }

// Read reads the body onto a struct, whose json tags name its fields; one with the tag read:"required" must
// be there. Unknown, repeated, null and mistyped fields are errors, whose text doesn't have what was sent;
// missing ones are left as they are.
func (r Request) Read(into any) error { return decodeBody(r.body, into) }

// route is Do's, for the server's table.
func (m Route) route() route {
	handle := m.handle
	if m.Waits {
		handle = waits(handle)
	}
	return route{method: m.Method, path: m.Path, handle: handle}
}

func (m Route) handle(q *call) error {
	if m.Own && q.right != own {
		return &Error{Status: 403, Code: CodeForbidden, Message: "forbidden", Hint: "root and the supervisor's own user may"}
	}
	v, err := m.Do(q.ctx, Request{ID: q.id, By: q.peer.by(), body: q.request.Body})
	if err != nil {
		return err
	}
	if t, ok := v.(Text); ok {
		return q.w.Send(200, t.ContentType, []byte(t.Body))
	}
	return sendJSON(q.w, 200, v)
}

// Each asks every supervisor of the run folder, many at once, for at most two seconds each. Those that have
// ended are left out; the error has what the others couldn't answer, with their names.
func Each(ctx context.Context, runDir string, ask func(context.Context, *Client) error) error {
	list, err := names(runDir)
	if err != nil {
		return err
	}
	errs := make([]error, len(list))
	room := make(chan struct{}, askAtOnce)
	var asking sync.WaitGroup
	for i, name := range list {
		room <- struct{}{}
		asking.Go(func() {
			defer func() { <-room }()
			asked, cancel := soon(ctx)
			defer cancel()
			err := ask(asked, &Client{runDir, name})
			if e, ok := errors.AsType[*Error](err); ok && e.Code == CodeNotFound {
				return
			}
			errs[i] = err
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// soon bounds what one supervisor is asked for a list.
func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := &Error{Status: 504, Code: CodeUnreached, Message: "no answer in " + askTime.String()}
	return context.WithTimeoutCause(ctx, askTime, limit)
}
