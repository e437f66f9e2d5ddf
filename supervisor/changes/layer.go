// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/fault"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/runtime"
)

// Layer is what a kept sandbox has changed in its workspace over all of its starts: the upper folder of an overlay, which the next start goes
// on with, and beside it a file about it. Both are in one folder, Files, so that they come and go as one.
//
// What the host has changed since the sandbox first changed it is in conflict. The times of files in the layer can't tell when that was, as
// an agent makes a file anew whenever it likes. So each start notes what the starts before have left, and since which of them it is there.
type Layer struct {
	Sandbox string
	Dir     string       // runtime.Spec.OverlayDir
	Most    int64        // bytes of a layer that can be looked at
	Empty   func() error // puts Files away; nil: it may be looked at only
}

// Files has all that is known of a layer.
func (l Layer) Files() string { return filepath.Join(l.Dir, "changes") }

func (l Layer) about() string { return filepath.Join(l.Files(), "about.json") }

// load returns what is known of a layer; the zero value of one that no run has had.
func (l Layer) load() (a about, err error) {
	b, err := os.ReadFile(l.about())
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// Begin notes that a run is about to go on with the layer, over this workspace. No process of another has it any more.
func (l Layer) Begin(workspace string, uid, gid int, guard []profiles.GuardEntry) error {
	if err := l.begin(workspace, uid, gid, guard); err != nil {
		return fmt.Errorf("changes of sandbox %s: %w", l.Sandbox, err)
	}
	return nil
}

func (l Layer) begin(workspace string, uid, gid int, guard []profiles.GuardEntry) error {
	a, err := l.load()
	if err == nil && a.Applying {
		a, err = l.adopted()
	}
	if err != nil {
		return err
	}
	names, err := l.names(a)
	if err != nil {
		return err
	}
	if len(names) > 0 && a.Workspace != workspace {
		return hinted.New(fmt.Errorf("they were made in %q, and the workspace is %q by now", a.Workspace, workspace),
			"agentrun apply "+l.Sandbox+", or agentrun discard "+l.Sandbox+", ends their waiting")
	}
	first := map[string]time.Time{}
	for _, name := range names {
		since, ok := a.First[quoted(name)]
		if !ok {
			since = a.Started
		}
		first[quoted(name)] = since
	}
	s := Set{about: a}
	if s.root, err = openWithin(nil, workspace, unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return err
	}
	defer s.Close()
	s.keepFirst(first)
	if err := os.MkdirAll(l.Files(), 0o755); err != nil {
		return err
	}
	if err := fault.At("changes/begin"); err != nil {
		return err
	}
	a.Run, a.Workspace, a.UID, a.GID, a.Guard, a.First = l.Sandbox, workspace, uid, gid, guard, first
	a.Started = time.Now().Add(-clockTick)
	return a.save(l.about())
}

// adopted is what is known after an apply that was killed.
func (l Layer) adopted() (a about, err error) {
	s, err := l.Open()
	if err != nil {
		return a, err
	}
	defer s.Close()
	err = s.adopt()
	return s.about, err
}

// names are the paths that the layer has. Without what is known of it nobody can tell where they belong.
func (l Layer) names(a about) ([]string, error) {
	names, err := fsjail.TreeNames(runtime.OverlayChanges(l.Dir))
	// As they are quoted, where a byte that isn't printable takes four; about.json makes it five.
	room := fsjail.MaxPaths
	for _, name := range names {
		room -= len(quoted(name))
	}
	if err == nil && room < 0 {
		err = fsjail.ErrTooManyNames
	}
	if err == nil && len(names) > 0 && a.Run == "" {
		err = fmt.Errorf("%s is lost, which says what they are of", l.about())
	}
	if err != nil {
		err = hinted.New(err, "agentrun discard "+l.Sandbox+" throws away what it has changed in its workspace")
	}
	return names, err
}

// keepFirst adds what isn't in the layer any more and still in the workspace: it has gone with a folder above it, which may have been
// there for a shorter time.
func (s *Set) keepFirst(first map[string]time.Time) {
	for q, since := range s.about.First {
		if _, ok := first[q]; ok {
			continue
		}
		var st unix.Stat_t
		if name, err := strconv.Unquote(q); err == nil && s.stat(name, &st) == nil {
			first[q] = since
		}
	}
}

// Unread is the changes of a layer for whoever only puts them away, also where nobody can look at them.
func (l Layer) Unread() *Set { return &Set{about: about{Run: l.Sandbox}, drop: l.Empty} }

// Open is the changes of a layer that nobody writes meanwhile. One that no run has had, or that was put away, has none.
func (l Layer) Open() (_ *Set, err error) {
	s := &Set{items: map[string]item{}, since: "the sandbox first changed it"}
	s.save = func(a *about) error { return a.save(l.about()) }
	s.drop = l.Empty
	defer func() {
		if err != nil {
			s.Close()
			err = fmt.Errorf("changes of sandbox %s: %w", l.Sandbox, err)
		}
	}()
	if s.about, err = l.load(); err != nil {
		return nil, err
	}
	if s.about.Run == "" {
		_, err = l.names(s.about)
		s.about.Run = l.Sandbox
		return s, err
	}
	s.about.Run = l.Sandbox // a fork has it of another, and a sandbox may be renamed
	if s.root, err = openWithin(nil, s.about.Workspace, unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return nil, fmt.Errorf("its workspace: %w", err)
	}
	if s.file, err = os.CreateTemp(l.Dir, "look-"); err != nil {
		return nil, err
	}
	if err := os.Remove(s.file.Name()); err != nil {
		return nil, err
	}
	err = fsjail.WriteTree(s.file, runtime.OverlayChanges(l.Dir), l.Most)
	if errors.Is(err, fsjail.ErrLayerSize) {
		err = fmt.Errorf("they would be more than %d bytes: it has sparse files, or very many names", l.Most)
	}
	if err != nil {
		return nil, hinted.New(err, "agentrun discard "+l.Sandbox+" throws them away")
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := s.read(); err != nil {
		return nil, err
	}
	if l.Empty == nil {
		return s, nil // nothing is written by whoever only looks
	}
	return s, s.adopt()
}
