// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/fsjail"
	"agentrun/hypervisor"
)

const (
	mostCopied  = 1 << 30 // bytes, unless a request says otherwise
	mostEntries = 200_000 // files of one copy
	mostListed  = 10_000  // names of a list
	mostPadding = 1 << 20 // bytes behind the end of a tar
)

// filesOf are a run's, and what a request's path names there.
func (s *Runs) filesOf(id string, r control.FilesRequest) (*Run, *fsjail.Files, string, error) {
	v, err := s.find(id)
	if err != nil {
		return nil, nil, "", err
	}
	run, err := v.process()
	if err != nil {
		return nil, nil, "", err
	}
	f, err := run.Files()
	if err != nil {
		return nil, nil, "", endedError(err)
	}
	at := r.Path
	if !path.IsAbs(at) {
		at = path.Join(run.Folder(), at)
	}
	return v, f, at, nil
}

// Files implements control.Controller.
func (s *Runs) Files(_ context.Context, id string, r control.FilesRequest) ([]control.FileInfo, error) {
	_, f, at, err := s.filesOf(id, r)
	if err != nil {
		return nil, err
	}
	var list []fsjail.FileInfo
	if r.Self {
		list = make([]fsjail.FileInfo, 1)
		list[0], err = f.Stat(at)
	} else {
		list, err = f.List(at, mostListed)
	}
	if err != nil {
		refused := filesError(at, err)
		if errors.Is(err, fsjail.ErrTooMuch) {
			refused.Hint = "list a folder below, or agentrun cp it; agentrun stat says what one name is"
		}
		return nil, refused
	}
	all := make([]control.FileInfo, len(list))
	for i, e := range list {
		kind := "other"
		switch e.Mode.Type() {
		case 0:
			kind = "file"
		case fs.ModeDir:
			kind = "folder"
		case fs.ModeSymlink:
			kind = "link"
		}
		all[i] = control.FileInfo{Name: e.Name, Kind: kind, Mode: int(e.Mode.Perm()), Size: e.Size, Time: e.Time, Link: e.Link}
	}
	return all, nil
}

// mostWatches are a run's at once: each is memory of the kernel's, and of who hears it.
const mostWatches = 8

var errRunOver = errors.New("the run is over")

// Watch implements control.Controller. A run that is over ends it well.
func (s *Runs) Watch(ctx context.Context, id string, r control.FilesRequest, send func(control.FileChange) error) error {
	v, f, at, err := s.filesOf(id, r)
	if err != nil {
		return err
	}
	defer v.watches.Add(-1)
	if v.watches.Add(1) > mostWatches {
		return &control.Error{Status: 503, Code: control.CodeBusy, Message: fmt.Sprintf("the run's files are watched %d times already", mostWatches), Hint: "end one of those"}
	}
	run, err := v.process()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-run.Over():
			end(errRunOver)
		case <-ctx.Done():
		}
	}()
	err = f.Watch(ctx, at, func(c fsjail.Change) error {
		return send(control.FileChange{Time: time.Now().UTC(), Kind: string(c.Kind), Path: c.Path, Folder: c.Folder, Lost: c.Lost})
	})
	switch {
	case err == nil, errors.Is(err, errRunOver):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	refused := filesError(at, err)
	switch {
	case errors.Is(err, fsjail.ErrTooMuch):
		refused.Hint = "watch a folder below"
	case errors.Is(err, unix.ENOTDIR):
		refused.Hint = "watch the folder that it is in"
	}
	return refused
}

// ReadFiles implements control.Controller.
func (s *Runs) ReadFiles(ctx context.Context, id string, r control.FilesRequest, by string, conn io.ReadWriter) error {
	v, f, at, err := s.filesOf(id, r)
	if err != nil {
		return err
	}
	if _, err := f.Stat(at); err != nil { // while it can still be refused
		return filesError(at, err)
	}
	awake, err := v.wake(ctx, by, forCopy)
	if err != nil {
		return err
	}
	defer awake()
	defer s.hangUp(v, conn, nil)()
	frames := control.NewAttachServer(conn)
	sum := sha256.New()
	done, err := f.Read(at, io.MultiWriter(sum, frames.Writer(control.Stdout)), limitsOfCopy(r))
	return v.tellCopy(frames, hypervisor.FileCopy{By: by, Path: at}, done, sum, err)
}

// WriteFiles implements control.Controller.
func (s *Runs) WriteFiles(ctx context.Context, id string, r control.FilesRequest, by string, conn io.ReadWriter) error {
	v, f, at, err := s.filesOf(id, r)
	if err != nil {
		return err
	}
	info, err := f.Stat(at)
	if err == nil && !info.Mode.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return filesError(at, err)
	}
	v.copies.Add(1) // before it looks whether the run is paused
	defer v.copies.Add(-1)
	awake, err := v.wake(ctx, by, forCopy)
	if err != nil {
		return err
	}
	defer awake()
	v.mu.Lock()
	still := v.frozenBy&byPause != 0 // and frozen besides
	v.mu.Unlock()
	if still {
		return copiedInto(id)
	}
	falling, end := context.WithCancel(ctx)
	defer end()
	fell := v.falls(falling)
	defer s.hangUp(v, conn, fell)()
	frames := control.NewAttachServer(conn)
	sum := sha256.New()
	from := io.TeeReader(&input{frames: frames}, sum)
	done, err := f.Write(at, from, limitsOfCopy(r))
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(from, mostPadding))
	}
	select {
	case <-fell:
		if err != nil {
			err = errFell
		}
	default:
	}
	return v.tellCopy(frames, hypervisor.FileCopy{By: by, Path: at, In: true}, done, sum, err)
}

var errFell = fmt.Errorf("the run fell to a less privileged ring meanwhile: %w", fs.ErrPermission)

// falls closes a channel when the run is to lose its ring, until ctx ends. A file that a copy has open for writing, while it waits for its
// operator, is none that the agent could close: the workspace couldn't be taken, and the run would be ended for it (M-22).
func (v *Run) falls(ctx context.Context) <-chan struct{} {
	holds, changed := v.Control.Ring()
	v.settled(ctx) // one that falls already is over that first
	fell := make(chan struct{})
	go func() {
		for last := (<-chan struct{})(nil); changed != last; {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			before := holds
			last = changed
			if holds, changed = v.Control.Ring(); before.MorePrivilegedThan(holds) {
				close(fell)
				return
			}
		}
	}()
	return fell
}

// hangUp ends the connection of a copy with its run: one that waits for its operator is a thread in the run's mount namespace, whose file
// systems would outlive it. It ends one into a run that fell, too.
func (s *Runs) hangUp(v *Run, conn io.ReadWriter, fell <-chan struct{}) (stop func()) {
	c, ok := conn.(control.Hangup)
	run, err := v.process()
	if !ok || err != nil {
		return func() {}
	}
	over := make(chan struct{})
	go func() {
		select {
		case <-run.Over():
			c.Hangup()
		case <-fell:
			c.Hangup()
		case <-over:
		}
	}()
	return func() { close(over) }
}

func limitsOfCopy(r control.FilesRequest) fsjail.FilesLimits {
	l := fsjail.FilesLimits{Bytes: r.MaxBytes, Entries: mostEntries}
	if l.Bytes == 0 {
		l.Bytes = mostCopied
	}
	return l
}

// tellCopy puts a copy on record, and says how it went. What can't be put on record is told as a failure: what was copied can't be taken back.
func (v *Run) tellCopy(frames *control.AttachConn, c hypervisor.FileCopy, done fsjail.Copied, sum hash.Hash, err error) error {
	c.Entries, c.Bytes = int64(done.Entries), done.Bytes
	sum.Sum(c.Digest[:0])
	told := control.Copied{
		Entries: c.Entries, Bytes: c.Bytes, Left: int64(done.Left), Changed: int64(done.Changed), SHA256: hex.EncodeToString(c.Digest[:]),
	}
	if err != nil {
		told.Error = filesError(c.Path, err)
		c.Code = told.Error.Code
	}
	if err := v.Control.RecordCopy(c); err != nil {
		told.Error = &control.Error{Code: control.CodeInternal, Message: "the copy is not on record: " + err.Error()}
	}
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	return frames.Send(control.Stderr, text)
}

// filesError gives what the sandbox's files say its code on the API.
func filesError(at string, err error) *control.Error {
	text := err.Error()
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		text = at + ": " + e.Err.Error()
		if !path.IsAbs(e.Path) && e.Path != path.Base(at) {
			text = fmt.Sprintf("%s in %s: %v", e.Path, at, e.Err)
		}
	}
	e := &control.Error{Status: 409, Code: control.CodeConflict, Message: text}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Status, e.Code, e.Hint = 404, control.CodeNotFound, "paths are the sandbox's: agentrun ls REF:/ lists its root"
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.ESRCH):
		e.Code, e.Message = control.CodeEnded, "the run has ended, and its files with it"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		e.Status, e.Code, e.Hint = 403, control.CodeForbidden, "a copy has the rights that the agent has now: agentrun inspect REF says in which ring it is"
	case errors.Is(err, fsjail.ErrTooMuch):
		e.Hint = "--max-size allows more bytes; or copy parts of it"
	}
	return e
}

// input is what comes in frames, up to the empty one.
type input struct {
	frames *control.AttachConn
	left   []byte
	over   bool
}

func (i *input) Read(p []byte) (int, error) {
	for len(i.left) == 0 {
		if i.over {
			return 0, io.EOF
		}
		s, part, err := i.frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF // whoever sent it has left in the middle
		case err != nil:
			return 0, err
		case s != control.Stdin:
			return 0, control.ErrFrame
		}
		i.left, i.over = part, len(part) == 0
	}
	n := copy(p, i.left)
	i.left = i.left[n:]
	return n, nil
}
