// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"agentrun/images"
)

// layerTar is a layer. A name with "/" at its end is a folder, content "-> x" a link, "=> x" a hard link; more says what else headers have.
func layerTar(t testing.TB, more map[string]tar.Header, files ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := more[f[0]]
		h.Name = f[0]
		content := ""
		switch {
		case h.Typeflag != 0:
		case strings.HasSuffix(f[0], "/"):
			h.Typeflag = tar.TypeDir
		case strings.HasPrefix(f[1], "-> "):
			h.Typeflag, h.Linkname = tar.TypeSymlink, f[1][3:]
		case strings.HasPrefix(f[1], "=> "):
			h.Typeflag, h.Linkname = tar.TypeLink, f[1][3:]
		default:
			h.Typeflag, content = tar.TypeReg, f[1]
		}
		if h.Size = int64(len(content)); h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// probeLayer has the probe, and files that belong to the user app alone.
func probeLayer(t testing.TB, mark string) []byte {
	t.Helper()
	b, err := os.ReadFile(probeBin)
	if err != nil {
		t.Fatal(err)
	}
	return layerTar(t, map[string]tar.Header{"srv/own": {Mode: 0o600, Uid: 4321, Gid: 4321}, "srv/": {Mode: 0o700, Uid: 4321, Gid: 4321}},
		[2]string{"bin/probe", string(b)}, [2]string{"etc/mark", mark}, [2]string{"etc/passwd", "root:x:0:0::/:/\napp:x:4321:4321::/:/\n"},
		[2]string{"srv/"}, [2]string{"srv/own", "app's own"}, [2]string{"tmp/"}, [2]string{"etc/gone", "x"})
}

// picture makes an image of layers.
func picture(t testing.TB, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err == nil {
			img, err = mutate.AppendLayers(img, layer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := img.ConfigFile()
	if err == nil {
		c = c.DeepCopy()
		c.OS, c.Architecture, c.Config = "linux", goarch(), config
		img, err = mutate.ConfigFile(img, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// probePicture runs the probe, which says hello.
func probePicture(t testing.TB, mark string) v1.Image {
	t.Helper()
	return picture(t, v1.Config{
		Env: []string{"PATH=/opt/bin:/bin", "MARK=" + mark, "HOME=/root", "LD_PRELOAD=/none.so"}, Entrypoint: []string{"probe"}, Cmd: []string{"cat", "/etc/mark"}, WorkingDir: "/etc",
	}, probeLayer(t, mark), layerTar(t, nil, [2]string{"etc/.wh.gone"}, [2]string{"opt/bin/two", "2"}))
}

// derived is an image with layers above another's.
func derived(t testing.TB, of v1.Image, layers ...[]byte) v1.Image {
	t.Helper()
	for _, l := range layers {
		var err error
		if of, err = mutate.AppendLayers(of, layerOf(t, l)); err != nil {
			t.Fatal(err)
		}
	}
	return of
}

// aRegistry is one on the loopback. before sees each request, and may answer it.
func aRegistry(t testing.TB, before func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t testing.TB, ref string, img v1.Image) v1.Hash {
	t.Helper()
	to, err := name.ParseReference(ref)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func configDigest(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// dockerSaved is a file as docker save writes it.
func dockerSaved(t testing.TB, called map[string]v1.Image) string {
	t.Helper()
	all := map[name.Tag]v1.Image{}
	for n, img := range called {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		all[tag] = img
	}
	path := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.MultiWriteToFile(path, all); err != nil {
		t.Fatal(err)
	}
	return path
}

// savedAs is dockerSaved with names that no docker takes.
func savedAs(t testing.TB, img v1.Image, names ...string) string {
	t.Helper()
	layers, err := img.Layers()
	config, cerr := img.RawConfigFile()
	tags, jerr := json.Marshal(names)
	if err := errors.Join(err, cerr, jerr); err != nil {
		t.Fatal(err)
	}
	var files [][2]string
	var list []string
	for n, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		files = append(files, [2]string{fmt.Sprint(n), string(text)})
		list = append(list, fmt.Sprintf("%q", fmt.Sprint(n)))
	}
	manifest := fmt.Sprintf(`[{"Config": "config.json", "RepoTags": %s, "Layers": [%s]}]`, tags, strings.Join(list, ", "))
	return write(t, filepath.Join(t.TempDir(), "saved.tar"),
		string(layerTar(t, nil, append(files, [2]string{"manifest.json", manifest}, [2]string{"config.json", string(config)})...)), 0o600)
}

// longPaths is what docker save would write of a layer with 35,000 links, whose names and targets have 4 KiB each; the same 350 again and
// again, which is faster made.
func longPaths(t testing.TB) string {
	t.Helper()
	var long string
	for i := range 15 {
		long += strings.Repeat(string(rune('a'+i)), 255) + "/"
	}
	var files [][2]string
	for i := range 350 {
		files = append(files, [2]string{fmt.Sprintf("%s%0208d", long, i), "-> " + strings.Repeat(fmt.Sprintf("%09d/", i*7919), 409)})
	}
	part := layerTar(t, nil, files...)
	end := part[len(part)-1024:]
	part = part[:len(part)-1024]
	member := func(text []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(text)
		if err = errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	sum, packed := sha256.New(), bytes.Repeat(member(part), 100)
	for range 100 {
		sum.Write(part)
	}
	sum.Write(end)
	packed = append(packed, member(end)...)
	config := fmt.Sprintf(`{"os": "linux", "architecture": %q, "rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, goarch(), sum.Sum(nil))
	return write(t, filepath.Join(t.TempDir(), "saved.tar"), string(layerTar(t, nil,
		[2]string{"manifest.json", `[{"Config": "config.json", "RepoTags": ["long:1"], "Layers": ["layer"]}]`},
		[2]string{"config.json", config}, [2]string{"layer", string(packed)})), 0o600)
}

// signatureOf is an image as cosign keeps signatures in.
func signatureOf(t testing.TB, statement []byte, signature string) v1.Image {
	t.Helper()
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:       static.NewLayer(statement, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": signature},
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func (p place) images() []images.Info {
	p.t.Helper()
	return asked[[]images.Info](p, "image", "ls")
}

// stored is what the node's folder of images has, without its index.
func (p place) stored() (names []string) {
	dirs, _ := os.ReadDir(filepath.Join(p.state, "images"))
	for _, d := range dirs {
		if d.IsDir() {
			names = append(names, d.Name())
		}
	}
	return names
}

// imageRecords are what the audit has of images, as "change names".
func (p place) imageRecords() (all []string) {
	p.t.Helper()
	for _, e := range p.audit() {
		if e.Kind == "image" {
			all = append(all, strings.TrimSpace(fmt.Sprint(e.Data["change"], " ", strings.Trim(fmt.Sprint(e.Data["names"]), "[]<>nil"))))
		}
	}
	return all
}

// does runs an image's probe, which must be started, and returns what it says.
func (p place) does(flags []string, argv ...string) map[string]string {
	p.t.Helper()
	r := p.do(slices.Concat([]string{"exec", "--no-gateway", "--no-daemon"}, flags, []string{"--"}, argv)...)
	if r.exit >= 124 {
		p.t.Fatalf("exec %v %v: exit %d\n%s%s", flags, argv, r.exit, r.stdout, r.stderr)
	}
	return answers(r.stdout)
}

// configured writes a config.yaml and returns the flag that names it.
func (p place) configured(text string) []string {
	p.t.Helper()
	path := filepath.Join(filepath.Dir(p.state), "config.yaml")
	write(p.t, path, text, 0o600)
	return []string{"--config", path}
}

func asJSON[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}
