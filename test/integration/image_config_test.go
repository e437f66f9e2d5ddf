// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// builtPicture is an image as builders make them today: a layer by zstd on one by gzip, and every word that there is of how it is run.
func builtPicture(t testing.TB) v1.Image {
	t.Helper()
	img := picture(t, v1.Config{
		Env: []string{"PATH=/opt/bin:/bin", "GREETING=two words = and more", "EMPTY="}, User: "app:team", WorkingDir: "/srv", Entrypoint: []string{"probe"},
		Cmd:     []string{"cat", "/srv/own", ",", "cat", "/srv/late", ",", "cwd", ",", "env"},
		Volumes: map[string]struct{}{"/data": {}, "/srv": {}}, ExposedPorts: map[string]struct{}{"8080/tcp": {}}, StopSignal: "SIGINT",
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/none"}}, Labels: map[string]string{"a": "b"},
	}, probeLayer(t, "built"))
	late := layerTar(t, map[string]tar.Header{"srv/late": {Mode: 0o640, Uid: 4321, Gid: 777}}, [2]string{"etc/group", "root:x:0:\nteam:x:777:\n"}, [2]string{"srv/late", "of a layer by zstd"}, [2]string{"data/", ""})
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(late)), nil },
		tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
	if err == nil {
		img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: types.OCILayerZStd, History: v1.History{CreatedBy: "COPY late /srv/"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// M-2: an image for many machines, with what its builder says of how it is run; volumes, ports, health checks and signals change nothing.
func TestM2ImageAsBuilt(t *testing.T) {
	p := newPlace(t)
	own := builtPicture(t)
	foreign := mutate.MediaType(probePicture(t, "foreign"), types.OCIManifestSchema1)
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "windows", Architecture: goarch()}}},
		mutate.IndexAddendum{Add: own, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: goarch()}}},
		// What builders add of how it was built.
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}}})
	ref := aRegistry(t, nil) + "/team/built:1"
	to, err := name.ParseReference(ref)
	if err == nil {
		err = remote.WriteIndex(to, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	if l, err := layout.Write(dir, empty.Index); err != nil {
		t.Fatal(err)
	} else if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "laid:1"})); err != nil {
		t.Fatal(err)
	}
	p.must("image", "pull", "-q", ref)
	p.must("image", "import", "-q", dir)
	if list := p.images(); len(list) != 1 || list[0].ID != configDigest(t, own) || !slices.Contains(list[0].Names, ref) || !slices.Contains(list[0].Names, "laid:1") {
		t.Errorf("%+v", list)
	}
	for _, ring := range []string{"2", "3"} {
		got := p.does([]string{"--image", "laid:1", "--ring", ring})
		if got["cat /srv/own"] != "value=app's own" || got["cat /srv/late"] != "value=of a layer by zstd" || got["cwd"] != "value=/srv" {
			t.Errorf("ring %s: %v", ring, got)
		}
		for _, want := range []string{"GREETING=two words = and more", "EMPTY="} {
			if !strings.Contains("|"+strings.TrimPrefix(got["env"], "value=")+"|", "|"+want+"|") {
				t.Errorf("ring %s: environment %s, want %s", ring, got["env"], want)
			}
		}
		// A volume is no place to write that outlives a run.
		if got := p.does([]string{"--image", "laid:1", "--ring", ring}, "create", "/data/x"); got["create /data/x"] != "EROFS" {
			t.Errorf("ring %s: a volume: %v", ring, got)
		}
	}
	about := asJSON[imageShown](t, p.must("image", "show", "--json", ref).stdout).About
	if !slices.Equal(about.Volumes, []string{"/data", "/srv"}) || !slices.Equal(about.Ports, []string{"8080/tcp"}) || about.Stop != "SIGINT" || about.Labels["a"] != "b" ||
		len(about.Steps) != 2 || about.Steps[1].By != "COPY late /srv/" || about.Steps[1].Bytes == 0 {
		t.Errorf("%+v", about)
	}
}

// Accounts, words and folders that an image lies about: the run has nobody else's ids, or there is none.
func TestThreatTakeoverHostileConfiguration(t *testing.T) {
	host := filepath.Join(t.TempDir(), "passwd")
	write(t, host, "app:x:0:0::/:/\nouter:x:4321:4321::/:/\n", 0o644)
	huge := "x:x:7:7::/:/\n" + strings.Repeat("f:x:1:1::/:/\n", 1<<20/13) + "app:x:4321:4321::/:/\n"
	for title, c := range map[string]struct {
		config v1.Config
		files  [][2]string
		want   string // of stderr; empty: it runs
	}{
		"passwd that leads out":         {v1.Config{User: "outer"}, [][2]string{{"etc/passwd", "-> " + host}}, "its user"},
		"passwd that leads up":          {v1.Config{User: "outer"}, [][2]string{{"etc/passwd", "-> ../../../../../../../.." + host}}, "its user"},
		"passwd by /proc":               {v1.Config{User: "outer"}, [][2]string{{"etc/passwd", "-> /proc/self/root" + host}}, "its user"},
		"passwd that is a loop":         {v1.Config{User: "app"}, [][2]string{{"etc/passwd", "-> passwd"}}, "its user"},
		"passwd within the image":       {v1.Config{User: "app"}, [][2]string{{"etc/passwd", "-> /usr/accounts"}, {"usr/accounts", "app:x:4321:4321::/:/\n"}}, ""},
		"passwd that is a folder":       {v1.Config{User: "app"}, [][2]string{{"etc/passwd/x", "app:x:4321:4321::/:/\n"}}, "etc/passwd"},
		"passwd that is huge":           {v1.Config{User: "app"}, [][2]string{{"etc/passwd", huge}}, "more than 1048576 bytes"},
		"passwd without a line's end":   {v1.Config{User: "app"}, [][2]string{{"etc/passwd", "app:x:4321:4321"}}, ""},
		"group that leads out":          {v1.Config{User: "4321:outer"}, [][2]string{{"etc/passwd", "app:x:4321:4321::/:/\n"}, {"etc/group", "-> " + host}}, "its user"},
		"an id of 2^32":                 {v1.Config{User: "4294967296"}, nil, "its user"},
		"an id below zero":              {v1.Config{User: "-1"}, nil, "its user"},
		"an id above all":               {v1.Config{User: "65536:65536"}, nil, "at most 65535"},
		"accounts with an id of 2^32":   {v1.Config{User: "app"}, [][2]string{{"etc/passwd", "app:x:4294967296:4294967296::/:/\n"}}, "its user"},
		"a name that is a path":         {v1.Config{User: "../../etc/passwd"}, nil, "its user"},
		"a name of two lines":           {v1.Config{User: "app\nroot:x:0:0"}, nil, "its user"},
		"a variable without a name":     {v1.Config{Env: []string{"=x"}}, nil, "no NAME=VALUE"},
		"a variable that is none":       {v1.Config{Env: []string{"x"}}, nil, "no NAME=VALUE"},
		"a variable that ends early":    {v1.Config{Env: []string{"A=x\x00B=y"}}, nil, "no NAME=VALUE"},
		"a folder that isn't there":     {v1.Config{WorkingDir: "/none"}, nil, "/none"},
		"a folder above":                {v1.Config{WorkingDir: "/../../.." + filepath.Dir(host)}, nil, filepath.Base(filepath.Dir(host))},
		"a folder that is a link out":   {v1.Config{WorkingDir: "/out"}, [][2]string{{"out", "-> " + filepath.Dir(host)}}, "/out"},
		"an entrypoint that isn't":      {v1.Config{Entrypoint: []string{"/none"}}, nil, "/none"},
		"an entrypoint that leads out":  {v1.Config{Entrypoint: []string{"/out"}}, [][2]string{{"out", "-> " + probeBin}}, "/out"},
		"words that are more than kept": {v1.Config{Cmd: []string{strings.Repeat("x", 300<<10)}}, nil, "are the most"},
	} {
		t.Run(title, func(t *testing.T) {
			p := newPlace(t)
			b, err := os.ReadFile(probeBin)
			if err != nil {
				t.Fatal(err)
			}
			files := append([][2]string{{"bin/probe", string(b)}, {"srv/own", "app's own"}}, c.files...)
			img := picture(t, c.config, layerTar(t, map[string]tar.Header{"srv/own": {Mode: 0o600, Uid: 4321, Gid: 4321}}, files...))
			r := p.do("image", "import", "-q", dockerSaved(t, map[string]v1.Image{"u:1": img}))
			if r.exit == 0 {
				r = p.do("exec", "--no-gateway", "--no-daemon", "--image", "u:1", "--", "/bin/probe", "cat", "/srv/own")
			}
			switch {
			case c.want != "" && (r.exit != 125 && r.exit != 126 && r.exit != 127 || !strings.Contains(r.stderr, c.want)):
				t.Errorf("exit %d %s%s, want %q", r.exit, r.stdout, r.stderr, c.want)
			case c.want == "" && answers(r.stdout)["cat /srv/own"] != "value=app's own":
				t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
			}
		})
	}
}
