// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
)

// M-23: a copy goes over the socket in both directions; a refusal has its code, what comes in the middle too, and a source that fails isn't
// taken for a whole one.
func TestM23CopiesOverTheSocket(t *testing.T) {
	s := startServer(t, Access{})
	c := s.client
	var out bytes.Buffer
	done, err := CopyOut(t.Context(), c, "r1", FilesRequest{Path: "a/b"}, &out)
	if err != nil || !strings.HasPrefix(out.String(), "a/b for uid:") || done.Bytes != 2 {
		t.Errorf("out: %q, %+v, %v", out.String(), done, err)
	}
	in := strings.Repeat("x", 3*MaxFrame+1)
	done, err = CopyIn(t.Context(), c, "r1", FilesRequest{Path: "a"}, strings.NewReader(in))
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeConflict || done.Bytes != int64(len(in)) {
		t.Errorf("in: %+v, %v", done, err)
	}
	for range 50 { // what was said before the other side hung up isn't lost to the failure of the next write
		_, err = CopyIn(t.Context(), c, "r1", FilesRequest{Path: "full"}, strings.NewReader(strings.Repeat(in, 10)))
		if e, ok := errors.AsType[*Error](err); !ok || e.Message != "full" {
			t.Fatalf("refused in the middle: %v", err)
		}
	}
	if list, err := c.Files(t.Context(), "r1", FilesRequest{Path: "x"}); err != nil || len(list) != 1 || list[0].Name != "x" {
		t.Errorf("list: %v, %v", list, err)
	}
	broken := errors.New("the disk is gone")
	if _, err := CopyIn(t.Context(), c, "r1", FilesRequest{Path: "a"}, iotest.ErrReader(broken)); err == nil {
		t.Error("a source that can't be read was copied")
	}
	for _, path := range []string{"", strings.Repeat("x", 5000), "a\x00b"} {
		_, err := CopyOut(t.Context(), c, "r1", FilesRequest{Path: path}, &out)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeBadRequest {
			t.Errorf("path %.10q: %v", path, err)
		}
	}
	if _, err := CopyOut(t.Context(), c, "none", FilesRequest{Path: "a"}, &out); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a run that isn't there: %v", err)
	}
}
