// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentrun/control"
)

// M-23: images by the control API: pulled for a run, listed, and not removed while something has them; on record with who asked.
func TestM23ImagesByAPI(t *testing.T) {
	d := startDaemon(t, "--pool-max", "0")
	p, c, ctx := place{t, d.run, d.state}, d.client(t), t.Context()
	host := aRegistry(t, nil)
	ref := host + "/team/probe:1"
	img := probePicture(t, "by the API")
	manifest := push(t, ref, img)
	if all, err := c.Images(ctx); err != nil || len(all) != 0 {
		t.Errorf("before: %v, %v", all, err)
	}
	i, err := c.PullImage(ctx, control.ImagePull{Name: ref})
	if err != nil || i.ID != configDigest(t, img) || i.Manifest != manifest.String() || i.By != "uid:0" || !slices.Equal(i.Names, []string{ref}) || i.Files == 0 {
		t.Fatalf("pull: %+v, %v", i, err)
	}
	if all, err := c.Images(ctx); err != nil || len(all) != 1 || all[0].ID != i.ID || all[0].Live {
		t.Errorf("list: %+v, %v", all, err)
	}
	k, err := c.CreateKept(ctx, control.KeptRequest{Name: "dev", Command: []string{"/bin/probe", "sleep", "60000"},
		Options: map[string]json.RawMessage{"image": json.RawMessage(`"` + ref + `"`), "no-gateway": json.RawMessage("true"), "no-entrypoint": json.RawMessage("true")}})
	if err != nil {
		t.Fatalf("create: %+v, %v", k, err)
	}
	refused := func(want, message string, err error) {
		t.Helper()
		if got := refusedWith(err); got != want || !strings.Contains(err.Error(), message) {
			t.Errorf("got %s (%v), want %s with %q", got, err, want, message)
		}
	}
	_, err = c.RemoveImage(ctx, ref)
	refused("409 conflict", "the kept sandbox dev has it", err)
	if _, err := c.StartKept(ctx, "dev", control.KeptStart{}); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Images(ctx); err != nil || !all[0].Live {
		t.Errorf("live: %+v, %v", all, err)
	}
	_, err = c.RemoveImage(ctx, i.ID)
	refused("409 conflict", "a live run uses it", err)
	if err := c.RemoveKept(ctx, "dev", true); err != nil {
		t.Fatal(err)
	}
	other := host + "/team/probe:2"
	push(t, other, img)
	if i, err = c.PullImage(ctx, control.ImagePull{Name: other}); err != nil || len(i.Names) != 2 {
		t.Errorf("a second name: %+v, %v", i, err)
	}
	if r, err := c.RemoveImage(ctx, other); err != nil || r.Gone {
		t.Errorf("one of two names: %+v, %v", r, err)
	}
	if r, err := c.RemoveImage(ctx, ref); err != nil || !r.Gone {
		t.Errorf("the last name: %+v, %v", r, err)
	}
	_, err = c.RemoveImage(ctx, ref)
	refused("404 not_found", "no such image", err)
	if got := p.imageRecords(); !slices.Equal(got, []string{"pulled " + ref, "pulled " + other, "untagged " + other, "removed " + ref}) {
		t.Errorf("on record: %q", got)
	}
	// What is wrong is told as on the command line; nothing is left.
	push(t, host+"/hostile:1", picture(t, v1.Config{}, layerTar(t, nil, [2]string{"../x", "x"})))
	for name, want := range map[string]string{host + "/none:1": "NAME_UNKNOWN", host + "/hostile:1": "leads out of the image", "a b": "no name of an image", "": "name", "10.0.0.1:1/x": "without TLS"} {
		_, err := c.PullImage(ctx, control.ImagePull{Name: name})
		refused("400 bad_request", want, err)
	}
	_, err = c.PullImage(ctx, control.ImagePull{Name: ref, Platform: "linux/none"})
	refused("400 bad_request", "linux/none", err)
	if left := p.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// THREATS "joining and keeping": nobody but root and the daemon's own user has anything fetched with the daemon's credentials; readers
// remove none, others see none.
func TestThreatPrivilegeImagesByOthers(t *testing.T) {
	needProgram(t, "curl")
	asked := make(chan string, 64)
	ref := aRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool { asked <- r.URL.Path; return false }) + "/team/probe:1"
	d, as := operatorsDaemon(t)
	p := place{t, d.run, d.state}
	p.must("image", "import", "-q", dockerSaved(t, map[string]v1.Image{"here:1": probePicture(t, "here")}))
	const nobody, reader, operator = 3, 2, 1
	for _, tc := range []struct {
		line, body string
		least      int // who may; 0: root alone
	}{
		{"POST /v1/images", `{"name":"` + ref + `"}`, 0},
		{"GET /v1/images", "", reader},
		{"DELETE /v1/images", `{"name":"here:1"}`, operator},
	} {
		for who := nobody; who >= operator; who-- {
			method, path, _ := strings.Cut(tc.line, " ")
			got, may := as(who, method, path, tc.body), who <= tc.least
			if strings.Contains(got, "forbidden") == may || may && strings.Contains(got, "error") {
				t.Errorf("%s by %d: got %s, want it done: %v", tc.line, who, got, may)
			}
		}
	}
	if len(asked) > 0 || len(p.stored()) > 0 {
		t.Errorf("the registry was asked %d times, stored %v", len(asked), p.stored())
	}
	for _, e := range p.audit() {
		if e.Kind == "image" && e.Data["change"] == "removed" && e.Data["by"] != "uid:54321" {
			t.Errorf("on record: %v", e.Data)
		}
	}
	d.drain(t)
}
