// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"agentrun/internal/beneath"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

var _ link.Files = (*Broker)(nil)

// What a run may write by the tool `file`, in all: what it replaces or deletes isn't given back, so that the account needs no look
// at a folder that others fill.
const (
	MaxFileBytes = 16 << 20
	fileCosts    = 4 << 10 // of each write besides: a name and its folders take room too

	fileTool = "file"
)

// File implements link.Files: the run's agent reads and changes files of its session's workspace, and of no other folder (M-11). The
// gateway has decided about the tool call; as with the memory, what the supervisor knows is asked again here.
func (b *Broker) File(ctx context.Context, q link.FileRequest) (link.FileAnswer, error) {
	if b.adm.Agent == "" || b.adm.Session == "" {
		return link.FileAnswer{}, errors.New("the run has no session")
	}
	if err := b.mayKeep(q.Check(), fileTool); err != nil {
		return link.FileAnswer{}, err
	}
	// One at a time: it is the supervisor's time.
	b.memory.Lock()
	defer b.memory.Unlock()
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	serial, err := b.inOwnSession(ctx)
	if err != nil {
		return link.FileAnswer{}, err
	}
	if q.Op == link.FileWrite || q.Op == link.FileDelete {
		if refused, err := b.mayChange(ctx, q, serial); refused != "" || err != nil {
			return link.FileAnswer{Refused: refused}, err
		}
	}
	folder, err := beneath.Open(b.h.Workspace(b.adm.Session))
	if err != nil {
		return link.FileAnswer{}, fmt.Errorf("workspace of session %s: %w", b.adm.Session, err)
	}
	defer func() { _ = folder.Close() }() // nothing was written to it
	a, err := doFile(folder, q)
	for refused, why := range map[string]error{
		link.FilePath: beneath.ErrPath, link.FileKind: beneath.ErrKind, link.FileFilled: beneath.ErrFull, link.FileMissing: fs.ErrNotExist,
	} {
		if errors.Is(err, why) {
			return link.FileAnswer{Refused: refused}, nil
		}
	}
	if err != nil {
		return link.FileAnswer{}, err
	}
	a.Allowed = true
	return a, nil
}

// inOwnSession refuses an agent that is held, or that has no part in its session any more. serial: writers take turns.
func (b *Broker) inOwnSession(ctx context.Context) (serial bool, err error) {
	err = b.h.view(ctx, func(tx *store.Tx) error {
		if err := notHeld(tx, b.adm.Agent, "reach the files of session "+b.adm.Session); err != nil {
			return err
		}
		v, err := b.h.inSession(tx, verdict{}, Request{Agent: b.adm.Agent, Session: b.adm.Session})
		if err == nil && v.Code != "" {
			err = errors.New(v.Reason)
		}
		serial = v.serial
		return err
	})
	return serial, err
}

// mayChange asks for what a change needs beside a read: the ring (H-11), the turn in a strong session (H-32), a call, and room. A name
// that begins with a dot configures programs of the host (.git/hooks, .envrc, .npmrc), which nobody runs for the agent's sake; others are what
// those name, as a filter's program, which the run's own view has read-only and this folder hasn't.
func (b *Broker) mayChange(ctx context.Context, q link.FileRequest, serial bool) (refused string, err error) {
	_, ring, err := b.live.now(ctx)
	switch {
	case err != nil:
		return "", err
	case !rings.ResourceAllowed(ring, rings.FilesystemWrite).Allowed(), serial && !b.control.mayWrite():
		return link.FileRing, nil
	case strings.HasPrefix(q.Path, ".") || strings.Contains(q.Path, "/."), b.opt.Guarded != nil && b.opt.Guarded(b.h.Workspace(b.adm.Session), q.Path):
		return link.FileGuarded, nil
	}
	if err := b.countWrite(); err != nil {
		return "", err
	}
	if q.Op == link.FileWrite && !b.fileRoom(int64(len(q.Data))+fileCosts) {
		return link.FileQuota, nil
	}
	return "", nil
}

// fileRoom takes n bytes of what the run may write, which is its parent's where it is a child (H-15).
func (b *Broker) fileRoom(n int64) bool {
	if b.opt.Parent != nil {
		return b.opt.Parent.fileRoom(n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.filed+n > MaxFileBytes {
		return false
	}
	b.filed += n
	return true
}

func doFile(folder *beneath.Folder, q link.FileRequest) (a link.FileAnswer, err error) {
	switch q.Op {
	case link.FileRead:
		a.Data, a.Bytes, err = folder.Read(q.Path, q.Offset, link.MaxFilePiece)
	case link.FileWrite:
		err = folder.Write(q.Path, q.Data)
	case link.FileDelete:
		err = folder.Remove(q.Path)
	case link.FileList:
		var list []beneath.Entry
		list, a.More, err = folder.List(q.Path, link.MaxFileList)
		size := 0
		for _, e := range list {
			// In JSON a character may take six bytes, and a frame that is too long would end the link, and with it the run.
			if size += 6*len(e.Name) + 64; size > link.MaxFrame/2 {
				a.More = true
				break
			}
			a.Entries = append(a.Entries, link.FileEntry{Name: e.Name, Kind: kinds[e.Kind], Bytes: e.Bytes})
		}
	}
	return a, err
}

var kinds = map[fs.FileMode]string{0: "file", fs.ModeDir: "folder", fs.ModeSymlink: "link", fs.ModeIrregular: "other"}
