// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"golang.org/x/sys/unix"

	"agentrun/images"
	"agentrun/internal/hostcaps"
)

// shellPicture has busybox, and files to change.
func shellPicture(t testing.TB, config v1.Config, files ...[2]string) v1.Image {
	t.Helper()
	needProgram(t, "busybox")
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	all := [][2]string{{"bin/busybox", string(b)}, {"etc/passwd", "root:x:0:0::/:/\napp:x:4321:4321::/:/\n"}}
	for _, name := range []string{"sh", "cat", "ls", "rm", "mv", "mkdir", "stat", "ln", "mkfifo", "chmod", "sleep", "truncate", "find", "sort", "touch", "cp", "echo", "id", "readlink"} {
		all = append(all, [2]string{"bin/" + name, "-> busybox"})
	}
	return picture(t, config, layerTar(t, map[string]tar.Header{"srv/own": {Mode: 0o644, Uid: 4321, Gid: 4321}}, append(all, files...)...))
}

// committedAs is a run of an image.
func (p place) committedAs(ref string, flags []string, script string) string {
	p.t.Helper()
	r := p.do(slices.Concat([]string{"exec", "--no-gateway", "--image", ref}, flags, []string{"--", "/bin/sh", "-c", script})...)
	if r.exit != 0 {
		p.t.Fatalf("exec --image %s: exit %d\n%s%s", ref, r.exit, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// M-2: a kept sandbox becomes an image: what it changed, deleted and renamed in its root, in any of its layers, over the image it began in.
func TestM2CommitASandbox(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/base:1"
	push(t, ref, shellPicture(t, v1.Config{Env: []string{"MARK=base", "PATH=/bin"}, WorkingDir: "/etc", Cmd: []string{"sh", "-c", "echo its own"}, Labels: map[string]string{"kept": "yes"}},
		[2]string{"etc/old", "old"}, [2]string{"etc/gone", "x"}, [2]string{"usr/lib/a/one", "1\n"}, [2]string{"usr/lib/a/two", "2\n"}, [2]string{"usr/lib/whole/x", "x"},
		[2]string{"srv/own", "app's\n"}, [2]string{"opt/untouched", "u\n"}))
	p.must("image", "pull", ref)
	p.kept("dev", "--ring", "1", "--image", ref, "--", "/bin/sleep", "1000")
	p.must("start", "dev")
	p.in("dev", `echo new > /etc/new; echo changed > /etc/old; rm /etc/gone; mv /usr/lib/a /usr/lib/renamed; echo 3 > /usr/lib/renamed/three; ln -s ../new /etc/link
		rm -r /usr/lib/whole; mkdir /usr/lib/whole; echo y > /usr/lib/whole/y; mkdir /opt/sub; chmod 700 /opt/sub; echo secret > ~/home-file`)
	p.must("snapshot", "dev", "first")
	p.must("stop", "dev")
	p.must("snapshot", "dev", "still")
	p.must("start", "dev")
	p.in("dev", `rm /etc/new; echo second > /etc/second; rm /usr/lib/renamed/two; ln /etc/second /etc/hard`)

	out := filepath.Join(t.TempDir(), "tools.tar")
	r := p.must("commit", "--json", "--output", out, "dev", "tools:8") // it runs
	type said struct {
		ID, From, Manifest, Source string
		Names                      []string
		Changes                    struct{ Files, Deleted int }
	}
	got := asJSON[said](t, r.stdout)
	if len(got.ID) != 71 || len(got.Manifest) != 71 || got.Source != "sandbox" || !slices.Equal(got.Names, []string{"tools:8"}) || got.Changes.Deleted != 3 {
		t.Errorf("commit: %+v", got)
	}
	if live := p.lives("dev"); len(live) != 1 || p.in("dev", "echo on") != "on" {
		t.Errorf("it doesn't go on: %v", live)
	}
	const look = `cd /; for f in etc/new etc/old etc/gone etc/second usr/lib/a/one usr/lib/renamed/one usr/lib/renamed/two usr/lib/renamed/three usr/lib/whole/x usr/lib/whole/y srv/own opt/untouched; do
		printf '%s ' $f; cat $f 2>/dev/null || echo -; done; readlink etc/link; stat -c %i etc/second etc/hard | uniq | wc -l; stat -c %a opt/sub; find / -name home-file 2>/dev/null; echo $MARK; cat .wh* etc/.wh* 2>/dev/null; true`
	want := "etc/new -\netc/old changed\netc/gone -\netc/second second\nusr/lib/a/one -\nusr/lib/renamed/one 1\nusr/lib/renamed/two -\nusr/lib/renamed/three 3\n" +
		"usr/lib/whole/x -\nusr/lib/whole/y y\nsrv/own app's\nopt/untouched u\n../new\n1\n700\nbase"
	if got := p.committedAs("tools:8", []string{"--ring", "1"}, look); got != want {
		t.Errorf("the image of it has\n%s\nwant\n%s", got, want)
	}
	if r := p.must("exec", "--no-gateway", "--image", "tools:8"); r.stdout != "its own\n" {
		t.Errorf("its command: %q", r.stdout)
	}
	// What it had then, of a snapshot; the second layer isn't in it.
	p.must("commit", "-q", "dev@first", "tools:7")
	if got := p.committedAs("tools:7", []string{"--ring", "2"}, "cat /etc/new /usr/lib/renamed/two; ls /etc/second 2>/dev/null; true"); got != "new\n2" {
		t.Errorf("of a snapshot: %q", got)
	}
	for name, uid := range map[string]uint32{"etc/new": 0, "etc/old": 0, "srv/own": 4321} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(p.state, "images", strings.Replace(p.images()[0].ID, ":", "-", 1), "rootfs", name), &st); err != nil || st.Uid != uid || st.Gid != uid {
			t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
		}
	}
	p.must("stop", "dev")
	layout := filepath.Join(t.TempDir(), "layout")
	p.must("commit", "-q", "--oci-layout", layout, "dev", "tools:9")
	index := asJSON[struct{ Manifests []struct{ Digest string } }](t, readFile(t, filepath.Join(layout, "index.json")))
	if i := p.images(); len(index.Manifests) != 1 || i[0].Manifest != index.Manifests[0].Digest {
		t.Errorf("layout %v, image %+v", index, i[0])
	}
	if got := p.committedAs("tools:9", []string{"--ring", "1"}, look); got != want {
		t.Errorf("of one that stands still\n%s\nwant\n%s", got, want)
	}
	// An image of an image of a sandbox.
	p.kept("next", "--ring", "1", "--image", "tools:9", "--", "/bin/sleep", "1000")
	p.must("start", "next")
	p.in("next", "echo third > /etc/old")
	p.must("commit", "-q", "next", "tools:10")
	if got := p.committedAs("tools:10", []string{"--ring", "2"}, "cat /etc/old /etc/second"); got != "third\nsecond" {
		t.Errorf("an image of an image: %q", got)
	}
	onRecord := []string{}
	for _, e := range p.audit() {
		if e.Kind == "image" && e.Data["change"] == "committed" {
			onRecord = append(onRecord, fmt.Sprint(e.Data["image"], e.Data["names"], e.Data["source"]))
		}
	}
	if len(onRecord) != 4 || onRecord[0] != fmt.Sprint(got.ID, "[tools:8]", "sandbox") || !slices.Contains(p.changes("dev"), "committed") {
		t.Errorf("on record: %q, %q", onRecord, p.changes("dev"))
	}
	if left, _ := filepath.Glob(filepath.Join(p.state, "images", ".new-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	p.must("image", "import", "--name", "again:1", out)
	if i := p.images(); !slices.ContainsFunc(i, func(i images.Info) bool { return i.ID == got.ID && slices.Contains(i.Names, "again:1") }) {
		t.Error("the archive isn't the image")
	}
	t.Run("podman", func(t *testing.T) { p.podmanReads(t, out) })
}

// podmanReads has an engine that isn't ours load an archive, into folders of the test's.
func (p place) podmanReads(t *testing.T, archive string) {
	needProgram(t, "podman")
	dir, err := os.MkdirTemp("/tmp", "commit") // podman's paths are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	podman := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "podman", append([]string{"--root", dir + "/root", "--runroot", dir + "/run", "--tmpdir", dir + "/tmp", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			if e, ok := err.(*exec.ExitError); ok {
				t.Fatalf("podman %v: %v %s", args, err, e.Stderr)
			}
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	podman("load", "-q", "-i", archive)
	id := podman("images", "-q", "--no-trunc")
	var about []struct {
		Config struct {
			Env, Cmd   []string
			WorkingDir string
			Labels     map[string]string
		}
		History []struct {
			CreatedBy string `json:"created_by"`
		}
	}
	if err := json.Unmarshal([]byte(podman("image", "inspect", id)), &about); err != nil || len(about) != 1 {
		t.Fatalf("%v %v", err, about)
	}
	if c := about[0].Config; !slices.Contains(c.Env, "MARK=base") || c.WorkingDir != "/etc" || len(c.Cmd) != 3 || c.Labels["kept"] != "yes" {
		t.Errorf("configuration %+v", c)
	}
	if h := about[0].History; len(h) != 2 || h[1].CreatedBy != "agentrun commit dev" {
		t.Errorf("history %+v", h)
	}
	root := podman("image", "mount", id)
	defer podman("image", "unmount", "--force", id)
	if got := readFile(t, filepath.Join(root, "etc/old")) + readFile(t, filepath.Join(root, "usr/lib/renamed/one")); got != "changed\n1\n" {
		t.Errorf("podman sees %q", got)
	}
	for _, gone := range []string{"etc/gone", "usr/lib/a", "usr/lib/whole/x", "etc/.wh.gone"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); err == nil {
			t.Errorf("podman sees %s", gone)
		}
	}
}

// What an agent leaves in its root leads nowhere on the host, and gives the image neither rights nor size.
func TestThreatTakeoverHostileCommit(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	p := newPlace(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "host", 0o600)
	ref := aRegistry(t, nil) + "/team/base:1"
	push(t, ref, shellPicture(t, v1.Config{Env: []string{"PATH=/bin"}}, [2]string{"etc/was", "x"}, [2]string{"etc/kept", "same"}, [2]string{`a,b:c\d/x`, "odd"}))
	p.must("image", "pull", ref)
	p.kept("dev", "--ring", "1", "--image", ref, "--quota", "64M", "--on-breach", "record", "--", "/bin/sleep", "1000")
	p.must("start", "dev")
	p.in("dev", fmt.Sprintf(`cd /etc; ln -s %[1]s out; ln -s / up; ln -s ../../../../../.. far; mkfifo pipe; cp /bin/busybox su; chmod 6755 su 2>/dev/null; echo x > .wh.kept; mkdir .wh.d; echo > .wh..wh..opq
		rm was; mkfifo was; mkdir -p d; chmod 2777 d 2>/dev/null; echo y > '/a,b:c\d/y'; mv /etc/kept /etc/k; cp /etc/k /etc/kept; touch -r /etc/k /etc/kept; printf 'diff' > /etc/kept; touch -r /etc/k /etc/kept`, secret))
	p.must("commit", "-q", "dev", "tools:1")
	got := p.committedAs("tools:1", []string{"--ring", "1"}, `cd /etc; ls -A | sort; stat -c %a su d; cat out up/`+secret+` far/`+secret+` 2>/dev/null; cat kept '/a,b:c\d/y' '/a,b:c\d/x'`)
	if want := "d\nfar\nk\nkept\nout\npasswd\nsu\nup\n755\n755\ndiffy\nodd"; got != want {
		t.Errorf("the image has\n%s\nwant\n%s", got, want)
	}
	layers, _ := filepath.Glob(filepath.Join(p.state, "layers", "*"))
	before := p.stored()
	for name, c := range map[string][2]string{
		"files of holes": {"truncate -s 50M /etc/s1; truncate -s 50M /etc/s2", "rm /etc/s1 /etc/s2"},
		"deep":           {"cd /etc; i=0; while [ $i -lt 150 ]; do mkdir e && cd e || exit 1; i=$((i+1)); done", "rm -r /etc/e"},
	} {
		p.in("dev", c[0])
		if r := p.do("commit", "-q", "dev", "tools:2"); r.exit != 125 || !strings.Contains(r.stderr, "larger than it may be") && !strings.Contains(r.stderr, "quota") {
			t.Errorf("%s: exit %d %s", name, r.exit, r.stderr)
		}
		p.in("dev", c[1])
	}
	if now, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(now) != len(layers) || len(p.stored()) != len(before) {
		t.Errorf("left: %v, %v", now, p.stored())
	}
}

// THREATS "takeover": who owns the folder that a layout is written to puts another under its name. The image that is kept is of the sandbox.
func TestThreatTakeoverLayoutOfACommit(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/base:1"
	push(t, ref, shellPicture(t, v1.Config{Env: []string{"PATH=/bin"}}))
	p.must("image", "pull", ref)
	into := t.TempDir()
	layout, theirs := filepath.Join(into, "layout"), filepath.Join(into, "theirs")
	for _, whose := range []string{"theirs", "ours"} {
		p.kept(whose, "--ring", "1", "--image", ref, "--", "/bin/sleep", "1000")
		p.must("start", whose)
		p.in(whose, "echo "+whose+" > /etc/whose")
		p.must("stop", whose)
	}
	p.must("commit", "-q", "--oci-layout", theirs, "theirs", "theirs:1")
	var swapped atomic.Bool
	swapping(t, func() {
		if _, err := os.Stat(filepath.Join(layout, "index.json")); err == nil && !swapped.Load() {
			swapped.Store(os.Rename(layout, filepath.Join(into, "gone")) == nil && os.Rename(theirs, layout) == nil)
		}
	})
	p.must("commit", "-q", "--oci-layout", layout, "ours", "ours:1")
	eventually(t, hang(), "it is swapped", swapped.Load)
	if got := p.committedAs("ours:1", []string{"--ring", "1"}, "cat /etc/whose"); got != "ours" {
		t.Errorf("the image is %q", got)
	}
}

// THREATS "paths the host follows": a commit that fails takes away what it has written, and not what the owner of a folder above has put under
// that name.
func TestThreatTakeoverFailedCommit(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/base:1"
	push(t, ref, shellPicture(t, v1.Config{Env: []string{"PATH=/bin"}}))
	p.must("image", "pull", ref)
	p.kept("dev", "--ring", "1", "--image", ref, "--", "/bin/sleep", "1000")
	host, theirs := t.TempDir(), filepath.Join(t.TempDir(), "project")
	precious := write(t, filepath.Join(host, "images", "precious"), "the host's", 0o600)
	write(t, filepath.Join(host, "tools.tar"), "the host's", 0o600)
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	var swapped atomic.Bool
	swapping(t, func() {
		if _, err := os.Lstat(filepath.Join(theirs, "images")); err == nil && !swapped.Load() {
			swapped.Store(os.Rename(theirs, theirs+"-gone") == nil && os.Symlink(host, theirs) == nil)
		}
	})
	r := p.do("commit", "-q", "--oci-layout", filepath.Join(theirs, "images"), "--output", filepath.Join(theirs, "tools.tar"), "dev", "dev:1")
	eventually(t, hang(), "it is swapped", swapped.Load)
	if r.exit == 0 || !strings.Contains(r.stderr, "exists") {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	if b, err := os.ReadFile(precious); err != nil || string(b) != "the host's" {
		t.Errorf("the host's folder: %q, %v", b, err)
	}
	if left, err := os.ReadDir(theirs + "-gone"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestM2CommitRefuses(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/base:1"
	push(t, ref, shellPicture(t, v1.Config{}))
	p.must("image", "pull", ref)
	p.kept("host", "--ring", "1")
	p.kept("two", "--ring", "2", "--image", ref, "--", "/bin/sleep", "1")
	p.kept("one", "--ring", "1", "--image", ref, "--", "/bin/sleep", "1")
	there := filepath.Join(t.TempDir(), "there")
	write(t, there, "mine", 0o600)
	signed := p.configured("images: {signed_by: /etc/agentrun-none.pub}\n")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"folders of the host", []string{"commit", "host", "x"}},
		{"in ring 2 its root is read-only", []string{"commit", "two", "x"}},
		{"no kept sandbox", []string{"commit", "none", "x"}},
		{"no snapshot", []string{"commit", "one@none", "x"}},
		{"want one with or without a tag", []string{"commit", "one", "x@sha256:" + strings.Repeat("0", 64)}},
		{"no name that an image can get", []string{"commit", "one", "a b"}},
		{"is there already", []string{"commit", "--output", there, "one", "x"}},
		{"is there already", []string{"commit", "--oci-layout", there, "one", "x"}},
		{"signed images only", append(slices.Clone(signed), "commit", "one", "x")},
	} {
		if r := p.do(c.args...); r.exit == 0 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: exit %d %s, want %q", c.args, r.exit, r.stderr, c.want)
		}
	}
	if b := readFile(t, there); b != "mine" || len(p.images()) != 1 {
		t.Errorf("%q, %v", b, p.images())
	}
}
