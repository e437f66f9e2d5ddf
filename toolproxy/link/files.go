// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Files is what a Supervisor may implement besides: the tool file reaches the folder of the run's session by it, and no other file
// (M-11). Which session, and in which ring, follows from the link and from nothing in the request.
type Files interface {
	File(ctx context.Context, q FileRequest) (FileAnswer, error)
}

// What a FileRequest may ask for.
const (
	FileRead   = "read"
	FileWrite  = "write"
	FileList   = "list"
	FileDelete = "delete"
)

// Why a FileAnswer refuses.
const (
	FilePath    = "path"    // no path beneath the folder
	FileMissing = "missing" // there is no such file
	FileKind    = "kind"    // a link, or another kind of file
	FileFilled  = "filled"  // a folder that isn't empty
	FileRing    = "ring"    // the run's ring changes no files (H-11)
	FileGuarded = "guarded" // programs outside of the sandbox may act by what stands there
	FileQuota   = "quota"   // the run has written as much as it may
)

// Bounds of a request and its answer. A piece fits a frame in base64.
const (
	MaxFilePiece = 64 << 10 // bytes
	MaxFileList  = 500      // names
	maxFilePath  = 1024     // bytes
)

// FileRequest names a file by its path beneath the session's folder.
type FileRequest struct {
	Op     string `json:"op"`
	Path   string `json:"path"`             // empty, of a list: the folder itself
	Offset int64  `json:"offset,omitempty"` // read: from this byte on
	Data   []byte `json:"data,omitempty"`   // write
}

// FileEntry is a name in a folder.
type FileEntry struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"` // file, folder, link or other
	Bytes int64  `json:"bytes,omitzero"`
}

// FileAnswer is the answer. The zero value refuses.
type FileAnswer struct {
	Allowed bool        `json:"allowed"`
	Refused string      `json:"refused,omitempty"` // FilePath, …; else it is not said why
	Data    []byte      `json:"data,omitempty"`    // read
	Bytes   int64       `json:"bytes,omitempty"`   // read: of the whole file
	Entries []FileEntry `json:"entries,omitempty"` // list: by name
	More    bool        `json:"more,omitempty"`    // list: the folder has others
}

// ErrFile is a request that can't be.
var ErrFile = errors.New("link: impossible request for a file")

// Check holds a request to its form, whoever sent it: a gateway may have been taken over. Whether the path is one beneath the folder
// is looked at where the folder is.
func (q FileRequest) Check() error {
	named := q.Path != "" && len(q.Path) <= maxFilePath && utf8.ValidString(q.Path)
	switch {
	case q.Op == FileRead && named && q.Offset >= 0 && len(q.Data) == 0,
		q.Op == FileWrite && named && q.Offset == 0 && len(q.Data) <= MaxFilePiece,
		q.Op == FileDelete && named && q.Offset == 0 && len(q.Data) == 0,
		q.Op == FileList && (named || q.Path == "") && q.Offset == 0 && len(q.Data) == 0:
		return nil
	}
	return fmt.Errorf("%w: op %.20q, a path of %d bytes, offset %d, %d bytes to write", ErrFile, q.Op, len(q.Path), q.Offset, len(q.Data))
}

// File implements Files. What may have happened when ctx ended isn't known: a read tells.
func (l *Client) File(ctx context.Context, q FileRequest) (FileAnswer, error) {
	return asked[FileAnswer](ctx, l, opFile, q, nil)
}

var errNoFiles = errors.New("there is no session's folder here")
