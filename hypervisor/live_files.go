// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/internal/read"
	"agentrun/runtime"
	"agentrun/store"
)

// sessionWritesBucket holds what runs have left in their sessions' workspaces: "SESSION/WHEN THE RUN ENDED/RUN". So a run reads what those
// have left that ended in its own time, and nothing of those before.
const sessionWritesBucket = "session-writes"

// What is kept of a session. An agent writes files of new names in each of its runs, and whoever looks through what is kept has all runs of
// the node wait.
const (
	writesKept     = 7 * 24 * time.Hour // how long a run can have lived beside another's write
	maxWritesRuns  = 1024
	maxWritesBytes = 4 << 20 // twenty runs with as many files as one tells
)

// runWrites is what one run has left.
type runWrites struct {
	Agent  string               `json:"agent"`
	Folder string               `json:"folder"` // the host's that was /workspace: not all runs of a session need have its own
	Files  map[string]fileWrite `json:"files"`  // by the SHA-256 of their paths in it, in hex
}

type fileWrite struct {
	Sum string    `json:"sum"` // hex
	At  time.Time `json:"at"`
}

// fileWriter is whose a write was.
type fileWriter struct {
	fileWrite
	agent string
}

func writesKey(session string, ended time.Time, run string) string {
	return fmt.Sprintf("%s/%020d/%s", session, ended.UnixNano(), run)
}

// RecordWrites tells what a run that began then has left in the folder that was its workspace. What a run that is over by the time another
// begins has written, the other has before it; of runs that lived at the same time, neither knows of the other's writes (H-32, causal: it is
// told; eventual: the last one stays, and both are on record). The paths of such files are returned. Of two that end at once each sees the
// other's: both are told.
func (c *Control) RecordWrites(ctx context.Context, folder string, began time.Time, files []runtime.FileWrite) (conflicts []string, err error) {
	if len(files) == 0 { // as of each tool's command
		return nil, nil
	}
	session, key := c.adm.Session, writesKey(c.adm.Session, c.h.now(), c.opt.Run)
	mine := runWrites{Agent: c.who, Folder: folder, Files: map[string]fileWrite{}}
	for _, f := range files {
		mine.Files[hashOf(f.Path).String()] = fileWrite{Sum: hex.EncodeToString(f.Sum[:]), At: f.At}
	}
	err = c.h.update(ctx, func(tx *store.Tx) error {
		b := tx.Bucket(sessionWritesBucket)
		if err := store.PutJSON(b, key, mine); err != nil {
			return err
		}
		return dropWrites(b, session, c.h.now().Add(-writesKept))
	})
	var beside [][]byte // taken apart when nobody waits for it
	if err == nil {
		err = c.h.view(ctx, func(tx *store.Tx) error {
			return tx.Bucket(sessionWritesBucket).EachAfter(session+"/", writesKey(session, began.Add(1), ""), func(at string, raw []byte) error {
				if at != key {
					beside = append(beside, raw)
				}
				return nil
			})
		})
	}
	var last map[string]fileWriter
	if err == nil {
		last, err = lastWriters(folder, beside)
	}
	for _, f := range files {
		path := hashOf(f.Path)
		own := fileWriter{mine.Files[path.String()], c.who}
		if w, found := last[path.String()]; err == nil && found && w.Sum != own.Sum {
			kept, lost := own, w
			if w.At.After(own.At) {
				kept, lost = w, own
			}
			if err = c.h.lostFile(session, path, kept, lost); err == nil {
				conflicts = append(conflicts, f.Path)
			}
		}
	}
	if err != nil {
		return conflicts, fmt.Errorf("files of session %.256s: %w", session, err)
	}
	return conflicts, nil
}

func hashOf(path string) audit.Hash { return sha256.Sum256([]byte(path)) }

// lastWriters are those of each file of the folder.
func lastWriters(folder string, runs [][]byte) (map[string]fileWriter, error) {
	last := map[string]fileWriter{}
	for _, raw := range runs {
		var of runWrites
		if err := read.Exactly(raw, &of); err != nil {
			return nil, fmt.Errorf("%w: %w", store.ErrDecode, err)
		}
		if of.Folder != folder {
			continue
		}
		for path, w := range of.Files {
			if w.At.After(last[path].At) {
				last[path] = fileWriter{w, of.Agent}
			}
		}
	}
	return last, nil
}

// dropWrites forgets what is too old or more than is kept of a session, the oldest first.
func dropWrites(b *store.Bucket, session string, before time.Time) error {
	type one struct {
		key  string
		size int
	}
	var all []one
	bytes := 0
	err := b.Sizes(session+"/", func(key string, size int) error {
		all, bytes = append(all, one{key, size}), bytes+size
		return nil
	})
	if err != nil {
		return err
	}
	for i, w := range all {
		if strings.Compare(w.key, writesKey(session, before, "")) >= 0 && bytes <= maxWritesBytes && len(all)-i <= maxWritesRuns {
			break
		}
		if err := b.Delete(w.key); err != nil {
			return err
		}
		bytes -= w.size
	}
	return nil
}

func (h *Hypervisor) lostFile(session string, path audit.Hash, kept, lost fileWriter) error {
	c := &audit.Conflict{Key: path, KeptBy: kept.agent, LostBy: lost.agent, SessionID: session}
	for to, from := range map[*audit.Hash]string{&c.Kept: kept.Sum, &c.Lost: lost.Sum} {
		if _, err := hex.Decode(to[:], []byte(from)); err != nil {
			return fmt.Errorf("sum of a file: %w", store.ErrDecode)
		}
	}
	return h.record(session, false, c)
}
