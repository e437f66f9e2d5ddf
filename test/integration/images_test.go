// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"agentrun/images"
)

func goarch() string { return goruntime.GOARCH }

// M-2: an image's root is the run's, read-only, with its variables, folder and command; what it is stands in plan and audit by digest.
func TestM2ImagePulledAndRun(t *testing.T) {
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/probe:1"
	img := probePicture(t, "one")
	manifest, id := push(t, ref, img), configDigest(t, img)
	if r := p.do("exec", "--no-gateway", "--image", ref, "--", "status"); r.exit != 125 || !strings.Contains(r.stderr, "hint: agentrun image pull "+ref) {
		t.Errorf("before the pull: exit %d %s", r.exit, r.stderr)
	}
	r := p.must("image", "pull", ref)
	if !strings.Contains(r.stderr, "layer 2 of 2") || !strings.Contains(r.stdout, id) || !strings.Contains(r.stdout, "unsigned") {
		t.Errorf("pull: %s%s", r.stdout, r.stderr)
	}
	list := p.images()
	if len(list) != 1 || list[0].ID != id || list[0].Manifest != manifest.String() || !slices.Equal(list[0].Names, []string{ref}) || list[0].By == "" {
		t.Fatalf("%+v", list)
	}
	got := p.does([]string{"--image", ref})
	if got["cat /etc/mark"] != "value=one" {
		t.Errorf("its own command: %v", got)
	}
	for _, ring := range []string{"1", "2", "3"} {
		got := p.does([]string{"--image", ref, "--ring", ring}, "cat", "/etc/mark", ",", "env", ",", "cwd", ",", "cat", "/etc/gone", ",", "create", "/opt/x", ",", "ls", "/usr", ",", "create", "/tmp/sandbox/x")
		if got["cat /etc/mark"] != "value=one" || got["cwd"] != "value=/etc" || got["cat /etc/gone"] != "ENOENT" || got["ls /usr"] != "ENOENT" || got["create /tmp/sandbox/x"] != "ok" {
			t.Errorf("ring %s: %v", ring, got)
		}
		for _, want := range []string{"MARK=one", "PATH=/opt/bin:/bin", "HOME=/tmp/sandbox/home", "USER=agent"} {
			if !strings.Contains("|"+strings.TrimPrefix(got["env"], "value=")+"|", "|"+want+"|") {
				t.Errorf("ring %s: environment %s, want %s", ring, got["env"], want)
			}
		}
		if want := map[string]string{"1": "ok", "2": "EROFS", "3": "EROFS"}[ring]; got["create /opt/x"] != want {
			t.Errorf("ring %s: write in the image: %s, want %s", ring, got["create /opt/x"], want)
		}
	}
	if got := p.does([]string{"--image", ref, "--env", "MARK=mine", "--cwd", "/opt"}, "env", ",", "cwd"); got["cwd"] != "value=/opt" || !strings.Contains(got["env"], "MARK=mine|") {
		t.Errorf("flags: %v", got)
	}
	ws := workspace(t)
	if got := p.does([]string{"--image", ref, "--workspace", ws}, "cwd"); got["cwd"] != "value=/workspace" {
		t.Errorf("with a workspace: %v", got)
	}
	for _, by := range []string{id, id[:len("sha256:")+16], id[len("sha256:"):][:12], manifest.String(), "any@" + id, "any@" + manifest.String()} {
		if got := p.does([]string{"--image", by, "--no-entrypoint"}, "/bin/probe", "cat", "/etc/mark"); got["cat /etc/mark"] != "value=one" {
			t.Errorf("by %s: %v", by, got)
		}
	}
	type planned struct {
		Image struct{ ID, Reference, Manifest string }
	}
	if plan := asJSON[planned](t, p.must("plan", "--json", "--no-gateway", "--image", ref).stdout); plan.Image.ID != id || plan.Image.Reference != ref || plan.Image.Manifest != manifest.String() {
		t.Errorf("plan: %+v", plan)
	}
	started := false
	for _, e := range p.audit() {
		started = started || e.Kind == "sandbox_start" && e.Data["image"] == id
	}
	if !started {
		t.Error("no start on record has the image")
	}
	if got := p.imageRecords(); !slices.Equal(got, []string{"pulled " + ref}) {
		t.Errorf("on record: %q", got)
	}
	for _, bad := range [][]string{{"--rootfs", "/usr"}, {"--image", ""}, {"--pull", "always"}} {
		if r := p.do(slices.Concat([]string{"exec", "--no-gateway", "--image", ref}, bad, []string{"--", "status"})...); r.exit != 125 {
			t.Errorf("%v: exit %d", bad, r.exit)
		}
	}
	if list := p.images(); list[0].Live {
		t.Error("a claim is left")
	}
}

// The user of an image is the agent: files that are that user's alone can be read, and those of root can't be written.
func TestM2ImageUser(t *testing.T) {
	p := newPlace(t)
	for user, want := range map[string]string{
		"": "EACCES", "root": "EACCES", "app": "value=app's own", "4321": "value=app's own", "4321:4321": "value=app's own", "nobody-knows": "refused", "70000": "refused", "app:nobody-knows": "refused",
	} {
		t.Run("user "+user, func(t *testing.T) {
			p := place{t, p.run, p.state}
			path := dockerSaved(t, map[string]v1.Image{"u:1": picture(t, v1.Config{User: user}, probeLayer(t, user))})
			p.must("image", "import", path)
			r := p.do("exec", "--no-gateway", "--no-daemon", "--image", "u:1", "--", "/bin/probe", "cat", "/srv/own", ",", "cat", "/etc/mark", ",", "status")
			if want == "refused" {
				if r.exit != 125 || !strings.Contains(r.stderr, "its user") {
					t.Errorf("exit %d %s", r.exit, r.stderr)
				}
				return
			}
			if got := answers(r.stdout); got["cat /srv/own"] != want || r.exit != 0 {
				t.Errorf("exit %d: %v %s, want %s", r.exit, got, r.stderr, want)
			}
		})
	}
}

// M-2: files and folders that others have written, in each of the forms there are.
func TestM2ImageImport(t *testing.T) {
	p := newPlace(t)
	one, two := probePicture(t, "one"), probePicture(t, "two")
	dir := filepath.Join(t.TempDir(), "layout")
	to, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = to.AppendImage(one, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "laid:1"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "layout.tar")
	if out, err := exec.Command("tar", "-C", dir, "-cf", packed, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, c := range map[string]struct {
		path, source string
		flags, names []string
		img          v1.Image
	}{
		"a layout":                  {dir, "oci-layout", nil, []string{"laid:1"}, one},
		"a layout in a tar":         {packed, "oci-archive", []string{"--name", "mine"}, []string{"mine:latest"}, one},
		"docker save":               {dockerSaved(t, map[string]v1.Image{"two:2": two}), "docker-archive", nil, []string{"two:2"}, two},
		"docker save of more":       {dockerSaved(t, map[string]v1.Image{"a/one:1": one, "b/two:2": two}), "docker-archive", []string{"--name", "b/two:2"}, []string{"b/two:2"}, two},
		"docker save, another name": {dockerSaved(t, map[string]v1.Image{"two:2": two}), "docker-archive", []string{"--name", "other:3"}, []string{"other:3"}, two},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			i := asJSON[images.Info](t, p.must(slices.Concat([]string{"image", "import", "--json", "-q"}, c.flags, []string{c.path})...).stdout)
			if i.ID != configDigest(t, c.img) || i.Source != c.source {
				t.Errorf("%+v", i)
			}
			if list := p.images(); len(list) != 1 || !slices.Equal(list[0].Names, c.names) {
				t.Errorf("%+v", list)
			}
			if got := p.does([]string{"--image", c.names[0]}, "env"); !strings.Contains(got["env"], "MARK=") {
				t.Errorf("%v", got)
			}
		})
	}
	if r := p.do("image", "import", dockerSaved(t, map[string]v1.Image{"a/one:1": one, "b/two:2": two})); r.exit != 125 || !strings.Contains(r.stderr, "--name chooses one") {
		t.Errorf("of two: exit %d %s", r.exit, r.stderr)
	}
	for _, path := range []string{"/etc/passwd", "/dev/zero", "/none", t.TempDir()} {
		if r := p.do("image", "import", path); r.exit != 125 || len(p.stored()) > 0 {
			t.Errorf("%s: exit %d, stored %v\n%s", path, r.exit, p.stored(), r.stderr)
		}
	}
}

// Images that lie, or reach for the host: none is kept, and nothing of them is left.
func TestThreatTakeoverHostileImages(t *testing.T) {
	p := newPlace(t)
	secret := filepath.Join(filepath.Dir(p.state), "secret")
	write(t, secret, "secret", 0o600)
	up := strings.Repeat("../", 12)
	layers := map[string][]byte{
		"a name that leads out":      layerTar(t, nil, [2]string{up + secret[1:], "x"}),
		"a file behind a link":       layerTar(t, nil, [2]string{"l", "-> " + filepath.Dir(secret)}, [2]string{"l/secret", "x"}),
		"a whiteout behind a link":   layerTar(t, nil, [2]string{"l", "-> " + filepath.Dir(secret)}, [2]string{"l/.wh.secret"}),
		"a hard link out":            layerTar(t, nil, [2]string{"h", "=> " + up + secret[1:]}),
		"a hard link behind a link":  layerTar(t, nil, [2]string{"l", "-> " + filepath.Dir(secret)}, [2]string{"h", "=> l/secret"}),
		"a device":                   layerTar(t, map[string]tar.Header{"disk": {Typeflag: tar.TypeBlock, Devmajor: 8}}, [2]string{"disk"}),
		"a pipe":                     layerTar(t, map[string]tar.Header{"pipe": {Typeflag: tar.TypeFifo}}, [2]string{"pipe"}),
		"a whiteout of what's above": layerTar(t, nil, [2]string{"d/"}, [2]string{"d/.wh..."}),
		"too deep":                   layerTar(t, nil, [2]string{strings.Repeat("d/", 300), ""}),
		"no tar":                     bytes.Repeat([]byte("no tar"), 1000),
	}
	for name, layer := range layers {
		t.Run(name, func(t *testing.T) {
			p := place{t, p.run, p.state}
			ref := aRegistry(t, nil) + "/hostile:1"
			push(t, ref, picture(t, v1.Config{}, probeLayer(t, ""), layer))
			r := p.do("image", "pull", ref)
			if r.exit != 125 || !strings.Contains(r.stderr, "layer 2") {
				t.Errorf("exit %d %s", r.exit, r.stderr)
			}
			if got := p.stored(); len(got) > 0 {
				t.Errorf("left: %v", got)
			}
			if text, err := os.ReadFile(secret); err != nil || string(text) != "secret" {
				t.Errorf("the host's file: %q %v", text, err)
			}
		})
	}
	t.Run("set-id bits, capabilities, devices of dev", func(t *testing.T) {
		p := place{t, p.run, p.state}
		img := picture(t, v1.Config{}, probeLayer(t, ""), layerTar(t, map[string]tar.Header{
			"bin/su": {Mode: 0o6755}, "bin/ping": {PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, "dev/null": {Typeflag: tar.TypeChar},
		}, [2]string{"bin/su", "x"}, [2]string{"bin/ping", "x"}, [2]string{"dev/null"}))
		ref := aRegistry(t, nil) + "/setid:1"
		push(t, ref, img)
		i := asJSON[images.Info](t, p.must("image", "pull", "--json", ref).stdout)
		if c := i.Content; c.SetID != 1 || c.Caps != 1 || c.Devices != 1 {
			t.Errorf("%+v", c)
		}
		info, err := os.Stat(filepath.Join(p.state, "images", strings.Replace(i.ID, ":", "-", 1), "rootfs/bin/su"))
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("%v %v", info, err)
		}
		p.must("image", "rm", ref)
	})
	t.Run("a bomb", func(t *testing.T) {
		p := place{t, p.run, p.state}
		path := dockerSaved(t, map[string]v1.Image{"bomb:1": picture(t, v1.Config{}, layerTar(t, nil, [2]string{"zeroes", strings.Repeat("\x00", 100<<20)}))})
		r := p.do("image", "import", path)
		if r.exit != 125 || !strings.Contains(r.stderr, "larger than an image may be") || len(p.stored()) > 0 {
			t.Errorf("exit %d, left %v: %s", r.exit, p.stored(), r.stderr)
		}
	})
	t.Run("paths that fill the memory", func(t *testing.T) {
		p := place{t, p.run, p.state}
		r := p.do("image", "import", longPaths(t))
		if r.exit != 125 || !strings.Contains(r.stderr, "paths of more than 268435456 bytes together") || len(p.stored()) > 0 {
			t.Errorf("exit %d, left %v: %s", r.exit, p.stored(), r.stderr)
		}
	})
	t.Run("a configuration that names other content", func(t *testing.T) {
		p := place{t, p.run, p.state}
		img := picture(t, v1.Config{}, probeLayer(t, "good"))
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.RootFS.DiffIDs[0].Hex = strings.Repeat("a", 64)
		if img, err = mutate.ConfigFile(img, c); err != nil {
			t.Fatal(err)
		}
		ref := aRegistry(t, nil) + "/lies:1"
		push(t, ref, img)
		if r := p.do("image", "pull", ref); r.exit != 125 || !strings.Contains(r.stderr, "somebody has changed it") || len(p.stored()) > 0 {
			t.Errorf("exit %d, left %v: %s", r.exit, p.stored(), r.stderr)
		}
	})
	t.Run("a registry that sends another blob", func(t *testing.T) {
		p := place{t, p.run, p.state}
		var lie atomic.Bool
		ref := aRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
			if !lie.Load() || !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			_, _ = io.WriteString(w, "something else")
			return true
		}) + "/lies:1"
		push(t, ref, probePicture(t, "x"))
		lie.Store(true)
		if r := p.do("image", "pull", ref); r.exit != 125 || len(p.stored()) > 0 {
			t.Errorf("exit %d, left %v: %s", r.exit, p.stored(), r.stderr)
		}
	})
	t.Run("layers that lie elsewhere", func(t *testing.T) {
		p := place{t, p.run, p.state}
		var asked atomic.Bool
		elsewhere := aRegistry(t, func(http.ResponseWriter, *http.Request) bool { asked.Store(true); return false })
		img, err := mutate.Append(picture(t, v1.Config{}), mutate.Addendum{Layer: layerOf(t, probeLayer(t, "x")), URLs: []string{"http://" + elsewhere + "/latest/meta-data"}, MediaType: types.OCILayer})
		if err != nil {
			t.Fatal(err)
		}
		ref := aRegistry(t, nil) + "/far:1"
		push(t, ref, img)
		if r := p.do("image", "pull", ref); r.exit != 125 || !strings.Contains(r.stderr, "not followed") || asked.Load() {
			t.Errorf("exit %d, asked %v: %s", r.exit, asked.Load(), r.stderr)
		}
	})
	t.Run("a platform that can't be read again", func(t *testing.T) {
		p := newPlace(t)
		img := probePicture(t, "x")
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.Variant = strings.Repeat("v", 2<<20)
		if img, err = mutate.ConfigFile(img, c); err != nil {
			t.Fatal(err)
		}
		if r := p.do("image", "import", dockerSaved(t, map[string]v1.Image{"variant:1": img})); r.exit != 125 || !strings.Contains(r.stderr, "are the most") {
			t.Errorf("exit %d %s", r.exit, r.stderr)
		}
		if list := p.images(); len(list) > 0 || len(p.stored()) > 0 {
			t.Errorf("%+v, stored %v", list, p.stored())
		}
	})
	t.Run("answers without an end", func(t *testing.T) {
		p := newPlace(t)
		const most = 64 << 20
		descriptor := fmt.Sprintf(`{"mediaType": %q, "size": -1, "digest": "sha256:%064d"}`, types.OCIConfigJSON, 0)
		for name, c := range map[string]struct{ manifest, forever string }{
			"a configuration": {`{"schemaVersion": 2, "layers": [], "config": ` + descriptor + "}", "/blobs/"},
			"a manifest":      {`{"schemaVersion": 2, "config": ` + descriptor + `, "layers": [{}` + strings.Repeat(",{}", 8<<20) + "]}", "/none/"},
			"a greeting":      {"{}", "/v2/"},
		} {
			ref := aRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case strings.Contains(r.URL.Path, c.forever):
					for n, part := 0, make([]byte, 1<<20); n < most; n += len(part) {
						if _, err := w.Write(part); err != nil {
							break
						}
					}
				case strings.Contains(r.URL.Path, "/manifests/"):
					w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
					_, _ = io.WriteString(w, c.manifest)
				default:
					return false
				}
				return true
			}) + "/endless:1"
			if r := p.do("image", "pull", ref); r.exit != 125 || !strings.Contains(r.stderr, "more than 4194304 bytes") || len(p.stored()) > 0 {
				t.Errorf("%s: exit %d %.300s", name, r.exit, r.stderr)
			}
		}
	})
	t.Run("names that are others' digests", func(t *testing.T) {
		p := newPlace(t)
		good, evil := probePicture(t, "good"), probePicture(t, "evil")
		p.must("image", "import", dockerSaved(t, map[string]v1.Image{"good:1": good}))
		p.kept("dev", "--ring", "2", "--image", "good:1", "--no-entrypoint", "--", "/bin/probe", "cat", "/etc/mark", ",", "sleep", "250")
		id := configDigest(t, good)
		means := []string{id, "good:1@" + id, "sha256:" + id[7:27], id[7:19]}
		p.must("image", "import", savedAs(t, evil, append(slices.Clone(means), "evil:1")...))
		for _, ref := range append(means, "good:1") {
			if got := p.does([]string{"--no-entrypoint", "--image", ref}, "/bin/probe", "cat", "/etc/mark"); got["cat /etc/mark"] != "value=good" {
				t.Errorf("%s: %v", ref, got)
			}
		}
		p.must("start", "dev")
		if r := p.inside("dev", nil, "/bin/probe", "cat", "/etc/mark"); !strings.Contains(r.stdout, "value=good") {
			t.Errorf("the kept sandbox has another image: %s%s", r.stdout, r.stderr)
		}
		p.must("stop", "dev")
		if r := p.do("image", "import", "--name", "good:1@"+id, savedAs(t, evil)); r.exit != 125 || !strings.Contains(r.stderr, "--name") {
			t.Errorf("by --name: exit %d %s", r.exit, r.stderr)
		}
	})
	if got := p.imageRecords(); len(got) != 2 {
		t.Errorf("on record: %q", got)
	}
}

func layerOf(t testing.TB, text []byte) v1.Layer {
	t.Helper()
	layers, err := picture(t, v1.Config{}, text).Layers()
	if err != nil {
		t.Fatal(err)
	}
	return layers[0]
}

// A pull that is killed leaves no image, no process, and only what gc removes; others at the same time are not disturbed.
func TestM2ImageKilledPull(t *testing.T) {
	p := newPlace(t)
	asked, release := make(chan struct{}, 16), make(chan struct{})
	var slow atomic.Bool
	ref := aRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if slow.Load() && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return false
	}) + "/probe:1"
	push(t, ref, probePicture(t, "x"))
	slow.Store(true)
	for _, gc := range [][]string{{"image", "gc"}, {"gc"}} {
		for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
			cmd := exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "image", "pull", ref)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-asked
			child := childOf(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, 5*time.Second, "the other program ends", func() bool { return !livesOn(child) })
			if left := len(p.stored()); left != map[unix.Signal]int{unix.SIGKILL: 1, unix.SIGTERM: 0}[sig] {
				t.Errorf("after %v: %v", sig, p.stored())
			}
			if list := p.images(); len(list) > 0 {
				t.Errorf("after %v: %+v", sig, list)
			}
			p.must(gc...)
			if left := p.stored(); len(left) > 0 {
				t.Errorf("after %v: %v", gc, left)
			}
		}
	}
	// What is being made isn't swept away.
	cmd := exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "image", "pull", ref)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	p.must("image", "gc")
	p.must("gc")
	close(release)
	if err := cmd.Wait(); err != nil || len(p.images()) != 1 {
		t.Errorf("%v, %+v", err, p.images())
	}
	if got := p.imageRecords(); !slices.Equal(got, []string{"pulled " + ref}) {
		t.Errorf("on record: %q", got)
	}
}

func childOf(t testing.TB, pid int) int {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		var child int
		if _, serr := fmt.Sscan(string(text), &child); err == nil && serr == nil {
			return child
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}

func livesOn(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// Many at once bring the same image: one is kept, and each has its name.
func TestM2ImageConcurrentPulls(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	img := probePicture(t, "x")
	var all sync.WaitGroup
	for n := range 6 {
		push(t, fmt.Sprintf("%s/probe:%d", host, n), img)
		all.Go(func() {
			if r := p.do("image", "pull", fmt.Sprintf("%s/probe:%d", host, n)); r.exit != 0 {
				t.Errorf("exit %d %s", r.exit, r.stderr)
			}
		})
	}
	all.Wait()
	if list := p.images(); len(list) != 1 || len(list[0].Names) != 6 || len(p.stored()) != 1 {
		t.Errorf("%+v, stored %v", list, p.stored())
	}
}

// What a run or a kept sandbox has isn't removed; a kept sandbox has what its name meant when it was created.
func TestM2ImageRemoval(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	ref := host + "/probe:1"
	one, two := probePicture(t, "one"), probePicture(t, "two")
	push(t, ref, one)
	p.must("image", "pull", ref)
	p.kept("dev", "--ring", "2", "--image", ref, "--no-entrypoint", "--", "/bin/probe", "cat", "/etc/mark", ",", "sleep", "250")
	push(t, ref, two)
	p.must("image", "pull", ref)
	if list := p.images(); len(list) != 2 || len(list[1].Names) != 0 {
		t.Fatalf("%+v", list)
	}
	if got := p.does([]string{"--image", ref}); got["cat /etc/mark"] != "value=two" {
		t.Errorf("the name of now: %v", got)
	}
	p.must("image", "gc")
	if len(p.images()) != 2 {
		t.Error("gc took the image of a kept sandbox")
	}
	p.must("start", "dev")
	if r := p.inside("dev", nil, "/bin/probe", "cat", "/etc/mark"); !strings.Contains(r.stdout, "value=one") {
		t.Errorf("the kept sandbox has another image: %s%s", r.stdout, r.stderr)
	}
	live := 0
	for _, i := range p.images() {
		if i.Live {
			live++
		}
	}
	if live != 1 {
		t.Errorf("%d live", live)
	}
	for _, want := range []string{"a live run uses it", "the kept sandbox dev has it"} {
		if r := p.do("image", "rm", configDigest(t, one)); r.exit != 125 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("exit %d %s, want %s", r.exit, r.stderr, want)
		}
		p.must("stop", "dev")
	}
	p.must("rm", "dev")
	if r := p.must("image", "gc"); !strings.Contains(r.stdout, configDigest(t, one)) || len(p.stored()) != 1 {
		t.Errorf("%s, stored %v", r.stdout, p.stored())
	}
	push(t, host+"/probe:2", two)
	p.must("image", "pull", host+"/probe:2")
	p.must("image", "rm", ref)
	if list := p.images(); len(list) != 1 || !slices.Equal(list[0].Names, []string{host + "/probe:2"}) {
		t.Errorf("%+v", list)
	}
	p.must("image", "rm", host+"/probe:2")
	if r := p.do("image", "rm", ref); r.exit != 125 || !strings.Contains(r.stderr, "agentrun image ls") || len(p.stored()) > 0 {
		t.Errorf("exit %d %s, stored %v", r.exit, r.stderr, p.stored())
	}
	want := []string{"pulled " + ref, "pulled " + ref, "removed", "pulled " + host + "/probe:2", "untagged " + ref, "removed " + host + "/probe:2"}
	if got := p.imageRecords(); !slices.Equal(got, want) {
		t.Errorf("on record %q, want %q", got, want)
	}
}

// The image of a sandbox that is being made isn't removed before the sandbox is known.
func TestM2ImageOfASandboxInTheMaking(t *testing.T) {
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/probe:1"
	push(t, ref, probePicture(t, "one"))
	p.must("image", "pull", ref)
	var log lockedBuffer
	create := launchNode{p, agentrun}.command("record/sandbox_life=hang", "create", "--name", "dev", "--no-gateway", "--ring", "2", "--image", ref, "--no-entrypoint", "--", "/bin/probe", "exit", "0")
	create.Stderr = &log
	if err := create.Start(); err != nil {
		t.Fatal(err)
	}
	log.wait(t)
	if r := p.do("image", "rm", ref); r.exit != 125 || !strings.Contains(r.stderr, "a live run uses it") {
		t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	_ = create.Process.Kill()
	_ = create.Wait()
	p.must("image", "rm", ref)
}

// An image of another machine is refused, at the pull unless it was asked for, and by each run.
func TestM2ImagePlatform(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	other := map[string]string{"amd64": "arm64"}[goarch()]
	if other == "" {
		other = "amd64"
	}
	foreign := probePicture(t, "foreign")
	c, err := foreign.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.Architecture = other
	if foreign, err = mutate.ConfigFile(foreign, c); err != nil {
		t.Fatal(err)
	}
	push(t, host+"/foreign:1", foreign)
	if r := p.do("image", "pull", host+"/foreign:1"); r.exit != 125 || !strings.Contains(r.stderr, "it is for linux/"+other) {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	p.must("image", "pull", "--platform", "linux/"+other, host+"/foreign:1")
	if r := p.do("exec", "--no-gateway", "--image", host+"/foreign:1", "--", "status"); r.exit != 125 || !strings.Contains(r.stderr, "it is for linux/"+other) {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	own := probePicture(t, "own")
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}}},
		mutate.IndexAddendum{Add: own, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: goarch()}}})
	to, err := name.ParseReference(host + "/both:1")
	if err == nil {
		err = remote.WriteIndex(to, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.must("image", "pull", host+"/both:1")
	if got := p.does([]string{"--image", host + "/both:1"}); got["cat /etc/mark"] != "value=own" {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{"plan9/none", "linux/none", "x", ""} {
		if r := p.do("image", "pull", "--platform", bad, host+"/both:1"); r.exit != 125 {
			t.Errorf("%q: exit %d %s", bad, r.exit, r.stderr)
		}
	}
}

// signer signs as cosign does.
type signer struct{ key *ecdsa.PrivateKey }

func newSigner(t testing.TB) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key}
}

func (s signer) public(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(&s.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cosign.pub")
	write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), 0o644)
	return path
}

func (s signer) sign(t testing.TB, digest string) v1.Image {
	t.Helper()
	statement := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
	sum := sha256.Sum256(statement)
	text, err := ecdsa.SignASN1(rand.Reader, s.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signatureOf(t, statement, base64.StdEncoding.EncodeToString(text))
}

// indexed is the digest of the first manifest of an index.
func indexed(t testing.TB, index v1.ImageIndex) string {
	t.Helper()
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Manifests[0].Digest.String()
}

func sigTag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// Where the node wants signatures, nothing else is pulled, imported or run.
func TestThreatTakeoverUnsignedImages(t *testing.T) {
	p := newPlace(t)
	good, other := newSigner(t), newSigner(t)
	var lie atomic.Pointer[[2]string] // digests of what it sends, and instead of what
	var host string
	host = aRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		send := lie.Load()
		if send == nil || !strings.HasSuffix(r.URL.Path, "/manifests/"+send[1]) {
			return false
		}
		resp, err := http.Get("http://" + host + strings.Replace(r.URL.Path, send[1], send[0], 1))
		if err != nil {
			t.Error(err)
			return false
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", string(types.DockerManifestSchema1Signed))
		w.Header().Set("Docker-Content-Digest", send[1])
		_, _ = io.Copy(w, resp.Body)
		return true
	})
	// Brought before anybody asked for signatures.
	push(t, host+"/early:1", probePicture(t, "early"))
	p.must("image", "pull", host+"/early:1")
	config := p.configured("images: {signed_by: " + good.public(t) + "}\n")
	by := func(args ...string) result { return p.do(append(slices.Clone(config), args...)...) }

	for name, sign := range map[string]func(repo string, digest string){
		"unsigned":                   func(string, string) {},
		"signed by another":          func(repo, d string) { push(t, repo+":"+sigTag(d), other.sign(t, d)) },
		"the signature of another":   func(repo, d string) { push(t, repo+":"+sigTag(d), good.sign(t, "sha256:"+strings.Repeat("a", 64))) },
		"a signature of nothing":     func(repo, d string) { push(t, repo+":"+sigTag(d), good.sign(t, "")) },
		"no base64":                  func(repo, d string) { push(t, repo+":"+sigTag(d), signatureOf(t, []byte(d), "%")) },
		"an image for the signature": func(repo, d string) { push(t, repo+":"+sigTag(d), probePicture(t, "no")) },
	} {
		repo := host + "/" + strings.ReplaceAll(strings.ToLower(name), " ", "-")
		img := probePicture(t, name)
		sign(repo, push(t, repo+":1", img).String())
		if r := by("image", "pull", repo+":1"); r.exit != 125 || !strings.Contains(r.stderr, "images.signed_by") || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("%s: exit %d %s", name, r.exit, r.stderr)
		}
	}
	if len(p.stored()) != 1 {
		t.Errorf("stored %v", p.stored())
	}
	if r := by("exec", "--no-gateway", "--image", host+"/early:1", "--", "status"); r.exit != 125 || !strings.Contains(r.stderr, "without a signature") {
		t.Errorf("one from before: exit %d %s", r.exit, r.stderr)
	}
	signedRef := host + "/signed"
	img := probePicture(t, "signed")
	d := push(t, signedRef+":1", img).String()
	push(t, signedRef+":"+sigTag(d), good.sign(t, d))
	for _, ref := range []string{signedRef + ":1", signedRef + "@" + d} {
		if r := by("image", "pull", ref); r.exit != 0 || !strings.Contains(r.stdout, ", signed") {
			t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
		}
		if r := by("exec", "--no-gateway", "--no-daemon", "--image", ref); r.exit != 0 || !strings.Contains(r.stdout, "signed") {
			t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
		}
	}
	// The same content, signed since.
	d = push(t, host+"/early:1", probePicture(t, "early")).String()
	push(t, host+"/early:"+sigTag(d), good.sign(t, d))
	if r := by("image", "pull", host+"/early:1"); r.exit != 0 {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	if r := by("exec", "--no-gateway", "--no-daemon", "--image", host+"/early:1"); r.exit != 0 {
		t.Errorf("signed since: exit %d %s", r.exit, r.stderr)
	}
	// An index is what people sign.
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: probePicture(t, "index"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: goarch()}}})
	to, err := name.ParseReference(host + "/index:1")
	if err == nil {
		err = remote.WriteIndex(to, index)
	}
	h, herr := index.Digest()
	if err := errors.Join(err, herr); err != nil {
		t.Fatal(err)
	}
	push(t, host+"/index:"+sigTag(h.String()), good.sign(t, h.String()))
	// A manifest of schema 1, as the registry says, whose digest is what the registry says.
	for _, ref := range []string{host + "/index:1", host + "/index@" + h.String()} {
		lie.Store(&[2]string{push(t, host+"/index:evil", probePicture(t, "evil")).String(), indexed(t, index)})
		if r := by("image", "pull", ref); r.exit != 125 || !strings.Contains(r.stderr, "does not match") {
			t.Errorf("another manifest below an index: exit %d %s%s", r.exit, r.stdout, r.stderr)
		}
		lie.Store(nil)
	}
	if r := by("image", "pull", host+"/index:1"); r.exit != 0 {
		t.Errorf("an index: exit %d %s", r.exit, r.stderr)
	}
	// Files: one that can't be signed, one that isn't, one that is.
	if r := by("image", "import", dockerSaved(t, map[string]v1.Image{"s:1": img})); r.exit != 125 || !strings.Contains(r.stderr, "no manifest that could be signed") {
		t.Errorf("docker save: exit %d %s", r.exit, r.stderr)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	laid := probePicture(t, "laid")
	at, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = at.AppendImage(laid)
	}
	h, herr = laid.Digest()
	if err := errors.Join(err, herr); err != nil {
		t.Fatal(err)
	}
	if r := by("image", "import", "--name", "laid:1", dir); r.exit != 125 || !strings.Contains(r.stderr, "there is no signature of it") {
		t.Errorf("a layout: exit %d %s", r.exit, r.stderr)
	}
	if err := at.AppendImage(good.sign(t, h.String()), layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": sigTag(h.String())})); err != nil {
		t.Fatal(err)
	}
	if r := by("image", "import", "--name", "laid:1", dir); r.exit != 0 {
		t.Errorf("a layout that is signed: exit %d %s", r.exit, r.stderr)
	}
	keys := 0
	for _, e := range p.audit() {
		if e.Kind == "image" && e.Data["key"] != nil {
			keys++
		}
	}
	if keys != 5 {
		t.Errorf("%d records name the key", keys)
	}
	// What can't be read refuses, and so does one that others may write.
	for _, text := range []string{"images: {signed_by: /none}\n", "images: {signed_by: cosign.pub}\n", "images: {allow: ['']}\n", "images: {signed: x}\n", "images: {signed_by: /etc/passwd}\n"} {
		config = p.configured(text)
		if r := by("image", "pull", signedRef+":1"); r.exit != 125 {
			t.Errorf("%s: exit %d %s", text, r.exit, r.stdout)
		}
	}
	config = p.configured("images: {allow: ['" + host + "/sig*']}\n")
	if r := by("image", "pull", host+"/early:1"); r.exit != 125 || !strings.Contains(r.stderr, "images.allow") {
		t.Errorf("not allowed: exit %d %s", r.exit, r.stderr)
	}
	if r := by("image", "pull", signedRef+":1"); r.exit != 0 {
		t.Errorf("allowed: exit %d %s", r.exit, r.stderr)
	}
}

// aClosedRegistry has probe:1, for the user me with the password s3cret.
func aClosedRegistry(t *testing.T) (host string) {
	var closed atomic.Bool
	host = aRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); !closed.Load() || ok && user == "me" && password == "s3cret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	})
	push(t, host+"/probe:1", probePicture(t, "x"))
	closed.Store(true)
	return host
}

// Credentials are the caller's, used at the registry, and no run sees them.
func TestM2ImageCredentials(t *testing.T) {
	p := newPlace(t)
	host := aClosedRegistry(t)
	if r := p.do("image", "pull", host+"/probe:1"); r.exit != 125 || !strings.Contains(r.stderr, "hint: docker login") {
		t.Errorf("without: exit %d %s", r.exit, r.stderr)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("me:s3cret"))), 0o600)
	t.Setenv("DOCKER_CONFIG", dir)
	p.must("image", "pull", host+"/probe:1")
	if got := p.does([]string{"--image", host + "/probe:1"}, "env"); strings.Contains(got["env"], dir) || strings.Contains(got["env"], "s3cret") {
		t.Errorf("%v", got)
	}
	err := filepath.WalkDir(p.state, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != "meters-2" {
			var text []byte
			if text, err = os.ReadFile(path); bytes.Contains(text, []byte("s3cret")) || bytes.Contains(text, []byte("bWU6czNjcmV0")) {
				t.Errorf("%s has the password", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// Without TLS only where the word is said, or nobody is on the way.
	if r := p.do("image", "pull", "10.255.255.1:5000/x:1"); r.exit != 125 || !strings.Contains(r.stderr, "hint: --plain-http") {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
}

// THREATS "what the host runs later": which program a credential helper is doesn't go by a folder that an agent has written, as that of asdf's
// scripts does.
func TestThreatLaterCredentialHelper(t *testing.T) {
	p := newPlace(t)
	host := aClosedRegistry(t)
	dir, ws := t.TempDir(), t.TempDir()
	ran := filepath.Join(dir, "ran")
	write(t, filepath.Join(dir, "docker-credential-shim"), `#!/bin/sh
[ ! -x ./tools/helper ] || exec ./tools/helper "$@"
echo '{"Username":"me","Secret":"s3cret"}'
`, 0o755)
	write(t, filepath.Join(ws, "tools", "helper"), "#!/bin/sh\ntouch "+ran+"\n", 0o755)
	write(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"credHelpers":{%q:"shim"}}`, host), 0o600)
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Chdir(ws)
	for _, args := range [][]string{{"image", "pull", host + "/probe:1"}, {"exec", "--no-gateway", "--pull", "missing", "--image", host + "/probe:1", "--", "status"}} {
		p.do("image", "rm", host+"/probe:1")
		if r := p.do(args...); r.exit != 0 {
			t.Errorf("%v: exit %d %s", args, r.exit, r.stderr)
		}
	}
	if _, err := os.Lstat(ran); err == nil {
		t.Error("the host has run a program of the workspace's")
	}
}

// exec --pull missing pulls as its caller, whoever carries the run out.
func TestM2ImagePullMissing(t *testing.T) {
	p := newPlace(t)
	host := aRegistry(t, nil)
	push(t, host+"/probe:1", probePicture(t, "one"))
	push(t, host+"/probe:2", probePicture(t, "two"))
	for _, flags := range [][]string{{"--pull", "missing"}, {"--pull=missing"}} {
		r := p.do(slices.Concat([]string{"exec", "--no-gateway", "--no-daemon"}, flags, []string{"--image", host + "/probe:1"})...)
		if r.exit != 0 || !strings.Contains(r.stdout, "value=one") {
			t.Errorf("%v: exit %d %s%s", flags, r.exit, r.stdout, r.stderr)
		}
	}
	if r := p.do("exec", "--no-gateway", "--pull", "missing", "--image", host+"/none:1", "--", "status"); r.exit != 125 || !strings.Contains(r.stderr, "pull "+host) {
		t.Errorf("one that isn't there: exit %d %s", r.exit, r.stderr)
	}
	if got := p.imageRecords(); !slices.Equal(got, []string{"pulled " + host + "/probe:1"}) {
		t.Errorf("on record: %q", got)
	}
}

// imageScenario brings an image, runs it and removes it.
func imageScenario(n launchNode, faults string) (log *lockedBuffer, died bool) {
	log = &lockedBuffer{}
	path := dockerSaved(n.t, map[string]v1.Image{"probe:1": probePicture(n.t, "one")})
	above := dockerSaved(n.t, map[string]v1.Image{"probe:2": derived(n.t, probePicture(n.t, "one"), layerTar(n.t, nil, [2]string{"opt/three", "3"}))})
	for _, args := range [][]string{
		{"image", "import", path}, {"image", "import", above}, {"exec", "--no-gateway", "--no-daemon", "--image", "probe:1"}, {"image", "rm", "probe:1"},
		{"exec", "--no-gateway", "--no-daemon", "--image", "probe:2"},
	} {
		c := n.command(faults, args...)
		c.Stderr = log
		died = bySIGKILL(c.Run()) || died
		if died {
			break
		}
	}
	n.must("image", "gc")
	var list []images.Info
	list = asJSON[[]images.Info](n.t, n.must("image", "ls", "--json").stdout)
	for _, i := range list { // whole, or none
		if got := n.must("exec", "--no-gateway", "--no-daemon", "--image", i.ID); !strings.Contains(got.stdout, "value=one") {
			n.t.Errorf("%+v: %s", i, got.stdout)
		}
		n.must("image", "rm", i.ID)
	}
	if left, _ := filepath.Glob(filepath.Join(n.state, "images", "*-*")); len(left) > 0 {
		n.t.Errorf("left: %v", left)
	}
	return log, died
}

// signedScenario puts the files of a signed image in the place of those that came without.
func signedScenario(n launchNode, faults string) (log *lockedBuffer, died bool) {
	log = &lockedBuffer{}
	key, host, img := newSigner(n.t), aRegistry(n.t, nil), probePicture(n.t, "one")
	d := push(n.t, host+"/probe:1", img).String()
	n.must("image", "pull", host+"/probe:1")
	write(n.t, filepath.Join(n.rootOf(img), "old"), "", 0o644)
	push(n.t, host+"/probe:"+sigTag(d), key.sign(n.t, d))
	pull := slices.Concat(n.configured("images: {signed_by: "+key.public(n.t)+"}\n"), []string{"image", "pull", host + "/probe:1"})
	c := n.command(faults, pull...)
	c.Stderr = log
	died = bySIGKILL(c.Run())
	n.must("image", "gc")
	for range 2 { // one or the other of the two, whole; then the new one, which a second time stays
		list := asJSON[[]images.Info](n.t, n.must("image", "ls", "--json").stdout)
		_, err := os.Lstat(filepath.Join(n.rootOf(img), "old"))
		if len(list) != 1 || (list[0].SignedBy != "") != errors.Is(err, fs.ErrNotExist) {
			n.t.Errorf("%+v, and of the old files: %v", list, err)
		}
		if got := n.must("exec", "--no-gateway", "--no-daemon", "--image", host+"/probe:1"); !strings.Contains(got.stdout, "value=one") {
			n.t.Errorf("it says %s", got.stdout)
		}
		n.must(pull...)
	}
	if _, err := os.Lstat(filepath.Join(n.rootOf(img), "old")); !errors.Is(err, fs.ErrNotExist) {
		n.t.Errorf("the old files, after the signature: %v", err)
	}
	n.must("image", "rm", host+"/probe:1")
	if left, _ := filepath.Glob(filepath.Join(n.state, "images", "*-*")); len(left) > 0 {
		n.t.Errorf("left: %v", left)
	}
	return log, died
}

// As an ordinary user: what is unpacked is the user's, and can be removed again.
func TestM2ImageRootless(t *testing.T) {
	u := someone(t)
	img := picture(t, v1.Config{Cmd: []string{"/bin/probe", "cat", "/etc/mark"}},
		probeLayer(t, "one"), layerTar(t, map[string]tar.Header{"closed/": {Mode: 0o555}}, [2]string{"closed/"}, [2]string{"closed/file", "x"}))
	path, above := filepath.Join(t.TempDir(), "probe.tar"), filepath.Join(t.TempDir(), "above.tar")
	for to, saved := range map[string]map[string]v1.Image{path: {"probe:1": img}, above: {"probe:2": derived(t, img, layerTar(t, nil, [2]string{"closed/.wh.file"}, [2]string{"etc/mark", "two"}))}} {
		text, err := os.ReadFile(dockerSaved(t, saved))
		if err != nil {
			t.Fatal(err)
		}
		write(t, to, string(text), 0o644)
		if err := os.Chmod(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for at := filepath.Dir(path); at != "/tmp" && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(want string, args ...string) {
		t.Helper()
		if code, out, errOut := u.run(t, args...); code != 0 || !strings.Contains(out+errOut, want) {
			t.Errorf("%v: exit %d %s%s", args, code, out, errOut)
		}
	}
	run("layer 2 of 2", "image", "import", path)
	run("2 of 3 layers are there", "image", "import", above)
	run("value=one", "exec", "--no-gateway", "--best-effort", "--image", "probe:1")
	run("", "image", "rm", "probe:1")
	run("value=two", "exec", "--no-gateway", "--best-effort", "--image", "probe:2")
	run("", "image", "rm", "probe:2")
	run("", "image", "gc")
	if code, out, _ := u.run(t, "image", "ls", "--json"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("exit %d, left %s", code, out)
	}
}

// A daemon carries out runs of images too, and a command that joins one is in it.
// Two runs of an image have its files' pages once: those of a program that both execute are shared between them.
func TestM2ImageRunsSharePages(t *testing.T) {
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/probe:1"
	push(t, ref, probePicture(t, "one"))
	p.must("image", "pull", ref)
	begin := func(name, ring string) *told {
		return p.begin(name, p.at(prepare(t, opts{profile: ring, flags: []string{"--no-gateway", "--no-entrypoint", "--image", ref}}, "/bin/probe", "live")))
	}
	a := begin("a", "ring2")
	if shared, private := pages(t, a.seen().PID, "/bin/probe"); shared > 0 || private == 0 {
		t.Errorf("alone: %d KiB shared, %d its own", shared, private)
	}
	b := begin("b", "ring3")
	for _, r := range []*told{a, b} {
		if shared, private := pages(t, r.seen().PID, "/bin/probe"); shared == 0 || private > shared {
			t.Errorf("%s of two: %d KiB shared, %d its own", r.name, shared, private)
		}
	}
	a.quit()
	b.quit()
}

// pages tells how much of a file a process has mapped that is as on disk, in KiB: with others, and alone.
func pages(t *testing.T, pid int, file string) (shared, private int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	of := false
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && strings.Contains(f[0], "-"):
			of = strings.HasSuffix(f[len(f)-1], file)
		case of && f[0] == "Shared_Clean:":
			n, _ := strconv.Atoi(f[1])
			shared += n
		case of && f[0] == "Private_Clean:":
			n, _ := strconv.Atoi(f[1])
			private += n
		}
	}
	return shared, private
}

func TestM2ImageOfTheDaemon(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	p.must("image", "import", dockerSaved(t, map[string]v1.Image{"probe:1": probePicture(t, "one")}))
	r := p.do("exec", "--no-gateway", "--pull", "missing", "--image", "probe:1")
	if r.exit != 0 || !strings.Contains(r.stdout, "value=one") {
		t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	p.must("exec", "--no-gateway", "-d", "--name", "held", "--image", "probe:1", "--no-entrypoint", "--", "/bin/probe", "sleep", "100")
	if got := p.list(); len(got) != 1 || got[0].Supervisor != n.Process.Pid {
		t.Errorf("%+v", got)
	}
	if r := p.inside("held", nil, "/bin/probe", "cat", "/etc/mark", ",", "env"); !strings.Contains(r.stdout, "value=one") || !strings.Contains(r.stdout, "MARK=one") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	if r := p.do("image", "rm", "probe:1"); r.exit != 125 || !strings.Contains(r.stderr, "a live run uses it") {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	// By the API, by the flags' names; a daemon pulls nothing.
	const by = `{"command":["/bin/probe","sleep","0"],"options":{"no-gateway":true,"no-entrypoint":true,"image":"%s"%s}}`
	n.api(t, "POST", "/v1/sandboxes", fmt.Sprintf(by, "probe:1", ""), 200)
	for body, says := range map[string]string{fmt.Sprintf(by, "none:1", ""): "no such image", fmt.Sprintf(by, "none:1", `,"pull":"missing"`): "pulls nothing"} {
		if e, _ := n.api(t, "POST", "/v1/sandboxes", body, 400)["error"].(map[string]any); !strings.Contains(fmt.Sprint(e["message"]), says) {
			t.Errorf("%s: %v, want %q", body, e, says)
		}
	}
	p.must("kill", "held", "--reason", "over")
	eventually(t, 10*time.Second, "the claim ends", func() bool { return p.do("image", "rm", "probe:1").exit == 0 })
	n.drain(t)
}
