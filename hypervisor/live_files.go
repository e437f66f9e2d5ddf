// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"agentrun/audit"
	"agentrun/runtime"
	"agentrun/store"
)

// sessionFilesBucket holds who has written the files of sessions' workspaces last: "SESSION/SHA-256 of the path".
const sessionFilesBucket = "session-files"

// filesKept is how long a run can have lived beside another's write.
const filesKept = 7 * 24 * time.Hour

type fileWriter struct {
	Agent string    `json:"agent"`
	Run   string    `json:"run"`
	Sum   string    `json:"sum"` // hex
	At    time.Time `json:"at"`
	Ended time.Time `json:"ended"` // of the run
}

// RecordWrites tells what a run that began then has left in the workspace of its session. What a run that is over by the time another
// begins has written, the other has before it; of runs that lived at the same time, neither knows of the other's writes (H-32, causal: it is
// told; eventual: the last one stays, and both are on record). The paths of such files are returned.
func (c *Control) RecordWrites(ctx context.Context, began time.Time, files []runtime.FileWrite) (conflicts []string, err error) {
	session := c.adm.Session
	err = c.h.update(ctx, func(tx *store.Tx) error {
		conflicts = nil
		b, now := tx.Bucket(sessionFilesBucket), c.h.now()
		var old []string
		if err := store.EachJSON(b, session+"/", func(key string, w fileWriter) error {
			if now.Sub(w.Ended) > filesKept {
				old = append(old, key)
			}
			return nil
		}); err != nil {
			return err
		}
		for _, key := range old {
			if err := b.Delete(key); err != nil {
				return err
			}
		}
		for _, f := range files {
			path := sha256.Sum256([]byte(f.Path))
			key := session + "/" + hex.EncodeToString(path[:])
			mine := fileWriter{Agent: c.who, Run: c.opt.Run, Sum: hex.EncodeToString(f.Sum[:]), At: f.At, Ended: now}
			var w fileWriter
			found, err := store.GetJSON(b, key, &w)
			if err != nil {
				return err
			}
			last := mine
			if found && w.Run != mine.Run && w.Ended.After(began) && w.Sum != mine.Sum {
				kept, lost := mine, w
				if w.At.After(mine.At) {
					kept, lost, last = w, mine, w
					last.Ended = now
				}
				if err := c.h.lostFile(session, path, kept, lost); err != nil {
					return err
				}
				conflicts = append(conflicts, f.Path)
			}
			if err := store.PutJSON(b, key, last); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("files of session %.256s: %w", session, err)
	}
	return conflicts, nil
}

func (h *Hypervisor) lostFile(session string, path audit.Hash, kept, lost fileWriter) error {
	c := &audit.Conflict{Key: path, KeptBy: kept.Agent, LostBy: lost.Agent, SessionID: session}
	for to, from := range map[*audit.Hash]string{&c.Kept: kept.Sum, &c.Lost: lost.Sum} {
		if _, err := hex.Decode(to[:], []byte(from)); err != nil {
			return fmt.Errorf("sum of a file: %w", store.ErrDecode)
		}
	}
	return h.record(session, false, c)
}
