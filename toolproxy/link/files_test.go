// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/json"
	"strings"
	"testing"
)

// M-11: a request is held to its form, and the longest answer fits a message.
func TestM11FileRequest(t *testing.T) {
	piece := make([]byte, MaxFilePiece)
	for _, tt := range []struct {
		q  FileRequest
		ok bool
	}{
		{FileRequest{}, false}, {FileRequest{Op: FileList}, true}, {FileRequest{Op: FileRead}, false}, {FileRequest{Op: FileRead, Path: "a"}, true},
		{FileRequest{Op: FileRead, Path: "a", Offset: 1 << 40}, true}, {FileRequest{Op: FileRead, Path: "a", Offset: -1}, false},
		{FileRequest{Op: FileRead, Path: "a", Data: piece}, false}, {FileRequest{Op: FileWrite, Path: "a", Data: piece}, true},
		{FileRequest{Op: FileWrite, Path: "a", Data: append(piece, 0)}, false}, {FileRequest{Op: FileWrite, Path: "a", Offset: 1}, false},
		{FileRequest{Op: FileDelete, Path: "a"}, true}, {FileRequest{Op: "chmod", Path: "a"}, false}, {FileRequest{Op: FileRead, Path: "\xff"}, false},
		{FileRequest{Op: FileRead, Path: strings.Repeat("a", 1025)}, false},
	} {
		if err := tt.q.Check(); (err == nil) != tt.ok {
			t.Errorf("%.60q, %d, %d bytes: got %v", tt.q.Op+" "+tt.q.Path, tt.q.Offset, len(tt.q.Data), err)
		}
	}
	for _, v := range []any{FileAnswer{Allowed: true, Data: piece, Bytes: 1 << 60}, FileRequest{Op: FileWrite, Path: strings.Repeat("\u0001", 1024), Data: piece}} {
		if b, err := json.Marshal(v); err != nil || len(b) > MaxFrame-1024 {
			t.Errorf("%d bytes, %v, a message has %d", len(b), err, MaxFrame)
		}
	}
}
