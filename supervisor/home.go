// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor/homes"
	"agentrun/supervisor/sandboxes"
)

// showHome has the run see the home that it names, in the place of the empty one of each run. It is a writable bind
// like the operator's own, so a ring that may write nothing of the host's has none.
func (s *run) showHome() (bad []read.Problem) {
	folder, name := s.homeOf()
	problem := func(text string) []read.Problem { return []read.Problem{{Path: "--home", Message: text}} }
	if name == "" {
		return nil
	}
	if s.want.Sandbox == "" || s.want.Home != "" {
		bad = s.checkHome(name, folder, problem)
	}
	home := runtime.BindMount{Source: folder.Files(name), Target: runtime.HomeDir, Writable: true}
	if sealed := s.sealedHomes(); len(sealed) > 0 {
		last := len(sealed) - 1
		home.Source, home.Sealed, home.Changes = sealed[last], sealed[:last], s.keptIn.Root(s.kept)
	}
	s.spec.Binds = append(slices.Clone(s.spec.Binds), home)
	return bad
}

// homeOf says which home the run has, or that it has none: it named one, or its sandbox has one, where the ring may write.
func (s *run) homeOf() (homes.Folder, string) {
	switch {
	case s.want.Home != "":
		return s.node.Homes(), s.want.Home
	case s.kept.Layer != "" && s.spec.Profile.Files.Workspace == profiles.WorkspaceRW:
		return s.keptIn.Homes(s.kept), sandboxes.Home
	}
	return homes.Folder{}, ""
}

// sealedHomes are the layers of the home of a kept sandbox, below its changes; none: it has a plain one.
func (s *run) sealedHomes() []string { return s.keptIn.SealedHomes(s.kept, runtime.HomeDir) }

func (s *run) checkHome(name string, folder homes.Folder, problem func(string) []read.Problem) []read.Problem {
	if err := homes.CheckName(name); err != nil {
		return problem(err.Error())
	}
	if s.spec.Profile.Files.Workspace != profiles.WorkspaceRW {
		return problem(fmt.Sprintf("profile %s may write nothing that lasts; want --ring 2 or 1", s.spec.Profile.Name))
	}
	if _, err := os.Stat(folder.Files(name)); s.host == nil && errors.Is(err, fs.ErrNotExist) {
		return problem(name + ": there is none yet, and a plan makes none; exec and host do")
	}
	return nil
}

func (s *run) takeHome() (err error) {
	folder, name := s.homeOf()
	if name == "" || len(s.sealedHomes()) > 0 { // the sandbox is taken as a whole
		return nil
	}
	s.home, err = folder.Take(name)
	_, over := errors.AsType[*homes.OverQuotaError](err)
	hint := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, homes.ErrBusy):
		hint = "agentrun ps lists live runs; a second one needs a home of its own: --home " + name + "-2"
	case over:
		hint = "make room in " + folder.Files(name) + ", agentrun home rm " + name +
			", or homes: {quota: …} in config.yaml"
	}
	return hinted.New(fmt.Errorf("--home %s: %w", name, err), hint)
}

func (s *run) leaveHome() { s.home.Close() }

// notOwn leaves what the run keeps itself, and its image, out of what it would be shown of the state folder, where it lies: all else there is
// refused to it (H-30). A plan has taken none, and shows the same.
func (s *run) notOwn(hostPaths []string) []string {
	hostPaths = s.notOfImage(hostPaths)
	folder, name := s.homeOf()
	if name == "" {
		return hostPaths
	}
	own, err := filepath.EvalSymlinks(folder.Files(name))
	return slices.DeleteFunc(hostPaths, func(path string) bool {
		return err == nil && path == own || s.kept.Layer != "" && s.keptIn.Within(s.kept, path)
	})
}
