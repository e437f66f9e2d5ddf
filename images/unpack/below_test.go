// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/images"
	"agentrun/images/based"
)

// all that there is of a tree, but for how many names its files have elsewhere, which changes their ctime.
func all(t testing.TB, root string) (lines []string, inodes map[string]uint64) {
	t.Helper()
	inodes = map[string]uint64{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		name := strings.TrimPrefix(path, root)
		what := ""
		switch info.Mode().Type() {
		case 0:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what = fmt.Sprintf("%x", sha256.Sum256(text))
			list := make([]byte, 4096)
			if n, err := unix.Llistxattr(path, list); err == nil {
				what += fmt.Sprintf(" %q", list[:n])
			}
		case fs.ModeSymlink:
			if what, err = os.Readlink(path); err != nil {
				return err
			}
		}
		if !d.IsDir() {
			inodes[name] = st.Ino
			if other, again := first[st.Ino]; again {
				what += " is " + other
			} else {
				first[st.Ino] = name
			}
		}
		size := info.Size()
		if d.IsDir() {
			size = 0
		}
		lines = append(lines, fmt.Sprint(name, " ", info.Mode(), " ", st.Uid, ":", st.Gid, " ", size, " ", info.ModTime().UnixNano(), " ", what))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, inodes
}

// over unpacks layers over a base, and completes them by it.
func over(t testing.TB, root, base string, l Limits, has images.Counts, n int, layers ...[]byte) (images.Counts, error) {
	t.Helper()
	tr, err := Open(root, l, os.Geteuid() == 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tr.Over(has, n)
	for _, layer := range layers {
		if _, err := tr.Apply(bytes.NewReader(layer)); err != nil {
			return has, err
		}
	}
	counts, err := tr.Done()
	if err != nil {
		return counts, err
	}
	text, err := json.Marshal(tr.Delta())
	var d images.Delta
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	missing, err := based.Complete(t.Context(), root, base, d, os.Geteuid() == 0)
	counts.Missing += missing
	return counts, err
}

// asWhole holds layers that are unpacked over others, which are here already, against all of them in one folder: the same comes of it, or
// both are refused; and nothing of those below is changed.
func asWhole(t testing.TB, l Limits, layers ...[]byte) {
	t.Helper()
	whole, _ := place(t)
	wantCounts, wantErr := unpacked(whole, l, layers...)
	for n := 1; n <= len(layers); n++ {
		base, _ := place(t)
		has, err := unpacked(base, l, layers[:n]...)
		if err != nil {
			return // it is none
		}
		before, below := all(t, base)
		root, untouched := place(t)
		counts, err := over(t, root, base, l, has, n, layers[n:]...)
		untouched()
		after, _ := all(t, base)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%d of %d layers: below: %s", n, len(layers), diff)
		}
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%d of %d layers: %v, whole %v", n, len(layers), err, wantErr)
		}
		if err != nil || wantErr != nil {
			continue
		}
		if diff := cmp.Diff(wantCounts, counts); diff != "" {
			t.Errorf("%d of %d layers: %s", n, len(layers), diff)
		}
		want, _ := all(t, whole)
		got, above := all(t, root)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d of %d layers: %s", n, len(layers), diff)
		}
		if n == len(layers) {
			if diff := cmp.Diff(below, above); diff != "" {
				t.Errorf("not the same files: %s", diff)
			}
		}
	}
}

// rich is a base with something of everything.
func rich() []byte {
	return layer(file{name: "./", header: tar.Header{Mode: 0o750}}, file{name: "etc/", header: tar.Header{Mode: 0o711, Uid: 3, Gid: 4}}, file{name: "etc/passwd", content: "root", header: tar.Header{Uid: 5}},
		file{name: "l", content: "-> .."}, file{name: "d/", header: tar.Header{Mode: 0o1777}}, file{name: "d/x", content: "x", header: tar.Header{Mode: 0o400, PAXRecords: map[string]string{xattr + "user.note": "z"}}},
		file{name: "d/h", content: "=> d/x"}, file{name: "d/s/", header: tar.Header{Mode: 0o711}}, file{name: "d/s/t/u", content: "u"},
		file{name: "d/s/l", content: "-> t"}, file{name: "f", content: "f"}, file{name: "g", content: "=> l"}, file{name: "latin\xe9", content: "1"},
		file{name: "bin/sh", content: "sh", header: tar.Header{Mode: 0o755}})
}

// What upper layers do to lower ones, which they can't see.
func TestOver(t *testing.T) {
	for name, files := range map[string][]file{
		"nothing":                           {},
		"new files":                         {{name: "d/new", content: "n"}, {name: "d/s/t/new", content: "n"}, {name: "etc/new/deep/er", content: "n"}},
		"a file again":                      {{name: "d/x", content: "again"}},
		"a file again, with a mode alone":   {{name: "d/x", content: "x", header: tar.Header{Mode: 0o777}}, {name: "f", content: "f", header: tar.Header{Uid: 99}}},
		"a folder again":                    {{name: "d/", header: tar.Header{Mode: 0o700, Uid: 9}}, {name: "etc/"}, {name: "./", header: tar.Header{Mode: 0o701}}},
		"links":                             {{name: "h2", content: "=> d/x"}, {name: "d/s/h3", content: "=> f"}, {name: "h4", content: "=> h2"}, {name: "h5", content: "=> l"}},
		"links whose names change":          {{name: "h2", content: "=> d/x"}, {name: "d/x", content: "new"}, {name: "h3", content: "=> d/x"}, {name: "h3", content: "over"}, {name: "h2/"}, {name: "h2/y", content: "y"}},
		"links to what goes":                {{name: "h2", content: "=> d/x"}, {name: ".wh.d"}},
		"a link to what has gone":           {{name: ".wh.d"}, {name: "h2", content: "=> d/x"}},
		"a link to what was emptied":        {{name: "d/.wh..wh..opq"}, {name: "h2", content: "=> d/x"}},
		"a link to what was replaced":       {{name: "d", content: "now a file"}, {name: "h2", content: "=> d/x"}},
		"a link in the place of its folder": {{name: "d", content: "=> d/x"}},
		"a link through a link":             {{name: "h2", content: "=> d/s/l/u"}},
		"a link to a folder":                {{name: "h2", content: "=> d/s"}},
		"a link to a folder, then over it":  {{name: "h2", content: "=> d/s"}, {name: "h2", content: "over"}},
		"a link to nothing":                 {{name: "h2", content: "=> d/nothing"}, {name: "h3", content: "=> no/thing"}},
		"a link to nothing, by a file":      {{name: "h2", content: "=> f/x"}},
		"links to itself":                   {{name: "d/x", content: "=> d/x"}},
		"a link over another":               {{name: "d/h", content: "=> f"}, {name: "d/h", content: "=> d/x"}},
		"a link behind a placeholder":       {{name: "h2", content: "=> d/x"}, {name: "h2/x", content: "x"}},
		"whiteouts":                         {{name: "d/.wh.x"}, {name: ".wh.f"}, {name: "d/s/.wh.t"}, {name: ".wh.l"}},
		"whiteouts of nothing":              {{name: "d/.wh.no"}, {name: "no/.wh.no"}, {name: "no/.wh..wh..opq"}, {name: "d/.wh.no"}, {name: ".wh.f"}, {name: ".wh.f"}, {name: "d/s/no/.wh..wh..opq"}},
		"a whiteout of all, then more":      {{name: ".wh.d"}, {name: "d/new", content: "n"}},
		"more, then a whiteout of all":      {{name: "d/new", content: "n"}, {name: ".wh.d"}},
		"a folder stays, what is in it too": {{name: "d/s/t/new", content: "n"}, {name: ".wh.d"}, {name: "d/s/t/newer", content: "n"}},
		"a folder, then its whiteout":       {{name: "d/", header: tar.Header{Mode: 0o700}}, {name: ".wh.d"}, {name: "d/s/", header: tar.Header{Mode: 0o711}}},
		"opaque":                            {{name: "d/.wh..wh..opq"}},
		"opaque and more":                   {{name: "d/y", content: "y"}, {name: "d/.wh..wh..opq"}, {name: "d/s/z", content: "z"}},
		"opaque of the root":                {{name: "new/a", content: "a"}, {name: ".wh..wh..opq"}, {name: "b", content: "b"}},
		"opaque twice":                      {{name: "d/.wh..wh..opq"}, {name: "d/.wh..wh..opq"}, {name: "d/.wh.x"}},
		"a file for a folder":               {{name: "d", content: "file"}, {name: "d/"}, {name: "d/only", content: "o"}},
		"a folder for a file":               {{name: "f/"}, {name: "f/in", content: "i"}, {name: "l/"}, {name: "l/in", content: "i"}},
		"a link for a folder":               {{name: "d", content: "-> etc"}},
		"behind a link":                     {{name: "l/x", content: "x"}},
		"behind a file":                     {{name: "f/x", content: "x"}},
		"behind a link further down":        {{name: "d/s/l/x", content: "x"}},
		"a folder behind a link":            {{name: "l/x/"}},
		"a whiteout behind a link":          {{name: "l/.wh.x"}},
		"opaque behind a link":              {{name: "l/.wh..wh..opq"}},
		"opaque behind a link, deeper":      {{name: "d/s/l/no/.wh..wh..opq"}},
		"a whiteout behind a file":          {{name: "f/no/.wh.x"}},
		"behind a link that has gone":       {{name: ".wh.l"}, {name: "l/x", content: "x"}, {name: "l/.wh.y"}},
		"behind a folder for a link":        {{name: "l/"}, {name: "l/no/x", content: "x"}, {name: "l/.wh.y"}, {name: "l/z/.wh.y"}},
		"names of any bytes":                {{name: ".wh.latin\xe9"}, {name: "n\xff/\n\"%41", content: "x"}, {name: "e\xfe", content: "=> f"}, {name: "é", content: "é"}},
		"no name":                           {{name: "d/.wh..."}, {name: "x", content: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			asWhole(t, DefaultLimits(), rich(), layer(files...))
			asWhole(t, DefaultLimits(), rich(), layer(files...), layer(file{name: "d/x", content: "last"}, file{name: "d/s/.wh.l"}, file{name: "e/", header: tar.Header{Mode: 0o700}}))
			asWhole(t, DefaultLimits(), rich(), layer(file{name: "d/s/more", content: "m"}, file{name: "etc/passwd", content: "=> d/x"}), layer(files...), layer(file{name: ".wh.d"}, file{name: "d/again", content: "a"}))
			asWhole(t, Limits{Bytes: 24, Files: 17, Depth: 5, Paths: 1 << 20}, rich(), layer(files...))
		})
	}
}

// Each entry after each other, in layers of one and two: every seventh of three.
func TestOverEachOther(t *testing.T) {
	some := []file{
		{name: "a/"}, {name: "a", content: "file"}, {name: "a", content: "-> b"}, {name: "a", content: "=> b/c"}, {name: "a/b", content: "x"}, {name: "a/b/c", content: "x"}, {name: "b/c", content: "c", header: tar.Header{Mode: 0o600}},
		{name: ".wh.a"}, {name: "a/.wh.b"}, {name: "a/.wh..wh..opq"}, {name: "a/b/", header: tar.Header{Mode: 0o711}}, {name: "b/c", content: "=> a/b"}, {name: "a/b/.wh.c"}, {name: "b/.wh..wh..opq"},
	}
	base := layer(file{name: "a/b/c", content: "c"}, file{name: "b/c", content: "-> d"})
	n := 0
	for _, one := range some {
		for _, two := range some {
			for _, three := range some {
				if n++; n%7 != 0 {
					continue
				}
				asWhole(t, DefaultLimits(), base, layer(one), layer(two, three))
				if t.Failed() {
					t.Fatalf("%s %s, then %s %s and %s %s", one.name, one.content, two.name, two.content, three.name, three.content)
				}
			}
		}
	}
}

// Layers of whatever names and kinds, one over the others, are what they are in one folder. Each two bytes are an entry.
func FuzzOver(f *testing.F) {
	f.Add([]byte{0, 5, 1, 8, 255, 0, 3, 5, 2, 8})
	f.Add([]byte{4, 10, 7, 3, 255, 255, 0, 11, 5, 0, 255, 1, 3, 7})
	f.Add([]byte{0, 10, 0, 12, 255, 9, 0, 11, 6, 0, 254, 2, 10, 10})
	names := []string{"a", "b", "c", "a/a", "a/b", "a/c", "b/a", "b/b", "c/a", "a/a/a", "a/a/b", "a/b/c", "b/a/a", "."}
	f.Fuzz(func(t *testing.T, ops []byte) {
		var layers [][]byte
		var files []file
		for len(ops) > 1 && len(layers) < 6 {
			if ops[0] > 240 {
				layers, files, ops = append(layers, layer(files...)), nil, ops[1:]
				continue
			}
			n := names[int(ops[1])%len(names)]
			other := names[int(ops[1])/len(names)%len(names)]
			dir, base := filepath.Split(n)
			switch op := ops[0]; op % 10 {
			case 0, 1:
				files = append(files, file{name: n, content: string('a' + rune(op/10))})
			case 2, 3:
				files = append(files, file{name: n + "/", header: tar.Header{Mode: 0o700 + int64(op/10)}})
			case 4:
				files = append(files, file{name: n, content: "-> " + other})
			case 5, 6:
				files = append(files, file{name: n, content: "=> " + other})
			case 7, 8:
				files = append(files, file{name: dir + whiteout + base})
			case 9:
				files = append(files, file{name: n + "/" + opaque})
			}
			ops = ops[2:]
		}
		asWhole(t, Limits{Bytes: 1 << 10, Files: 40, Depth: 4, Paths: 1 << 20}, append(layers, layer(files...))...)
	})
}
