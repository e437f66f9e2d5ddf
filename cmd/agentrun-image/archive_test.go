// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentrun/images/signed"
)

// An archive's index keeps names, which are bounded together, and no headers that they came in.
func TestIndexIsBounded(t *testing.T) {
	for title, c := range map[string]struct {
		many       int
		name, note string
		want       string // of the error
	}{
		"long names":                {8, strings.Repeat("n", 1<<20-100), "", "names and links have more than"},
		"short names, long headers": {64, "é", strings.Repeat("x", 1<<20-100), ""},
	} {
		t.Run(title, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.tar")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w := tar.NewWriter(f)
			for n := range c.many {
				h := &tar.Header{Name: fmt.Sprint(c.name, n), Typeflag: tar.TypeReg, Mode: 0o644}
				if c.note != "" {
					h.PAXRecords = map[string]string{"VENDOR.x": c.note}
				}
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			before := heap()
			a, err := openArchive(path)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if err != nil {
				return
			}
			if more := heap() - before; more > 8<<20 {
				t.Errorf("%d names keep %d bytes", c.many, more)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// heap is what is still in use.
func heap() int64 {
	var m goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // below 2^63
}

// A layout's signatures are as many as are looked at, whatever one manifest says there are.
func TestSignaturesAreBounded(t *testing.T) {
	dir := t.TempDir()
	blob := func(text string) string {
		name := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest([]byte(text)), "sha256:"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return digest([]byte(text))
	}
	layer := fmt.Sprintf(`{"mediaType": %q, "digest": %q}`, signed.MediaType, blob(strings.Repeat("s", maxStatement)))
	manifest := fmt.Sprintf(`{"digest": %q, "annotations": {%q: "x.sig"}}`, blob(`{"layers": [`+layer+strings.Repeat(","+layer, 999)+`]}`), refName)
	index, err := v1.ParseIndexManifest(strings.NewReader(`{"manifests": [` + manifest + strings.Repeat(","+manifest, 999) + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if all, err := signaturesIn(f, index); err != nil || len(all) != signed.Most {
		t.Errorf("%d signatures, %v, want %d", len(all), err, signed.Most)
	}
}
