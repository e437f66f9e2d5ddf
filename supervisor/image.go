// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"agentrun/fsjail"
	"agentrun/images"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/runtime"
)

// showImage has the run see the root of the image that it names, and begin as the image says. The name is looked up once: what it means
// is in the plan by its digest.
func (s *run) showImage() error {
	ref := s.want.Image
	if ref == "" {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("--image %.200q: %w", ref, err) }
	if s.want.Rootfs != "" {
		return &runtime.InvalidSpec{Problems: []read.Problem{{Path: "--image", Message: "--rootfs is another root; leave one of the two out"}}}
	}
	i, err := s.node.Images().Resolve(ref)
	if errors.Is(err, images.ErrNone) {
		return hinted.New(fail(err), "agentrun image pull "+ref+" brings it; agentrun image ls lists those there are")
	}
	if err == nil {
		err = s.node.ImagePolicy.Runs(i)
	}
	if err == nil {
		err = runsHere(i)
	}
	if err != nil {
		return fail(err)
	}
	// Without links, as the view takes them.
	of, err := filepath.EvalSymlinks(s.node.Images().Of(i.ID))
	if err != nil {
		return fail(err)
	}
	s.spec.Rootfs = filepath.Join(of, filepath.Base(s.node.Images().Root(i.ID)))
	s.spec.Image = runtime.Image{Ref: ref, ID: i.ID, Manifest: i.Manifest, Env: i.Config.Env, Workdir: i.Config.Workdir}
	if i.UID != 0 {
		s.spec.Image.Owner = &fsjail.Owner{UID: uint32(i.UID), GID: uint32(i.GID)} //nolint:gosec // in range
	}
	if !s.want.NoEntrypoint {
		s.spec.Command = i.Config.Command(s.want.Command)
	}
	if len(s.spec.Command) == 0 {
		return hinted.New(fail(errors.New("it says of no command that it is to be run")), "name one: agentrun exec --image "+ref+" -- COMMAND")
	}
	return nil
}

// maxImageID is the highest id that files of an image have.
const maxImageID = 65535

// runsHere refuses an image whose programs, or whose user, no run of this node can have.
func runsHere(i images.Image) error {
	if here := "linux/" + goruntime.GOARCH; i.Platform != here && !strings.HasPrefix(i.Platform, here+"/") {
		return hinted.New(fmt.Errorf("it is for %s, and this is %s", i.Platform, here), "agentrun image pull without --platform looks for this machine's")
	}
	if i.UID < 0 || i.GID < 0 {
		return fmt.Errorf("its user %.100q is in neither of its own passwd and group", i.Config.User)
	}
	if i.UID > maxImageID || i.GID > maxImageID {
		return fmt.Errorf("its user %.100q is %d:%d, and ids are at most %d", i.Config.User, i.UID, i.GID, maxImageID)
	}
	return nil
}

func (s *run) useImage() (err error) {
	if id := s.spec.Image.ID; id != "" {
		if s.image, err = s.node.Images().Use(id); err != nil {
			err = fmt.Errorf("--image %.200q: %w", s.want.Image, err)
		}
	}
	return err
}

func (s *run) leaveImage() {
	if s.image != nil {
		s.image.Close()
	}
}

// notOfImage leaves the run's image out of what it would be shown of the state folder.
func (s *run) notOfImage(hostPaths []string) []string {
	if s.spec.Image.ID == "" {
		return hostPaths
	}
	return slices.DeleteFunc(hostPaths, func(path string) bool { return strings.HasPrefix(path, s.spec.Rootfs+"/") })
}
