// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"agentrun/internal/uhttp"
)

const (
	maxAnswer    = 64 << 20  // bytes of an answer that is read whole; an Inspection with its plan and thousands of processes
	maxEventLine = 256 << 10 // bytes of one line in a stream of events
)

// Client asks one supervisor. It is a Controller whose runs live elsewhere: by is ignored in all methods,
// since the supervisor goes by who connects. Each call has a connection of its own, so a Client may be used
// by many goroutines and needs no closing. Errors are *Error where the supervisor refused or isn't there.
type Client struct{ runDir, name string }

var _ Controller = (*Client)(nil)

// Open returns a Client for the socket that Listen(runDir, name, …) made. It doesn't connect.
func Open(runDir, name string) (*Client, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	d, err := openFolder(runDir)
	if err == nil {
		defer d.Close()
		var st unix.Stat_t
		err = unix.Fstatat(d.fd(), name+suffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Status: 404, Code: CodeNotFound, Message: "no supervisor " + strconv.Quote(name), Hint: "agentrun ps"}
	}
	if err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", name, err)
	}
	return &Client{runDir, name}, nil
}

// Name is the supervisor's, as in its socket.
func (c *Client) Name() string { return c.name }

// Version asks for the supervisor's version.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.Ask(ctx, "GET", "/v1/version", nil, &v)
}

// Sandboxes is Controller's.
func (c *Client) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	var l SandboxList
	err := c.Ask(ctx, "GET", "/v1/sandboxes", nil, &l)
	return l.Sandboxes, err
}

// Inspect is Controller's.
func (c *Client) Inspect(ctx context.Context, id string) (i Inspection, err error) {
	return i, c.Ask(ctx, "GET", runPath(id), nil, &i)
}

// Freeze is Controller's.
func (c *Client) Freeze(ctx context.Context, id, _ string) error {
	return c.Ask(ctx, "POST", runPath(id)+"/freeze", nil, nil)
}

// Pause is Controller's.
func (c *Client) Pause(ctx context.Context, id, _ string) (p Pause, err error) {
	return p, c.Ask(ctx, "POST", runPath(id)+"/pause", nil, &p)
}

// Hold is a Pause that is over, at the latest, when letGo is called, ctx ends, or this process does. It is over before letGo returns only if
// Resume came before.
func (c *Client) Hold(ctx context.Context, id string) (p Pause, letGo func(), err error) {
	r, err := c.do(ctx, uhttp.Call{Method: "POST", Target: runPath(id) + "/pause?held=true", Accept: "text/event-stream"})
	if err != nil {
		return Pause{}, nil, err
	}
	line, err := bufio.NewReaderSize(r.Body, maxEventLine).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(bytes.TrimPrefix(line, []byte("data: ")), &p)
	}
	if err != nil {
		r.Close()
		return Pause{}, nil, c.broke(err)
	}
	return p, r.Close, nil
}

// Resume is Controller's.
func (c *Client) Resume(ctx context.Context, id, _ string) error {
	return c.Ask(ctx, "POST", runPath(id)+"/resume", nil, nil)
}

// Thaw is Controller's.
func (c *Client) Thaw(ctx context.Context, id, _ string) error {
	return c.Ask(ctx, "POST", runPath(id)+"/thaw", nil, nil)
}

// Update is Controller's.
func (c *Client) Update(ctx context.Context, id string, to Limits, dryRun bool, _ string) (l LimitChange, err error) {
	return l, c.Ask(ctx, "PATCH", runPath(id)+"/limits?dry_run="+strconv.FormatBool(dryRun), to, &l)
}

// Elevate is Controller's.
func (c *Client) Elevate(ctx context.Context, id string, r ElevateRequest, _ string) (e Elevation, err error) {
	return e, c.Ask(ctx, "POST", runPath(id)+"/elevate", r, &e)
}

// Revoke is Controller's.
func (c *Client) Revoke(ctx context.Context, id, elevation, _ string) error {
	return c.Ask(ctx, "POST", runPath(id)+"/revoke", RevokeRequest{elevation}, nil)
}

// Extend is Controller's.
func (c *Client) Extend(ctx context.Context, id string, r ExtendRequest, _ string) (l Lease, err error) {
	return l, c.Ask(ctx, "POST", runPath(id)+"/extend", r, &l)
}

// Kill is Controller's.
func (c *Client) Kill(ctx context.Context, s Selector, reason, _ string) ([]KillResult, error) {
	var l KillList
	err := c.Ask(ctx, "POST", "/v1/kill", KillRequest{s, reason}, &l)
	return l.Results, err
}

// Signal is Controller's.
func (c *Client) Signal(ctx context.Context, id string, signal int, _ string) error {
	return c.Ask(ctx, "POST", runPath(id)+"/signal", SignalRequest{signal}, nil)
}

// Wait is Controller's.
func (c *Client) Wait(ctx context.Context, id string) (status json.RawMessage, err error) {
	return status, c.Ask(ctx, "GET", runPath(id)+"/wait", nil, &status)
}

// Events is Controller's. An event that can't be read is an error: it may be the one that mattered.
func (c *Client) Events(ctx context.Context, since uint64, follow bool, send func(Event) error) error {
	from := strconv.FormatUint(since, 10)
	if since == SinceNow {
		from = "now"
	}
	return stream(ctx, c, uhttp.Call{Method: "GET", Target: "/v1/events?since=" + from + "&follow=" + strconv.FormatBool(follow), Accept: "text/event-stream"}, send)
}

// stream reads what comes as server-sent events.
func stream[T any](ctx context.Context, c *Client, call uhttp.Call, send func(T) error) error {
	r, err := c.do(ctx, call)
	if err != nil {
		return err
	}
	defer r.Close()
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, maxEventLine)
	for lines.Scan() {
		// What data says of kind and number is all that id and event say.
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e T
		if err := json.Unmarshal(data, &e); err != nil {
			return c.broke(err)
		}
		if err := send(e); err != nil {
			return err
		}
	}
	return c.broke(lines.Err())
}

// Output is Controller's.
func (c *Client) Output(ctx context.Context, id string, follow bool, w io.Writer) error {
	r, err := c.do(ctx, uhttp.Call{Method: "GET", Target: runPath(id) + "/output?follow=" + strconv.FormatBool(follow)})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r.Body)
	return c.broke(err)
}

// OpenAttach connects to a detached run's input and output. The frames are AttachConn's; the end of ctx wakes
// who reads or writes them; closing stream lets go of the run, which goes on.
func (c *Client) OpenAttach(ctx context.Context, id string) (conn *AttachConn, stream io.ReadWriteCloser, err error) {
	r, err := c.do(ctx, uhttp.Call{Method: "POST", Target: runPath(id) + "/attach", Upgrade: attachProtocol})
	if err != nil {
		return nil, nil, err
	}
	stream = r.Stream()
	return NewAttachClient(stream), stream, nil
}

// Attach is Controller's: it carries the frames of conn, another's AttachConn, to the run and back.
func (c *Client) Attach(ctx context.Context, id string, conn io.ReadWriter) error {
	_, stream, err := c.OpenAttach(ctx, id)
	if err != nil {
		return err
	}
	return c.carry(stream, conn)
}

// Exec is Controller's, as Attach is.
func (c *Client) Exec(ctx context.Context, id string, r ExecRequest, _ string, conn io.ReadWriter) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	answer, err := c.do(ctx, uhttp.Call{Method: "POST", Target: runPath(id) + "/exec", Upgrade: attachProtocol, Body: body})
	if err != nil {
		return err
	}
	return c.carry(answer.Stream(), conn)
}

// carry returns when the supervisor has said all, or conn ends. A supervisor that hangs up on what is still sent to it may have said
// something before.
func (c *Client) carry(stream io.ReadWriteCloser, conn io.ReadWriter) error {
	defer stream.Close()
	ended := make(chan error, 2)
	// Whichever of the two is left over ends with its own end of the connections.
	go func() {
		if _, err := io.Copy(stream, conn); err == nil {
			ended <- nil
		}
	}()
	go func() { _, err := io.Copy(conn, stream); ended <- err }()
	return c.broke(<-ended)
}

func runPath(id string) string { return "/v1/sandboxes/" + uhttp.Escape(id) }

// Ask makes a call whose answer is read whole; in and out are JSON's, and may be nil. Others use it for what
// Routes answer.
func (c *Client) Ask(ctx context.Context, method, target string, in, out any) error {
	call := uhttp.Call{Method: method, Target: target}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		call.Body = body
	}
	r, err := c.do(ctx, call)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := readAll(r.Body)
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	return c.broke(err)
}

// Text asks for what is no JSON.
func (c *Client) Text(ctx context.Context, target string) ([]byte, error) {
	r, err := c.do(ctx, uhttp.Call{Method: "GET", Target: target})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := readAll(r.Body)
	return text, c.broke(err)
}

// do returns an answer that says yes; what says no is an *Error.
func (c *Client) do(ctx context.Context, call uhttp.Call) (*uhttp.Response, error) {
	conn, err := dial(ctx, c.runDir, c.name)
	if err != nil {
		return nil, c.unreached(ctx, err)
	}
	r, err := uhttp.Do(ctx, conn, call)
	if err != nil {
		return nil, c.unreached(ctx, err)
	}
	want := 200
	if call.Upgrade != "" {
		want = 101
	}
	if r.Status == want {
		return r, nil
	}
	defer r.Close()
	text, err := readAll(r.Body)
	if err != nil {
		return nil, c.broke(err)
	}
	var body errorBody
	if json.Unmarshal(text, &body) != nil || body.Error == nil || body.Error.Code == "" {
		return nil, &Error{Status: r.Status, Code: CodeInternal, Message: fmt.Sprintf("supervisor %s answered %d without a reason", c.name, r.Status)}
	}
	body.Error.Status = r.Status
	return nil, body.Error
}

// unreached says what it means that there is no answer. A cancelled context stays one.
func (c *Client) unreached(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("supervisor %s: %w", c.name, context.Cause(ctx))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return &Error{Status: 404, Code: CodeNotFound, Message: "supervisor " + c.name + " has ended", Hint: "agentrun ps"}
	case errors.Is(err, os.ErrPermission):
		return &Error{Status: 403, Code: CodeForbidden, Message: "supervisor " + c.name + ": permission denied"}
	}
	// Among them a supervisor that ends while the call waits for its turn: what the call asked for may have been done, or not.
	return &Error{Status: 502, Code: CodeUnreached, Message: fmt.Sprintf("supervisor %s: %v", c.name, err), Hint: "see whether it has ended: agentrun ps"}
}

func (c *Client) broke(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("supervisor %s: the answer broke off: %w", c.name, err)
}

func readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("more than %d bytes", maxAnswer)
	}
	return b, err
}
