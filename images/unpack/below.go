// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/images"
)

// below is what layers do to the image below them, which they can't see: a program that strangers' layers have taken over must not reach
// another image's files. What a name means there is noted, and looked up when that image is put below them (package based). What is noted
// about a name is about the image itself, since it is noted once no layer has said anything of that name: later layers change nothing in it.
// nil is no image, and hides all that isn't there.
type below struct {
	hidden  map[string]bool // as images.Delta has it
	through map[string]bool
	files   map[string]bool
	links   map[string]string
	deleted []string
}

// Over begins above an image that is there already. Its layers count as if they had been unpacked.
func (t *Tree) Over(base images.Counts, layers int) {
	t.counts, t.layer = base, layers
	t.below = &below{hidden: map[string]bool{}, through: map[string]bool{}, files: map[string]bool{}, links: map[string]string{}}
	t.dirs[""] = folder{mode: 0o755, below: true}
}

// Delta is what the layers do to the image that Over has put below them.
func (t *Tree) Delta() *images.Delta {
	d := &images.Delta{Hidden: names(t.below.hidden), Through: names(t.below.through), Files: names(t.below.files)}
	for _, name := range slices.Sorted(maps.Keys(t.below.links)) {
		d.Links = append(d.Links, images.Link{Name: images.Name(name), To: images.Name(t.below.links[name])})
	}
	for _, name := range t.below.deleted {
		d.Deleted = append(d.Deleted, images.Name(name))
	}
	for _, name := range slices.Sorted(maps.Keys(t.dirs)) {
		if t.dirs[name].below {
			d.Folders = append(d.Folders, images.Name(name))
		}
	}
	return d
}

func names(set map[string]bool) (all []images.Name) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		all = append(all, images.Name(name))
	}
	return all
}

// above is the folder of a name, "" at the top.
func above(name string) string { return strings.TrimSuffix(name[:strings.LastIndex(name, "/")+1], "/") }

// hides tells that a name which isn't in the tree isn't in the image either, whatever is below.
func (b *below) hides(name string) bool {
	if b == nil {
		return true
	}
	for ; name != ""; name = above(name) {
		if b.hidden[name] || b.hidden[above(name)+"/"] {
			return true
		}
	}
	return false
}

func (b *below) hide(name string) {
	if b != nil {
		b.hidden[name] = true
	}
}

func (b *below) forget(name string) {
	if b != nil {
		delete(b.links, name)
	}
}

func (b *below) linked(name string) (to string, placeholder bool) {
	if b != nil {
		to, placeholder = b.links[name]
	}
	return to, placeholder
}

// link puts a file in the place of a hard link to what is below.
func (b *below) link(at int, base, name, to string) error {
	fd, err := open(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	b.links[name], b.files[to] = to, true
	return os.NewSyscallError("close", unix.Close(fd))
}

// pass notes that a layer goes through a folder that isn't in the tree: below, nothing else may have its name.
func (t *Tree) pass(dir string) {
	if t.below.hides(dir) {
		return
	}
	for ; dir != ""; dir = above(dir) {
		fd, err := open(t.root, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err == nil {
			unix.Close(fd)
			return
		}
		t.below.through[dir] = true
	}
}

// gone hides what a deletion means that isn't in the tree. Whether it is below is counted later.
func (t *Tree) gone(name, of string) error {
	if t.below.hides(name) {
		t.counts.Missing++
		return nil
	}
	t.below.hide(of)
	t.below.deleted = append(t.below.deleted, path.Clean(name))
	return nil
}
