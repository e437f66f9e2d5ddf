// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"agentrun/images"
)

// file is an entry of a layer: "/" at the end is a folder, "-> x" a link, "=> x" a hard link.
type file struct {
	name, content string
	header        tar.Header // what else it has
}

func layer(files ...file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := f.header
		h.Name = f.name
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		switch {
		case h.Typeflag != 0:
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
			if f.header.Mode == 0 {
				h.Mode = 0o755
			}
		case strings.HasPrefix(f.content, "-> "):
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.content[3:]
		case strings.HasPrefix(f.content, "=> "):
			h.Typeflag, h.Linkname = tar.TypeLink, f.content[3:]
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.content))
		}
		h.ModTime = time.Unix(1e9, 0)
		h.Format = tar.FormatPAX
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.WriteString(w, f.content)
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// place is a folder with a root in it, and beside that what nothing may touch.
func place(t testing.TB) (root string, untouched func()) {
	t.Helper()
	top := t.TempDir()
	root = filepath.Join(top, "root")
	if err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(filepath.Join(top, "secret"), []byte("secret"), 0o600), os.Mkdir(filepath.Join(top, "dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	look := func() string {
		var all []string
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path == root {
				return filepath.SkipDir
			}
			info, err := d.Info()
			if err == nil && path != top { // the top's own time is of no interest
				st := info.Sys().(*syscall.Stat_t)
				all = append(all, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime(), st.Nlink, st.Uid))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	before := look()
	return root, func() {
		t.Helper()
		if after := look(); after != before {
			t.Errorf("outside of the root: %s", cmp.Diff(before, after))
		}
	}
}

func unpacked(root string, l Limits, layers ...[]byte) (images.Counts, error) {
	t, err := Open(root, l, os.Geteuid() == 0)
	if err != nil {
		return images.Counts{}, err
	}
	defer t.Close()
	for _, l := range layers {
		if _, err := t.Apply(bytes.NewReader(l)); err != nil {
			return images.Counts{}, err
		}
	}
	return t.Done()
}

// tree lists what is in a folder.
func tree(t testing.TB, root string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		line, _ := strings.CutPrefix(path, root+"/")
		switch {
		case d.IsDir():
			line += "/"
		case d.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(path)
			line += " -> " + to
		default:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(text)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLayers(t *testing.T) {
	base := layer(file{name: "./"}, file{name: "./etc/"}, file{name: "./etc/passwd", content: "root"}, file{name: "bin", content: "-> usr/bin"},
		file{name: "usr/bin/sh", content: "sh"}, file{name: "usr/bin/bash", content: "=> usr/bin/sh"}, file{name: "/abs", content: "a"},
		file{name: "d/one", content: "1"}, file{name: "d/two", content: "2"}, file{name: "d/s/three", content: "3"})
	for name, c := range map[string]struct {
		layers [][]byte
		want   []string
	}{
		"one": {nil, []string{"abs a", "bin -> usr/bin", "d/", "d/one 1", "d/s/", "d/s/three 3", "d/two 2", "etc/", "etc/passwd root", "usr/", "usr/bin/", "usr/bin/bash sh", "usr/bin/sh sh"}},
		"whiteouts": {
			[][]byte{layer(file{name: "d/.wh.one"}, file{name: "d/.wh.s"}, file{name: "usr/bin/.wh.sh"}, file{name: ".wh.abs"}, file{name: ".wh.bin"}, file{name: ".wh.etc"})},
			[]string{"d/", "d/two 2", "usr/", "usr/bin/", "usr/bin/bash sh"},
		},
		"opaque spares what the layer brings, before and after": {
			[][]byte{layer(file{name: "d/new", content: "n"}, file{name: "d/s/new", content: "n"}, file{name: "d/.wh..wh..opq"}, file{name: "d/one", content: "again"}, file{name: ".wh.usr"}, file{name: ".wh.etc"})},
			[]string{"abs a", "bin -> usr/bin", "d/", "d/new n", "d/one again", "d/s/", "d/s/new n"},
		},
		"a file for a folder, a folder for a link, a file for a link": {
			[][]byte{layer(file{name: "d", content: "file"}, file{name: "bin/"}, file{name: "bin/x", content: "x"}, file{name: ".wh.usr"}, file{name: ".wh.etc"}), layer(file{name: "abs", content: "-> /etc/passwd"}), layer(file{name: "abs", content: "b"})},
			[]string{"abs b", "bin/", "bin/x x", "d file"},
		},
		"nothing to delete": {
			[][]byte{layer(file{name: "no/.wh.such"}, file{name: ".wh.nothing"}, file{name: "no/.wh..wh..opq"}, file{name: ".wh..wh.plnk/"}, file{name: ".wh.d"}, file{name: ".wh.usr"}, file{name: ".wh.etc"}, file{name: ".wh.bin"})},
			[]string{"abs a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, untouched := place(t)
			if _, err := unpacked(root, DefaultLimits(), append([][]byte{base}, c.layers...)...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, tree(t, root)); diff != "" {
				t.Error(diff)
			}
			untouched()
		})
	}
}

func TestModesOwnersTimes(t *testing.T) {
	root, _ := place(t)
	counts, err := unpacked(root, DefaultLimits(), layer(
		file{name: "closed/", header: tar.Header{Mode: 0o555}}, file{name: "closed/su", content: "x", header: tar.Header{Mode: 0o6755, Uid: 7, Gid: 8}},
		file{name: "tmp/", header: tar.Header{Mode: 0o1777}}, file{name: "far", content: "x", header: tar.Header{Uid: 1 << 20}},
		file{name: "cap", content: "x", header: tar.Header{PAXRecords: map[string]string{xattr + "security.capability": "x", xattr + "trusted.overlay.opaque": "y", xattr + "user.note": "z"}}},
		file{name: "dev/null", header: tar.Header{Typeflag: tar.TypeChar}}, file{name: "dev/pipe", header: tar.Header{Typeflag: tar.TypeFifo}},
	), layer(file{name: "closed/more", content: "y"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"closed": fs.ModeDir | 0o555, "closed/su": 0o755, "tmp": fs.ModeDir | fs.ModeSticky | 0o777} {
		if os.Geteuid() != 0 && name == "closed" {
			want = fs.ModeDir | 0o755
		}
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil || info.Mode() != want || name != "closed" && info.ModTime().Unix() != 1e9 {
			t.Errorf("%s: %v %v %v, want %v", name, info.Mode(), info.ModTime(), err, want)
		}
		if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && name == "closed/su" && (st.Uid != 7 || st.Gid != 8) {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	if counts.SetID != 1 || counts.Caps != 1 || counts.Devices != 2 || os.Geteuid() == 0 && counts.Owners != 1 {
		t.Errorf("%+v", counts)
	}
	names := make([]byte, 256)
	n, err := syscall.Listxattr(filepath.Join(root, "cap"), names)
	if got := string(names[:max(n, 0)]); err == nil && got != "" && got != "user.note\x00" {
		t.Errorf("attributes %q", got)
	}
}

// Images that somebody made to reach the host, or to fill it.
func TestThreatTakeoverHostileLayers(t *testing.T) {
	dir := file{name: "d/"}
	for name, c := range map[string]struct {
		layers [][]byte
		want   string
	}{
		"name that leads out":                 {[][]byte{layer(file{name: "../secret", content: "x"})}, "leads out"},
		"name that leads out further down":    {[][]byte{layer(dir, file{name: "d/../../secret", content: "x"})}, "leads out"},
		"folder that leads out":               {[][]byte{layer(file{name: "d/../../dir/"})}, "leads out"},
		"file behind a link out":              {[][]byte{layer(file{name: "l", content: "-> .."}, file{name: "l/secret", content: "x"})}, "on the way"},
		"file behind an absolute link":        {[][]byte{layer(file{name: "l", content: "-> /tmp"}, file{name: "l/agentrun-escaped", content: "x"})}, "on the way"},
		"folder behind a link":                {[][]byte{layer(file{name: "l", content: "-> ../dir"}), layer(file{name: "l/x/"})}, "on the way"},
		"link behind a link of a lower one":   {[][]byte{layer(file{name: "l", content: "-> ../dir"}), layer(file{name: "l/x", content: "-> y"})}, "on the way"},
		"whiteout behind a link":              {[][]byte{layer(file{name: "l", content: "-> .."}), layer(file{name: "l/.wh.secret"})}, "on the way"},
		"opaque behind a link":                {[][]byte{layer(file{name: "l", content: "-> .."}), layer(file{name: "l/.wh..wh..opq"})}, "on the way"},
		"whiteout of the folder above":        {[][]byte{layer(dir, file{name: "d/.wh..."})}, "another name"},
		"whiteout by two dots":                {[][]byte{layer(dir, file{name: "d/.wh..", content: ""})}, "another name"},
		"whiteout of nothing":                 {[][]byte{layer(dir, file{name: "d/.wh."})}, "another name"},
		"hard link out":                       {[][]byte{layer(file{name: "h", content: "=> ../secret"})}, "leads out"},
		"hard link by an absolute name":       {[][]byte{layer(file{name: "h", content: "=> /etc/passwd"})}, "isn't there"},
		"hard link through a link":            {[][]byte{layer(file{name: "l", content: "-> .."}, file{name: "h", content: "=> l/secret"})}, "behind a link"},
		"hard link to a folder":               {[][]byte{layer(dir, file{name: "h", content: "=> d"})}, "no file"},
		"hard link to itself":                 {[][]byte{layer(file{name: "h", content: "x"}, file{name: "h", content: "=> h"})}, "no file"},
		"hard link to the root":               {[][]byte{layer(file{name: "h", content: "=> ."})}, "no file"},
		"write through a hard link to a link": {[][]byte{layer(file{name: "l", content: "-> ../secret"}, file{name: "h", content: "=> l"}, file{name: "h", content: "x"})}, ""},
		"write over a link":                   {[][]byte{layer(file{name: "l", content: "-> ../secret"}, file{name: "l", content: "x"})}, ""},
		"folder over a link":                  {[][]byte{layer(file{name: "l", content: "-> ../dir"}, file{name: "l/"}, file{name: "l/x", content: "x"})}, ""},
		"device":                              {[][]byte{layer(file{name: "sda", header: tar.Header{Typeflag: tar.TypeBlock, Devmajor: 8}})}, "device"},
		"device beside /dev":                  {[][]byte{layer(file{name: "devil/null", header: tar.Header{Typeflag: tar.TypeChar}})}, "device"},
		"pipe":                                {[][]byte{layer(file{name: "p", header: tar.Header{Typeflag: tar.TypeFifo}})}, "pipe"},
		"unknown kind":                        {[][]byte{layer(file{name: "v", header: tar.Header{Typeflag: 'V'}})}, ""},
		"root that is a file":                 {[][]byte{layer(file{name: ".", content: "x"})}, "the root"},
		"root that is a link":                 {[][]byte{layer(file{name: ".", content: "-> /"})}, "the root"},
		"long name":                           {[][]byte{layer(file{name: strings.Repeat("n", 300), content: "x"})}, "300 bytes"},
		"deep":                                {[][]byte{layer(file{name: strings.Repeat("d/", 200) + "x", content: "x"})}, "more than 128 folders"},
		"file on the way":                     {[][]byte{layer(file{name: "f", content: "x"}), layer(file{name: "f/x", content: "x"})}, "on the way"},
	} {
		t.Run(name, func(t *testing.T) {
			root, untouched := place(t)
			_, err := unpacked(root, DefaultLimits(), c.layers...)
			if _, refused := errors.AsType[*HostileError](err); c.want != "" && (!refused || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want a refusal with %q", err, c.want)
			}
			untouched()
		})
	}
}

func packed(t *testing.T, how string, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	default:
		return plain
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// hole is an entry of GNU tar's that is sparse, and nothing but a hole (tar(5), "GNU tar archives").
func hole(name string, size int64) []byte {
	b := make([]byte, 512)
	number := fmt.Sprintf("%011o\x00", size)
	for at, text := range map[int]string{
		0: name, 100: "0000644\x00", 108: "0000000\x00", 116: "0000000\x00", 124: "00000000000\x00", 136: "00000000000\x00", 148: "        ", 156: "S", 257: "ustar  \x00",
		386: number, 398: "00000000000\x00", 483: number,
	} {
		copy(b[at:], text)
	}
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// A hole is zeros that no layer has, and that are written all the same.
func TestHolesAreBounded(t *testing.T) {
	l := DefaultLimits()
	l.RatioFrom = 1 << 20
	for size, want := range map[int64]error{1 << 19: nil, 1 << 30: ErrLimit} {
		root, _ := place(t)
		_, err := unpacked(root, l, append(hole("hole", size), make([]byte, 1024)...))
		if !errors.Is(err, want) {
			t.Errorf("%d: got %v, want %v", size, err, want)
		}
		info, err := os.Stat(filepath.Join(root, "hole"))
		if err != nil || want == nil && info.Size() != size || info.Size() > 2*l.RatioFrom {
			t.Errorf("%d: %v, %v", size, info, err)
		}
	}
	root, _ := place(t)
	var many [][]byte // of small ones too, in many layers
	for n := range 8 {
		many = append(many, append(hole(fmt.Sprint("h", n), 1<<19), make([]byte, 1024)...))
	}
	if _, err := unpacked(root, l, many...); !errors.Is(err, ErrLimit) {
		t.Errorf("many: got %v", err)
	}
}

func TestLimits(t *testing.T) {
	big := layer(file{name: "zeroes", content: strings.Repeat("\x00", 1<<20)})
	for _, how := range []string{"gzip", "zstd", "plain"} {
		root, _ := place(t)
		tr, err := Open(root, DefaultLimits(), false)
		if err != nil {
			t.Fatal(err)
		}
		id, err := tr.Apply(bytes.NewReader(packed(t, how, big)))
		if err != nil || !strings.HasPrefix(id, "sha256:") {
			t.Errorf("%s: %q %v", how, id, err)
		}
		tr.Close()
		small := DefaultLimits()
		small.RatioFrom = 1 << 16
		root, _ = place(t)
		if _, err := unpacked(root, small, packed(t, how, big)); how != "plain" && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "have come of")) {
			t.Errorf("%s: a bomb: got %v", how, err)
		}
	}
	deep := layer(file{name: "a/b/c/d/e/f/g/h/x", content: "x"})
	root, _ := place(t)
	if _, err := unpacked(root, Limits{Bytes: 9, Files: 7, Depth: 9, Paths: 1 << 20}, deep); !errors.Is(err, ErrLimit) {
		t.Errorf("folders that no entry names: got %v", err)
	}
	root, _ = place(t)
	if counts, err := unpacked(root, Limits{Bytes: 9, Files: 8, Depth: 9, Paths: 1 << 20}, deep); err != nil || counts.Files != 1 {
		t.Errorf("folders that no entry names: %+v, %v", counts, err)
	}
	for name, l := range map[string]Limits{
		"bytes": {Bytes: 1 << 19, Files: 9, Depth: 9, Paths: 1 << 20}, "files": {Bytes: 1 << 21, Files: 0, Depth: 9, Paths: 1 << 20},
		"paths": {Bytes: 1 << 21, Files: 9, Depth: 9, Paths: 5},
	} {
		root, _ := place(t)
		if _, err := unpacked(root, l, big); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	root, _ = place(t)
	notes := layer(file{name: "a", header: tar.Header{PAXRecords: map[string]string{xattr + "user.note": strings.Repeat("x", 100)}}})
	if _, err := unpacked(root, Limits{Bytes: 99, Files: 9, Depth: 9, Paths: 1 << 20}, notes); !errors.Is(err, ErrLimit) {
		t.Errorf("attributes: got %v", err)
	}
	root, _ = place(t)
	l := DefaultLimits()
	l.RatioFrom = 1 << 10
	if _, err := unpacked(root, l, append(layer(), make([]byte, 1<<20)...)); !errors.Is(err, ErrLimit) {
		t.Errorf("behind the end: got %v", err)
	}
}

// What is kept of an entry is its name, and not the header that it came in.
func TestNamesAloneAreKept(t *testing.T) {
	var files []file
	for n := range 64 {
		files = append(files, file{name: fmt.Sprint("é", n), header: tar.Header{PAXRecords: map[string]string{"VENDOR.x": strings.Repeat("x", 1<<20-100)}}})
	}
	packed := layer(files...)
	root, _ := place(t)
	tr, err := Open(root, DefaultLimits(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	heap := func() int64 {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // below 2^63
	}
	before := heap()
	if _, err := tr.Apply(bytes.NewReader(packed)); err != nil {
		t.Fatal(err)
	}
	if more := heap() - before; more > 8<<20 {
		t.Errorf("64 names keep %d bytes", more)
	}
	goruntime.KeepAlive(packed)
}

// Deleting the same again and again takes no longer the more there is.
func TestDeletionsOfTheSame(t *testing.T) {
	const many = 10_000
	files := []file{{name: "d/"}}
	for n := range many {
		files = append(files, file{name: fmt.Sprint("d/", n)})
	}
	for range many {
		files = append(files, file{name: "d/.wh..wh..opq"}, file{name: ".wh.d"})
	}
	root, _ := place(t)
	start := time.Now()
	counts, err := unpacked(root, DefaultLimits(), layer(file{name: "d/lower", content: "x"}), layer(files...))
	if err != nil || counts.Missing > 0 {
		t.Fatalf("%+v, %v", counts, err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	if names := tree(t, root); len(names) < many || strings.Contains(strings.Join(names, " "), "lower") {
		t.Errorf("%d names", len(names))
	}
}

// Whatever an archive says, nothing outside of the root is touched, and inside there is only what an image may have.
func FuzzUnpack(f *testing.F) {
	for _, l := range [][]byte{
		layer(file{name: "a/b", content: "x"}, file{name: "l", content: "-> ../.."}, file{name: "h", content: "=> a/b"}, file{name: "a/.wh.b"}),
		layer(file{name: "l", content: "-> .."}, file{name: "l/.wh..wh..opq"}), layer(file{name: "../x", content: "y"}),
		layer(file{name: "s", content: "x", header: tar.Header{Mode: 0o4755}}, file{name: "p", header: tar.Header{Typeflag: tar.TypeFifo}}),
	} {
		f.Add(l, l)
	}
	limits := Limits{Bytes: 1 << 20, Files: 1000, Depth: 16, Paths: 1 << 20, Ratio: 100, RatioFrom: 1 << 20}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		root, untouched := place(t)
		counts, err := unpacked(root, limits, one, two)
		untouched()
		if err == nil && (counts.Bytes > limits.Bytes || counts.Files > limits.Files) {
			t.Errorf("%+v", counts)
		}
		werr := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // a folder that this user can't read
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			kinds := []fs.FileMode{0, fs.ModeDir, fs.ModeSymlink}
			if m := info.Mode(); !slices.Contains(kinds, m.Type()) || m&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("%s is %v", path, m)
			}
			return nil
		})
		if werr != nil {
			t.Error(werr)
		}
	})
}
