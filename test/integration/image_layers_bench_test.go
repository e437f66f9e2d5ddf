// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// fetching counts what is written.
type fetching struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *fetching) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// BenchmarkImageAbove pulls an image of 1 MB above one of 100 MB, 5000 files that don't compress, from a registry on the loopback: where
// the latter is here, and where it isn't, as any pull was before.
func BenchmarkImageAbove(b *testing.B) {
	random := rand.NewChaCha8([32]byte{})
	files := func(dir string, n, size int) (all [][2]string) {
		for i := range n {
			text := make([]byte, size)
			_, _ = random.Read(text)
			all = append(all, [2]string{fmt.Sprintf("%s/%d/%d", dir, i%50, i), string(text)})
		}
		return all
	}
	base := picture(b, v1.Config{}, layerTar(b, nil, files("usr/lib", 5000, 20_000)...))
	above := derived(b, base, layerTar(b, nil, files("srv/app", 50, 20_000)...))
	var fetched atomic.Int64
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	host := aRegistry(b, func(w http.ResponseWriter, r *http.Request) bool {
		store.ServeHTTP(&fetching{w, &fetched}, r)
		return true
	})
	push(b, host+"/base:1", base)
	push(b, host+"/above:1", above)
	for name, with := range map[string]bool{"whole": false, "above": true} {
		b.Run(name, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "state")
			image := func(verb, ref string) {
				if out, err := exec.Command(agentrun, "--state-dir", dir, "--run-dir", filepath.Join(dir, "run"), "image", verb, ref).CombinedOutput(); err != nil {
					b.Fatalf("%s %s: %v\n%s", verb, ref, err, out)
				}
			}
			if with {
				image("pull", host+"/base:1")
			}
			before := blocksOf(b, filepath.Join(dir, "images"))
			fetched.Store(0)
			var more int64
			for b.Loop() {
				image("pull", host+"/above:1")
				b.StopTimer()
				more += blocksOf(b, filepath.Join(dir, "images")) - before
				image("rm", host+"/above:1")
				b.StartTimer()
			}
			b.ReportMetric(float64(fetched.Load())/float64(b.N)/1e6, "MB-fetched")
			b.ReportMetric(float64(more)/float64(b.N)/1e6, "MB-on-disk")
		})
	}
}

// blocksOf are the bytes of blocks below a folder, each file's once.
func blocksOf(b *testing.B, dir string) (n int64) {
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			n += st.Blocks * 512
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Fatal(err)
	}
	return n
}
