// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/beneath"
)

// Layout is an OCI layout (image-spec, image-layout.md) that is being written. Its layers aren't compressed: engines do that when they push.
type Layout struct {
	dir   *os.Root
	above *os.File // that it was made in
	name  string   // there
}

// Blob is a file of one, by what it has.
type Blob struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// NewLayout begins one in a folder that isn't there yet, which may be made in another user's: that one can give its name to another later.
func NewLayout(dir string) (*Layout, error) {
	above, err := os.OpenFile(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	l := &Layout{above: above, name: filepath.Base(dir)}
	if err := unix.Mkdirat(int(above.Fd()), l.name, 0o755); err != nil {
		return nil, errors.Join(&os.PathError{Op: "mkdir", Path: dir, Err: err}, above.Close())
	}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.Remove(), above.Close())
	}
	return l, nil
}

func (l *Layout) open() error {
	own, err := beneath.Fresh(int(l.above.Fd()), l.name, 0o755)
	if err != nil {
		return err
	}
	defer own.Close()
	if l.dir, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", own.Fd())); err != nil {
		return err
	}
	return l.dir.MkdirAll("blobs/sha256", 0o755)
}

// Close lets go of the folder.
func (l *Layout) Close() error { return errors.Join(l.dir.Close(), l.above.Close()) }

// Remove takes away what was written, and the folder if it is where it was made. It goes by no path: whoever may write a folder above could
// have it lead to another of that name.
func (l *Layout) Remove() (err error) {
	if l.dir != nil {
		for _, name := range []string{"blobs", "index.json", "oci-layout"} {
			err = errors.Join(err, l.dir.RemoveAll(name))
		}
	}
	if uerr := unix.Unlinkat(int(l.above.Fd()), l.name, unix.AT_REMOVEDIR); uerr != nil {
		err = errors.Join(err, &os.PathError{Op: "rmdir", Path: l.name, Err: uerr})
	}
	return err
}

// Copy writes a finished one anew, to a folder as NewLayout makes it. After an error nothing of it is left.
func Copy(from, to string) (*Layout, error) {
	l, err := NewLayout(to)
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(os.DirFS(from), ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return l.copyFile(filepath.Join(from, at), at)
	})
	if err != nil {
		return nil, errors.Join(err, l.Remove(), l.Close())
	}
	return l, nil
}

func (l *Layout) copyFile(from, at string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := l.dir.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o644), out.Sync(), out.Close())
}

// Layer writes one.
func (l *Layout) Layer(write func(io.Writer) error) (Blob, error) { return l.blob(layerType, write) }

func (l *Layout) blob(kind string, write func(io.Writer) error) (b Blob, err error) {
	const half = ".blob" // one at a time
	f, err := l.dir.OpenFile(half, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return b, err
	}
	sum, out := sha256.New(), bufio.NewWriterSize(f, 1<<18)
	err = write(io.MultiWriter(out, sum))
	info, serr := f.Stat()
	if err = errors.Join(err, out.Flush(), serr); err == nil {
		info, err = f.Stat()
	}
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return b, errors.Join(err, l.dir.Remove(half))
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	return Blob{MediaType: kind, Digest: "sha256:" + hash, Size: info.Size()}, l.dir.Rename(half, "blobs/sha256/"+hash)
}

func (l *Layout) json(kind string, v any) (Blob, error) {
	return l.blob(kind, func(to io.Writer) error { return json.NewEncoder(to).Encode(v) })
}

// Config is an image's configuration (image-spec, config.md).
type Config struct {
	Created      time.Time       `json:"created"`
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Variant      string          `json:"variant,omitempty"`
	Config       json.RawMessage `json:"config"`
	RootFS       RootFS          `json:"rootfs"`
	History      []Step          `json:"history"`
}

// RootFS names the layers by their content.
type RootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// Step is how one layer came to be.
type Step struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// Finish writes what makes the layers, the lowest first, an image. Until then the folder is none.
func (l *Layout) Finish(name string, c Config, layers ...Blob) error {
	c.RootFS.Type = "layers"
	for _, b := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, b.Digest)
	}
	config, err := l.json(configType, c)
	if err != nil {
		return err
	}
	manifest, err := l.json(manifestType, map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []Blob{manifest}})
	if err != nil {
		return err
	}
	return errors.Join(
		l.dir.WriteFile("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644),
		l.dir.WriteFile("index.json", index, 0o644),
	)
}

// Archive writes a layout as one tar.
func Archive(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	return errors.Join(w.AddFS(os.DirFS(dir)), w.Close())
}
