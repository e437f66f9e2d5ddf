// SPDX-License-Identifier: Apache-2.0

package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Step is what an image says of how it came to be. Its builder wrote it.
type Step struct {
	Created time.Time `json:"created,omitzero"`
	By      string    `json:"created_by,omitempty"`
	Comment string    `json:"comment,omitempty"`
	Layer   string    `json:"layer,omitempty"` // digest of the layer that it made, unpacked; empty: none
	Bytes   int64     `json:"bytes,omitempty"` // of that as it came
}

// About is what an image says of itself beside Config.
type About struct {
	Author  string            `json:"author,omitempty"`
	Created time.Time         `json:"created,omitzero"` // when it was built
	Labels  map[string]string `json:"labels,omitempty"`
	Ports   []string          `json:"ports,omitempty"`
	Volumes []string          `json:"volumes,omitempty"`
	Stop    string            `json:"stop_signal,omitempty"`
	Steps   []Step            `json:"history"`
}

// About reads an image's own configuration. fs.ErrNotExist: an older agentrun has unpacked it, and kept none.
func (f Folder) About(i Image) (a About, err error) {
	text, err := f.Raw(i.ID)
	if err != nil {
		return a, err
	}
	var of struct {
		Author  string
		Created time.Time
		Config  struct {
			Labels                map[string]string
			ExposedPorts, Volumes map[string]struct{}
			StopSignal            string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
		History []struct {
			Created    time.Time
			CreatedBy  string `json:"created_by"`
			Comment    string
			EmptyLayer bool `json:"empty_layer"`
		}
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return a, fmt.Errorf("its configuration: %w", err)
	}
	a = About{Author: of.Author, Created: of.Created, Labels: of.Config.Labels, Stop: of.Config.StopSignal, Steps: []Step{}}
	a.Ports, a.Volumes = keys(of.Config.ExposedPorts), keys(of.Config.Volumes)
	n := 0
	next := func(s Step) Step {
		if s.Layer = of.RootFS.DiffIDs[n]; n < len(i.Layers) {
			s.Bytes = i.Layers[n]
		}
		n++
		return s
	}
	for _, h := range of.History {
		s := Step{Created: h.Created, By: h.CreatedBy, Comment: h.Comment}
		if !h.EmptyLayer && n < len(of.RootFS.DiffIDs) {
			s = next(s)
		}
		a.Steps = append(a.Steps, s)
	}
	for n < len(of.RootFS.DiffIDs) { // a history is not asked for
		a.Steps = append(a.Steps, next(Step{}))
	}
	return a, nil
}

func keys(m map[string]struct{}) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// ErrKind is what is neither a folder nor a plain file.
var ErrKind = errors.New("it is neither a folder nor a plain file")

// Entry is a name in an image.
type Entry struct {
	Name  string      `json:"name"`
	Mode  fs.FileMode `json:"-"`
	Type  string      `json:"mode"` // Mode, as ls has it
	UID   uint32      `json:"uid"`
	GID   uint32      `json:"gid"`
	Bytes int64       `json:"bytes"`
	Time  time.Time   `json:"time"`
	Link  string      `json:"link,omitempty"` // where a symbolic link says that it leads
}

// maxEntries of one folder are listed.
const maxEntries = 100_000

// Open opens a folder or a plain file of an image. Links are followed as in a run, so they lead nowhere else than into the image.
func (f Folder) Open(id, unsafePath string) (*os.File, fs.FileInfo, error) {
	root, err := os.Open(f.Root(id))
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	how := &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(int(root.Fd()), unsafePath, how)
	if err != nil {
		return nil, nil, os.NewSyscallError("openat2", err)
	}
	file := os.NewFile(uintptr(fd), unsafePath)
	info, err := file.Stat()
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = ErrKind
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// Entries are those of a folder that Open has opened, by name.
func Entries(dir *os.File) (list []Entry, more bool, err error) {
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if more = len(names) > maxEntries; more {
		names = names[:maxEntries]
	}
	slices.Sort(names)
	list = make([]Entry, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, false, os.NewSyscallError("fstatat", err)
		}
		e := Entry{Name: name, Mode: fs.FileMode(st.Mode & 0o777), UID: st.Uid, GID: st.Gid, Bytes: st.Size, Time: time.Unix(st.Mtim.Unix()).UTC()}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			e.Mode, e.Bytes = e.Mode|fs.ModeDir, 0
		case unix.S_IFLNK:
			e.Mode |= fs.ModeSymlink
			text := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(int(dir.Fd()), name, text)
			if err != nil {
				return nil, false, os.NewSyscallError("readlinkat", err)
			}
			e.Link = string(text[:n])
		}
		if st.Mode&unix.S_ISVTX != 0 {
			e.Mode |= fs.ModeSticky
		}
		e.Type = e.Mode.String()
		list = append(list, e)
	}
	return list, more, nil
}

// EntryOf is what Open has opened.
func EntryOf(info fs.FileInfo) Entry {
	st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // of a file that is open, on Linux
	return Entry{Name: info.Name(), Mode: info.Mode(), Type: info.Mode().String(), UID: st.Uid, GID: st.Gid, Bytes: info.Size(), Time: info.ModTime().UTC()}
}
