// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentrun/images"
)

type imageShown struct {
	ID    string
	About images.About
}

// M-2: an image can be looked at without being run: what it says of itself, its layers and how they came to be, folders and files.
func TestM2ImageShow(t *testing.T) {
	p := newPlace(t)
	ref := aRegistry(t, nil) + "/team/probe:1"
	img := probePicture(t, "one")
	push(t, ref, img)
	p.must("image", "pull", ref)
	r := p.must("image", "show", ref)
	for _, want := range []string{ref, configDigest(t, img), "MARK=one", "entrypoint  probe", "command", "cat /etc/mark", "folder", "LAYER"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q isn't in\n%s", want, r.stdout)
		}
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	got := asJSON[imageShown](t, p.must("image", "show", "--json", ref).stdout)
	if got.ID != configDigest(t, img) || len(got.About.Steps) != len(layers) {
		t.Fatalf("%+v", got)
	}
	for n, l := range layers {
		diff, _ := l.DiffID()
		if size, _ := l.Size(); got.About.Steps[n].Layer != diff.String() || got.About.Steps[n].Bytes != size {
			t.Errorf("layer %d: %+v, want %s of %d bytes", n, got.About.Steps[n], diff, size)
		}
	}
	if got := p.must("image", "show", ref, "/etc/mark").stdout; got != "one" {
		t.Errorf("a file: %q", got)
	}
	if got := p.must("image", "show", ref, "etc").stdout; !strings.Contains(got, "passwd") || strings.Contains(got, "gone") {
		t.Errorf("a folder:\n%s", got)
	}
	list := asJSON[[]images.Entry](t, p.must("image", "show", "--json", ref, "srv").stdout)
	if len(list) != 1 || list[0].Name != "own" || list[0].UID != 4321 || list[0].Type != "-rw-------" || list[0].Bytes != int64(len("app's own")) {
		t.Errorf("a folder, as JSON: %+v", list)
	}
	if got := asJSON[images.Entry](t, p.must("image", "show", "--json", ref, "/srv/own").stdout); got.Bytes != 9 || got.GID != 4321 {
		t.Errorf("a file, as JSON: %+v", got)
	}
	for want, args := range map[string][]string{
		"agentrun image ls": {"none:1"}, "no such file": {ref, "/nowhere"}, "--max-size": {"--max-size", "2B", ref, "/etc/mark"}, "want NAME": {},
	} {
		if r := p.do(append([]string{"image", "show"}, args...)...); r.exit == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d %s, want %q", args, r.exit, r.stderr, want)
		}
	}
	if p.images()[0].Live {
		t.Error("a claim is left")
	}
}

// Links of an image lead into the image, whatever they say; and what its builder wrote does nothing to a terminal.
func TestThreatTakeoverImageShow(t *testing.T) {
	p := newPlace(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "of the host", 0o600)
	const bell = "\x1b]0;owned\x07"
	ref := aRegistry(t, nil) + "/team/hostile:1"
	push(t, ref, picture(t, v1.Config{Env: []string{"X=" + bell}, Labels: map[string]string{"l": bell}, Cmd: []string{"\x1b[2J"}, WorkingDir: "/\x1b[2J"},
		layerTar(t, map[string]tar.Header{"dev/null": {Typeflag: tar.TypeChar}},
			[2]string{"abs", "-> " + secret}, [2]string{"up", "-> ../../../../../../../../" + secret}, [2]string{"root", "-> /"}, [2]string{"dots", "-> .."}, [2]string{"self", "-> /proc/self/root"},
			[2]string{"loop", "-> loop"}, [2]string{"etc/x", "in the image"}, [2]string{"in", "-> /etc/x"}, [2]string{"d/" + bell, bell + "text\n"}, [2]string{"dev/null", ""})))
	p.must("image", "pull", "-q", ref)
	for path, want := range map[string]string{
		"/abs": "no such file", "/up": "no such file", "/root" + secret: "no such file", "/dots" + secret: "no such file", "../../../../../../../.." + secret: "no such file",
		"/self" + secret: "no such file", "/self/etc/passwd": "no such file", "/loop": "too many levels", "/proc/self/environ": "no such file", secret: "no such file",
	} {
		if r := p.do("image", "show", ref, path); r.exit != 125 || !strings.Contains(r.stderr, want) || strings.Contains(r.stdout+r.stderr, "of the host") {
			t.Errorf("%s: exit %d %q %q, want %q", path, r.exit, r.stdout, r.stderr, want)
		}
	}
	for path, want := range map[string]string{"/in": "in the image", "/root/root/etc/x": "in the image", "/dots/../etc/x": "in the image"} {
		if got := p.must("image", "show", ref, path).stdout; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for _, args := range [][]string{{ref}, {ref, "/d"}, {ref, "/d/" + bell}} {
		screen, name := safetyTerminal(t)
		tty, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), agentrun, append([]string{"--state-dir", p.state, "--run-dir", p.run, "image", "show"}, args...)...)
		cmd.Stdout, cmd.Stderr = tty, io.Discard
		if err := cmd.Run(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		fmt.Fprintln(tty, "the end")
		tty.Close()
		eventually(t, hang(), "it is on the terminal", func() bool { return strings.Contains(screen(), "the end") })
		if got := screen(); strings.ContainsAny(got, "\x1b\x07") || !strings.Contains(got, `\u001b`) {
			t.Errorf("%q: on the terminal %q", args, got)
		}
	}
	if got := p.must("image", "show", ref, "/d/"+bell).stdout; got != bell+"text\n" {
		t.Errorf("into a pipe: %q", got)
	}
}
