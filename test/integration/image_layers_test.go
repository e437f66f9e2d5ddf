// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// rootOf is where the node has an image's files.
func (p place) rootOf(img v1.Image) string {
	p.t.Helper()
	return filepath.Join(p.state, "images", strings.Replace(configDigest(p.t, img), ":", "-", 1), "rootfs")
}

// filesOf are all files of an image, with all that they are but the number of their names.
func (p place) filesOf(img v1.Image) (all []string) {
	p.t.Helper()
	root := p.rootOf(img)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(path)
		to, _ := os.Readlink(path)
		attrs := make([]byte, 1024)
		n, _ := unix.Llistxattr(path, attrs)
		st := info.Sys().(*syscall.Stat_t)
		all = append(all, fmt.Sprintf("%s %v %d:%d %v %x %s %q", strings.TrimPrefix(path, root), info.Mode(), st.Uid, st.Gid, info.ModTime().UnixNano(), sha256.Sum256(text), to, attrs[:max(n, 0)]))
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// sameFile tells whether two images have one file under a name.
func (p place) sameFile(a, b v1.Image, name string) bool {
	p.t.Helper()
	one, err := os.Lstat(filepath.Join(p.rootOf(a), name))
	two, err2 := os.Lstat(filepath.Join(p.rootOf(b), name))
	if err != nil || err2 != nil {
		p.t.Fatal(err, err2)
	}
	return os.SameFile(one, two)
}

// blobsAsked is a registry that notes of which blobs it was asked.
func blobsAsked(t testing.TB) (host string, since func() []string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	host = aRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if _, digest, blob := strings.Cut(r.URL.Path, "/blobs/"); blob && r.Method == http.MethodGet {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, digest)
		}
		return false
	})
	return host, func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { asked = nil }()
		return asked
	}
}

func blobs(t testing.TB, img v1.Image, from int) (all []string) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers[from:] {
		h, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.String())
	}
	return append(all, configDigest(t, img))
}

// upper is a layer that does something of everything to probePicture.
func upper(t testing.TB, mark string) []byte {
	t.Helper()
	return layerTar(t, map[string]tar.Header{"srv/own": {Mode: 0o604, Uid: 4321, Gid: 4321}}, [2]string{"etc/mark", mark}, [2]string{"opt/bin/.wh.two"}, [2]string{"opt/more", "more"},
		[2]string{"bin/again", "=> bin/probe"}, [2]string{"srv/own", "app's own"}, [2]string{"etc/link", "-> mark"})
}

// An image whose first layers are another one, which is here, shares that one's files, and only the others are fetched. Neither needs the other.
func TestM2ImageLayersOnce(t *testing.T) {
	p := newPlace(t)
	host, since := blobsAsked(t)
	base := probePicture(t, "base")
	one := derived(t, base, upper(t, "one"))
	two := derived(t, one, layerTar(t, nil, [2]string{"etc/mark", "two"}, [2]string{"srv/.wh..wh..opq"}))
	push(t, host+"/base:1", base)
	push(t, host+"/one:1", one)
	push(t, host+"/two:1", two)
	p.must("image", "pull", host+"/base:1")
	if got := since(); !slices.Equal(got, append([]string{configDigest(t, base)}, blobs(t, base, 0)[:2]...)) {
		t.Fatalf("the base: asked for %v", got)
	}
	before := p.filesOf(base)
	for _, c := range []struct {
		name, says string
		img        v1.Image
		from       int
	}{
		{"one", "2 of 3 layers are there, in " + configDigest(t, base), one, 2}, {"two", "3 of 4 layers are there, in " + configDigest(t, one), two, 3},
		{"two", "4 of 4 layers are there, in " + configDigest(t, two), two, 4},
	} {
		r := p.must("image", "pull", fmt.Sprintf("%s/%s:1", host, c.name))
		want := blobs(t, c.img, c.from)
		got := since()
		slices.Sort(want)
		slices.Sort(got)
		if !strings.Contains(r.stderr, c.says) || !slices.Equal(got, want) {
			t.Errorf("%s: asked for %v, want %v: %s", c.name, got, want, r.stderr)
		}
	}
	// As pulled whole.
	alone := newPlace(t)
	alone.must("image", "pull", "-q", host+"/two:1")
	if diff := cmp.Diff(alone.filesOf(two), p.filesOf(two)); diff != "" {
		t.Errorf("another than whole: %s", diff)
	}
	got, want := p.images()[0], alone.images()[0]
	if diff := cmp.Diff(want.Content, got.Content); diff != "" || !slices.Equal(want.Layers, got.Layers) {
		t.Errorf("counted otherwise than whole: %s, %v, %v", diff, want.Layers, got.Layers)
	}
	for name, shared := range map[string]bool{"bin/probe": true, "etc/passwd": true, "etc/mark": false, "srv/own": false} {
		if p.sameFile(base, one, name) != shared {
			t.Errorf("%s: want one file: %v", name, shared)
		}
	}
	// In each ring, whatever the run changes is its own; the pages are those of all.
	for _, ring := range []string{"1", "2", "3"} {
		if got := p.does([]string{"--ring", ring, "--no-entrypoint", "--image", host + "/one:1"}, "/bin/again", "write", "/etc/passwd", "evil", ",", "unlink", "/bin/probe", ",", "cat", "/etc/mark"); got["cat /etc/mark"] != "value=one" ||
			(got["write /etc/passwd evil"] == "ok") != (ring == "1") || (got["unlink /bin/probe"] == "ok") != (ring == "1") {
			t.Errorf("ring %s: %v", ring, got)
		}
	}
	begin := func(name, ref string) *told {
		return p.begin(name, p.at(prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--no-entrypoint", "--image", ref}}, "/bin/probe", "live")))
	}
	a, b := begin("a", host+"/base:1"), begin("b", host+"/two:1")
	if shared, private := pages(t, b.seen().PID, "/bin/probe"); shared == 0 || private > shared {
		t.Errorf("runs of two images: %d KiB shared, %d their own", shared, private)
	}
	a.quit()
	b.quit()
	if diff := cmp.Diff(before, p.filesOf(base)); diff != "" {
		t.Errorf("the base: %s", diff)
	}
	of := p.filesOf(one)
	p.must("image", "rm", host+"/base:1")
	p.must("image", "rm", host+"/two:1")
	p.must("image", "gc")
	if diff := cmp.Diff(of, p.filesOf(one)); diff != "" || len(p.stored()) != 1 {
		t.Errorf("without the others: %s, stored %v", diff, p.stored())
	}
	// What is below an image that is here is unpacked whole.
	since()
	p.must("image", "pull", host+"/base:1")
	if diff := cmp.Diff(before, p.filesOf(base)); diff != "" || len(since()) != 3 || p.sameFile(base, one, "bin/probe") {
		t.Errorf("the base again: %s", diff)
	}
	p.must("image", "rm", host+"/one:1")
	if got := p.does([]string{"--image", host + "/base:1"}); got["cat /etc/mark"] != "value=base" {
		t.Errorf("%v", got)
	}
}

// Layers that reach into the image below them: what unpacking whole would refuse is refused, and the other image stays as it is.
func TestThreatTakeoverLayersAboveABase(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	base := derived(t, probePicture(t, "base"), layerTar(t, map[string]tar.Header{"d/x": {Mode: 0o640}}, [2]string{"d/x", "x"}, [2]string{"l", "-> d"}, [2]string{"out", "-> ../../../.."}))
	push(t, host+"/base:1", base)
	p.must("image", "pull", host+"/base:1")
	before := p.filesOf(base)
	for n, c := range []struct {
		what  string
		more  map[string]tar.Header
		files [][2]string
		want  string
	}{
		{"a file behind its link", nil, [][2]string{{"l/x", "y"}}, "on the way"},
		{"a file behind its link out", nil, [][2]string{{"out/agentrun-escaped", "y"}}, "on the way"},
		{"a folder behind its file", nil, [][2]string{{"d/x/y/"}}, "on the way"},
		{"a deletion behind its link", nil, [][2]string{{"l/.wh.x"}}, "on the way"},
		{"all deleted behind its link", nil, [][2]string{{"l/.wh..wh..opq"}}, "on the way"},
		{"a hard link through its link", nil, [][2]string{{"h", "=> l/x"}}, "hard link"},
		{"a hard link to its folder", nil, [][2]string{{"h", "=> d"}}, "hard link"},
		{"a hard link to nothing of it", nil, [][2]string{{"h", "=> d/y"}, {"h", "over"}}, "hard link"},
		{"a hard link to what it had", nil, [][2]string{{".wh.d"}, {"h", "=> d/x"}}, "hard link"},
		{"its file again", map[string]tar.Header{"d/x": {Mode: 0o777, Uid: 1, Gid: 1, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}}, [][2]string{{"d/x", "evil"}}, ""},
		{"its file by another name, then again", map[string]tar.Header{"h": {Mode: 0o777, Uid: 1}}, [][2]string{{"h", "=> d/x"}, {"h", "evil"}}, ""},
		{"its file by another name, and the first again", map[string]tar.Header{"d/x": {Mode: 0o777, Uid: 1}}, [][2]string{{"h", "=> d/x"}, {"d/x", "evil"}}, ""},
		{"its folders again", map[string]tar.Header{"d/": {Mode: 0o777, Uid: 1}, "etc/": {Mode: 0o700, Uid: 1}, "./": {Mode: 0o711}}, [][2]string{{"d/"}, {"etc/"}, {"./"}}, ""},
		{"all of it deleted", nil, [][2]string{{".wh..wh..opq"}, {"d/new", "n"}}, ""},
		{"its link deleted, a folder there", nil, [][2]string{{".wh.l"}, {"l/x", "evil"}}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := place{t, p.run, p.state}
			ref := fmt.Sprintf("%s/hostile:%d", host, n)
			img := derived(t, base, layerTar(t, c.more, c.files...))
			push(t, ref, img)
			r := p.do("image", "pull", ref)
			if !strings.Contains(r.stderr, "3 of 4 layers are there") || (r.exit == 0) != (c.want == "") || !strings.Contains(r.stderr, c.want) || c.want != "" && !strings.Contains(r.stderr, "hint: ") {
				t.Errorf("exit %d %s, want %q", r.exit, r.stderr, c.want)
			}
			whole := newPlace(t)
			if w := whole.do("image", "pull", "-q", ref); w.exit != r.exit {
				t.Errorf("exit %d, whole %d: %s", r.exit, w.exit, w.stderr)
			}
			if r.exit == 0 {
				if diff := cmp.Diff(whole.filesOf(img), p.filesOf(img)); diff != "" {
					t.Errorf("another than whole: %s", diff)
				}
				p.must("image", "rm", ref)
			}
			if diff := cmp.Diff(before, p.filesOf(base)); diff != "" || len(p.stored()) != 1 {
				t.Errorf("the base: %s, stored %v", diff, p.stored())
			}
		})
	}
}

// A program that an unsigned image's layers have taken over has written what it liked into that image's root: none of it gets below an
// image that is signed. One signed by the same key is begun with.
func TestThreatTakeoverSignedAboveUnsigned(t *testing.T) {
	p := newPlace(t)
	signer := newSigner(t)
	host := aRegistry(t, nil)
	base := derived(t, probePicture(t, "base"), layerTar(t, nil, [2]string{"x", "good"}))
	one, two := derived(t, base, layerTar(t, nil, [2]string{"one", ""})), derived(t, base, layerTar(t, nil, [2]string{"one", ""}), layerTar(t, nil, [2]string{"two", ""}))
	push(t, host+"/base:1", base)
	p.must("image", "pull", host+"/base:1")
	write(t, filepath.Join(p.rootOf(base), "x"), "evil", 0o644)
	config := p.configured("images: {signed_by: " + signer.public(t) + "}\n")
	for name, img := range map[string]v1.Image{"one": one, "two": two, "base": base} {
		d := push(t, host+"/"+name+":1", img).String()
		push(t, host+"/"+name+":"+sigTag(d), signer.sign(t, d))
	}
	pull := func(name string, img v1.Image) string {
		t.Helper()
		r := p.do(slices.Concat(config, []string{"image", "pull", host + "/" + name + ":1"})...)
		if text, err := os.ReadFile(filepath.Join(p.rootOf(img), "x")); r.exit != 0 || err != nil || string(text) != "good" {
			t.Errorf("%s: exit %d %s, x is %q %v", name, r.exit, r.stderr, text, err)
		}
		return r.stderr
	}
	if said := pull("one", one); strings.Contains(said, "layers are there") {
		t.Errorf("above what nobody signed: %s", said)
	}
	// The image itself, signed since: its files are those that came with the signature, once no run has the others.
	p.must("exec", "-d", "--no-gateway", "--name", "early", "--image", host+"/base:1", "--no-entrypoint", "--", "probe", "sleep", "100")
	if r := p.do(slices.Concat(config, []string{"image", "pull", host + "/base:1"})...); r.exit != 125 || !strings.Contains(r.stderr, "a run uses it") || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("while a run has it: exit %d %s", r.exit, r.stderr)
	}
	p.must("kill", "early")
	eventually(t, hang(), "the run lets go of it", func() bool {
		return p.do(slices.Concat(config, []string{"image", "pull", host + "/base:1"})...).exit == 0
	})
	pull("base", base)
	pull("base", base)
	if said := pull("two", two); !strings.Contains(said, "4 of 5 layers are there") {
		t.Errorf("above what the same key signed: %s", said)
	}
}

// A base may go, or the pull be killed, or others pull above it, at any time.
func TestM2ImageBaseMeanwhile(t *testing.T) {
	p := newPlace(t)
	asked, release := make(chan struct{}, 64), make(chan struct{})
	var slow atomic.Bool
	host := aRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if slow.Load() && strings.Contains(r.URL.Path, "/one/blobs/") && r.Method == http.MethodGet {
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return false
	})
	base := probePicture(t, "base")
	one := derived(t, base, upper(t, "one"))
	push(t, host+"/base:1", base)
	push(t, host+"/one:1", one)
	p.must("image", "pull", host+"/base:1")
	before := p.filesOf(base)
	slow.Store(true)
	begin := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "image", "pull", host+"/one:1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-asked // its configuration
		return cmd
	}
	cmd := begin()
	child := childOf(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, 5*time.Second, "the other program ends", func() bool { return !livesOn(child) })
	p.must("image", "gc")
	if diff := cmp.Diff(before, p.filesOf(base)); diff != "" || len(p.stored()) != 1 {
		t.Errorf("after a kill: %s, stored %v", diff, p.stored())
	}
	cmd = begin()
	p.must("image", "rm", host+"/base:1")
	close(release)
	if err := cmd.Wait(); err != nil {
		t.Errorf("without its base: %v", err)
	}
	slow.Store(false)
	if got := p.does([]string{"--image", host + "/one:1"}); got["cat /etc/mark"] != "value=one" || len(p.stored()) != 1 {
		t.Errorf("%v, stored %v", got, p.stored())
	}
	// Many above one.
	p.must("image", "rm", host+"/one:1")
	p.must("image", "pull", host+"/base:1")
	var all sync.WaitGroup
	for n := range 4 {
		push(t, fmt.Sprintf("%s/many:%d", host, n), derived(t, base, upper(t, fmt.Sprint(n/2))))
		all.Go(func() {
			if r := p.do("image", "pull", fmt.Sprintf("%s/many:%d", host, n)); r.exit != 0 {
				t.Errorf("exit %d %s", r.exit, r.stderr)
			}
		})
	}
	all.Wait()
	for n := range 4 {
		if got := p.does([]string{"--image", fmt.Sprintf("%s/many:%d", host, n)}); got["cat /etc/mark"] != fmt.Sprintf("value=%d", n/2) {
			t.Errorf("many:%d: %v", n, got)
		}
	}
	if diff := cmp.Diff(before, p.filesOf(base)); diff != "" {
		t.Errorf("the base: %s", diff)
	}
}

// What isn't whole, isn't this user's, or was unpacked before it was noted of which layers, is no base: the others are unpacked whole.
func TestM2ImageNoBase(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	base := probePicture(t, "base")
	one := derived(t, base, upper(t, "one"))
	push(t, host+"/base:1", base)
	push(t, host+"/one:1", one)
	folder := filepath.Dir(p.rootOf(base))
	t.Run("more to tell than anybody reads", func(t *testing.T) {
		p := place{t, p.run, p.state}
		var gone [][2]string
		for n := range 5000 {
			gone = append(gone, [2]string{strings.Repeat(strings.Repeat("n", 250)+"/", 15) + fmt.Sprint(".wh.", n)})
		}
		img := derived(t, one, layerTar(t, nil, gone...))
		p.must("image", "import", dockerSaved(t, map[string]v1.Image{"base:1": base}))
		r := p.must("image", "import", dockerSaved(t, map[string]v1.Image{"many:1": img}))
		if !strings.Contains(r.stderr, "2 of 4 layers are there") || !strings.Contains(r.stderr, "layer 1 of 4") {
			t.Errorf("%s", r.stderr)
		}
		if got := p.does([]string{"--image", "many:1"}); got["cat /etc/mark"] != "value=one" || p.sameFile(base, img, "bin/probe") {
			t.Errorf("%v", got)
		}
		p.must("image", "rm", "many:1")
		p.must("image", "rm", "base:1")
	})
	for what, c := range map[string]struct{ spoil, mend func() error }{
		"one of before": {func() error { return os.Remove(filepath.Join(folder, "layers.json")) }, func() error { p.must("image", "pull", host+"/base:1"); return nil }},
		"other rules": {func() error {
			return os.WriteFile(filepath.Join(folder, "layers.json"), []byte(`{"version":2,"chain":"x"}`), 0o600)
		}, nil},
		"half":      {func() error { return os.Remove(filepath.Join(folder, "image.json")) }, nil},
		"damaged":   {func() error { return os.WriteFile(filepath.Join(folder, "image.json"), []byte(`{`), 0o600) }, nil},
		"another's": {func() error { return os.Chown(folder, 1234, 1234) }, func() error { return os.Chown(folder, 0, 0) }},
		"damaged files": {func() error {
			return errors.Join(os.Rename(p.rootOf(base), p.rootOf(base)+"2"), os.Symlink("rootfs2", p.rootOf(base)))
		}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			p := place{t, p.run, p.state}
			p.must("image", "pull", "-q", host+"/base:1")
			if err := c.spoil(); err != nil {
				t.Fatal(err)
			}
			r := p.do("image", "pull", host+"/one:1")
			if r.exit != 0 || strings.Contains(r.stderr, "are there") != (what == "damaged files") || !strings.Contains(r.stderr, "layer 1 of 3") {
				t.Errorf("exit %d %s", r.exit, r.stderr)
			}
			if got := p.does([]string{"--image", host + "/one:1"}); got["cat /etc/mark"] != "value=one" {
				t.Errorf("%v", got)
			}
			if c.mend != nil {
				if err := c.mend(); err != nil {
					t.Fatal(err)
				}
				p.must("image", "rm", host+"/one:1")
				if r := p.must("image", "pull", host+"/one:1"); !strings.Contains(r.stderr, "2 of 3 layers are there") {
					t.Errorf("mended: %s", r.stderr)
				}
			}
			if err := os.RemoveAll(filepath.Join(p.state, "images")); err != nil {
				t.Fatal(err)
			}
		})
	}
}
