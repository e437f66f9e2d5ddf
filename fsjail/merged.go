// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Merged opens what layers show on each other: host folders without links in their paths, the uppermost first, which nobody changes
// meanwhile. It can't be written, and nothing in it be run; owners are the disk's. What a run with layers that last has renamed is where that
// run saw it. at is an empty folder, and stays one for everybody else. Call it as Isolate.
func Merged(layers []string, at string) (*os.File, error) {
	if err := Isolate(); err != nil {
		return nil, err
	}
	// By descriptor: fsconfig(2) takes 255 bytes of names and mount(2) a page, and names of an image's folders may have anything in them.
	names := make([]string, 0, len(layers))
	for _, l := range layers {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
		fd, err := unix.Openat2(unix.AT_FDCWD, l, &how)
		if err != nil {
			return nil, &os.PathError{Op: "openat2", Path: l, Err: err}
		}
		defer unix.Close(fd)
		names = append(names, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"lowerdir="+strings.Join(names, ":")+",redirect_dir=follow,metacopy=off,index=off")
	if err != nil {
		return nil, os.NewSyscallError("mount overlay", err)
	}
	return os.Open(at)
}
