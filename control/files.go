// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"agentrun/internal/uhttp"
)

// FilesRequest is the body of POST /v1/sandboxes/{id}/files, read and write.
type FilesRequest struct {
	Path     string `json:"path"`                // in the sandbox; without a slash at its begin below the folder that the agent was started in
	MaxBytes int64  `json:"max_bytes,omitempty"` // of files' content, of read and write; 0: 1 GiB
	Self     bool   `json:"self,omitempty"`      // of files: a folder itself, not what is in it
}

// FileInfo is what a sandbox has under a name.
type FileInfo struct {
	Name string    `json:"name"`
	Kind string    `json:"kind"` // file, folder, link, other
	Mode int       `json:"mode"` // its permissions
	Size int64     `json:"size"`
	Time time.Time `json:"time"`
	Link string    `json:"link,omitempty"` // where a link leads
}

// FileList is what POST /v1/sandboxes/{id}/files answers.
type FileList struct {
	Files []FileInfo `json:"files"`
}

// FileChange is what became of a name below a watched folder.
type FileChange struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`             // watching (the first), created, written, attributes, removed, unwatched, lost
	Path   string    `json:"path,omitempty"`   // in the sandbox, whole
	Folder bool      `json:"folder,omitempty"` // it is, or was, one
	Lost   int       `json:"lost,omitempty"`   // at least so many changes were more than could be told
}

// Copied is the last that is said of a read or a write, on the stream Stderr. With an error what was copied until then stays.
type Copied struct {
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`   // of files' content
	Left    int64  `json:"left"`    // what is neither file, folder nor link, and was left out
	Changed int64  `json:"changed"` // files that grew shorter meanwhile; zeros stand for what was gone
	SHA256  string `json:"sha256"`  // of the tar
	Error   *Error `json:"error,omitempty"`
}

// Hangup is what a connection can whose other side must not be waited for any more.
type Hangup interface{ Hangup() }

// Hangup has all reading and writing fail from here on.
func (l *lazy) Hangup() { _ = l.q.conn.SetDeadline(time.Unix(1, 0)) }

const filesProtocol = "agentrun-files"

func (r FilesRequest) check() error {
	switch {
	case r.Path == "" || strings.ContainsRune(r.Path, 0) || len(r.Path) > 4095:
		return badField("path", "want a path in the sandbox")
	case r.MaxBytes < 0:
		return badField("max_bytes", "want a number of bytes")
	}
	return nil
}

func (q *call) files(r FilesRequest) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	list, err := q.s.Controller.Files(q.ctx, q.id, r)
	if list == nil {
		list = []FileInfo{}
	}
	return FileList{list}, err
}

// copies makes a handler of a copy, whose tar goes over the connection in frames as those of attach.
func copies(do func(c Controller, ctx context.Context, id string, r FilesRequest, by string, conn io.ReadWriter) error) func(*call) error {
	return func(q *call) error {
		var r FilesRequest
		err := decodeBody(q.request.Body, &r)
		if err == nil {
			err = r.check()
		}
		if err == nil && q.request.Upgrade != filesProtocol {
			err = badField("Upgrade", "want "+filesProtocol)
		}
		if err != nil {
			return err
		}
		conn := &lazy{q: q, in: q.in, start: func() error { return q.w.Upgrade(filesProtocol) }}
		return do(q.s.Controller, q.ctx, q.id, r, q.peer.by(), conn)
	}
}

// watch streams changes as events do. The answer begins with the first, so that a folder that isn't there is refused.
func (q *call) watch() error {
	var r FilesRequest
	err := decodeBody(q.request.Body, &r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return err
	}
	ctx, cancel := q.reading()
	defer cancel()
	w := &lazy{q: q, start: func() error { return q.w.Start("text/event-stream") }}
	stop := func() {}
	defer func() { stop() }()
	begun := false
	return q.s.Controller.Watch(ctx, q.id, r, func(c FileChange) error {
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return err
		}
		if !begun {
			begun, stop = true, q.beat(w)
		}
		return nil
	})
}

// Watch is Controller's.
func (c *Client) Watch(ctx context.Context, id string, r FilesRequest, send func(FileChange) error) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return stream(ctx, c, uhttp.Call{Method: "POST", Target: runPath(id) + "/watch", Accept: "text/event-stream", Body: body}, send)
}

// Files is Controller's.
func (c *Client) Files(ctx context.Context, id string, r FilesRequest) ([]FileInfo, error) {
	var l FileList
	err := c.Ask(ctx, "POST", runPath(id)+"/files", r, &l)
	return l.Files, err
}

// ReadFiles is Controller's: it carries the frames of conn, another's AttachConn.
func (c *Client) ReadFiles(ctx context.Context, id string, r FilesRequest, _ string, conn io.ReadWriter) error {
	return c.passFiles(ctx, id, "/read", r, conn)
}

// WriteFiles is Controller's, as ReadFiles.
func (c *Client) WriteFiles(ctx context.Context, id string, r FilesRequest, _ string, conn io.ReadWriter) error {
	return c.passFiles(ctx, id, "/write", r, conn)
}

func (c *Client) passFiles(ctx context.Context, id, verb string, r FilesRequest, conn io.ReadWriter) error {
	stream, err := c.openFiles(ctx, id, verb, r)
	if err != nil {
		return err
	}
	return c.carry(stream, conn)
}

func (c *Client) openFiles(ctx context.Context, id, verb string, r FilesRequest) (io.ReadWriteCloser, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	answer, err := c.do(ctx, uhttp.Call{Method: "POST", Target: runPath(id) + verb, Upgrade: filesProtocol, Body: body})
	if err != nil {
		return nil, err
	}
	return answer.Stream(), nil
}

// CopyOut writes a tar of what the path names.
func CopyOut(ctx context.Context, c Controller, id string, r FilesRequest, to io.Writer) (Copied, error) {
	return converse(func(conn io.ReadWriter) error { return c.ReadFiles(ctx, id, r, "", conn) }, to, nil)
}

// CopyIn unpacks a tar into the folder that the path names. An error of from leaves what was unpacked until then. Where the
// other side has ended the copy, a read of from may still wait when it returns.
func CopyIn(ctx context.Context, c Controller, id string, r FilesRequest, from io.Reader) (Copied, error) {
	return converse(func(conn io.ReadWriter) error { return c.WriteFiles(ctx, id, r, "", conn) }, io.Discard, from)
}

// converse is the operator's end of a copy.
func converse(do func(conn io.ReadWriter) error, to io.Writer, from io.Reader) (done Copied, err error) {
	ours, theirs := net.Pipe()
	refused := make(chan error, 1)
	go func() {
		err := do(theirs)
		theirs.Close()
		refused <- err
	}()
	sent := make(chan error, 1)
	frames := NewAttachClient(ours)
	go func() {
		err := sendAll(frames, from)
		sent <- err
		if err != nil { // the other side must not take a part for the whole
			ours.Close()
		}
	}()
	done, err = hearCopy(frames, to)
	ours.Close()
	// Why it broke off is better told by whoever broke it off.
	if why := <-refused; err != nil && why != nil && !errors.Is(why, io.ErrClosedPipe) {
		return done, why
	}
	select {
	case why := <-sent:
		if err != nil && why != nil && !errors.Is(why, io.ErrClosedPipe) {
			return done, why
		}
	default: // it waits for more of a tar that nobody takes any more
	}
	if err == nil && done.Error != nil {
		err = done.Error
	}
	return done, err
}

// sendAll sends a tar.
func sendAll(frames *AttachConn, from io.Reader) error {
	if from == nil {
		return nil
	}
	if _, err := io.CopyBuffer(frames.Writer(Stdin), from, make([]byte, MaxFrame)); err != nil {
		return err
	}
	return frames.Send(Stdin, nil)
}

func hearCopy(frames *AttachConn, to io.Writer) (done Copied, err error) {
	for {
		s, p, err := frames.Next()
		if err != nil {
			return done, err
		}
		switch s {
		case Stdout:
			if _, err := to.Write(p); err != nil {
				return done, err
			}
		case Stderr:
			return done, json.Unmarshal(p, &done)
		case Stdin, Resize, Exit:
			return done, ErrFrame
		}
	}
}
