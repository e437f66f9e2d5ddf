// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A reader that is asked again sees what was written since, over several files.
func TestReaderFollows(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, Options{RotateBytes: 1000})
	r, err := OpenReader(dir, NodeChain)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := int64(0)
	for i := range 10 {
		appendN(t, l, i%4)
		for {
			line, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			own, err := line.Entry.Line()
			if line.Entry.Seq != next || err != nil || !bytes.Equal(own, line.Raw) {
				t.Fatalf("%s:%d: entry %d, want %d: %s, %v", line.File, line.Number, line.Entry.Seq, next, line.Raw, err)
			}
			next++
		}
	}
	if rep := verify(t, dir, VerifyOptions{}); rep.Entries != next || rep.Files < 3 {
		t.Errorf("read %d, %+v", next, rep)
	}
}

func TestReaderStopsAtDamage(t *testing.T) {
	c := chainOf(t, 3)
	for name, bad := range map[string][]byte{
		"edited": bytes.Replace(c[1], []byte("mount"), []byte("chdir"), 1),
		"none":   []byte("hello\n"),
		"long":   append(bytes.Repeat([]byte("x"), 4*MaxLine), '\n'),
	} {
		r, err := OpenReader(write(t, lines{c[0], bad, c[2]}), NodeChain)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		var d *DamagedError
		if _, err := r.Next(); !errors.As(err, &d) || d.Offset != int64(len(c[0])) {
			t.Errorf("%s: %v", name, err)
		}
		r.Close()
	}
	if _, err := OpenReader(t.TempDir(), NodeChain); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no chain: %v", err)
	}
}

// The lines of the scanner are the file, however long they are and however it grows.
func TestScannerLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	rapid.Check(t, func(t *rapid.T) {
		var want []int64 // where lines begin
		var text []byte
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			want = append(want, int64(len(text)))
			n := rapid.SampledFrom([]int{0, 1, 7, MaxLine - 1, MaxLine, MaxLine + 1, 2*MaxLine - 1, 2 * MaxLine, 2*MaxLine + 1, 5 * MaxLine}).Draw(t, "len")
			text = append(append(text, strings.Repeat("a", n)...), '\n')
		}
		text = append(text, strings.Repeat("z", rapid.IntRange(0, 3).Draw(t, "rest"))...)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s := newScanner(f, 0, int64(len(text)))
		for _, begin := range want {
			line, at, err := s.next()
			size := int64(bytes.IndexByte(text[begin:], '\n'))
			if at != begin || (errors.Is(err, errLongLine)) != (size > MaxLine && int64(len(line)) != size) || err != nil && !errors.Is(err, errLongLine) || err == nil && int64(len(line)) != size {
				t.Fatalf("line at %d of %d bytes: got %d bytes at %d, %v", begin, size, len(line), at, err)
			}
		}
		if _, _, err := s.next(); errors.Is(err, io.EOF) != (len(text) == 0 || text[len(text)-1] == '\n') || err == nil {
			t.Fatalf("at the end: %v", err)
		}
	})
}
