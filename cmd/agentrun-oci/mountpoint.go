// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mountPoints makes what volumes are mounted on and the image doesn't have: engines count on it, and the root is a layer of the container's
// own. agentrun makes nothing in a root that it is given, since that may be a folder of the host's; so the host's / is left alone here, too.
func mountPoints(root string, c *specs.Spec) error {
	if root == "/" {
		return nil
	}
	for _, m := range c.Mounts {
		if at, _, ok := tmpfs(m); ok && !owned(at) {
			if err := mountPoint(root, at, true); err != nil {
				return fmt.Errorf("mount point %.200q: %w", at, err)
			}
		}
		if !bound(m) || owned(m.Destination) {
			continue
		}
		info, err := os.Stat(m.Source)
		if err == nil {
			err = mountPoint(root, path.Clean("/"+m.Destination), info.IsDir())
		}
		if err != nil {
			return fmt.Errorf("mount point %.200q: %w", m.Destination, err)
		}
	}
	return nil
}

// mountPoint makes folders, and at the end a folder or a file. The root's content is nobody's word: a link in it is not followed
// (openat2(2), RESOLVE_NO_SYMLINKS), not even one that somebody has put there since the last look, so nothing is made outside.
func mountPoint(root, at string, folder bool) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	names := strings.Split(strings.TrimPrefix(at, "/"), "/")
	for i, name := range names {
		last := i == len(names)-1
		if last && !folder {
			fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
			if err == nil {
				unix.Close(fd)
			}
			return but(err, unix.EEXIST)
		}
		if err := but(unix.Mkdirat(dir, name, 0o755), unix.EEXIST); err != nil || last {
			return err
		}
		next, err := unix.Openat2(dir, name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
		})
		if err != nil {
			// Where it leads, and whether there is a mount point, is looked at by agentrun, which makes nothing.
			return but(err, unix.ELOOP)
		}
		unix.Close(dir)
		dir = next
	}
	return nil
}

// but is an error, unless it is the one that is expected.
func but(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// rootOf is a bundle's root without links in its path.
func rootOf(bundle string, c *specs.Spec) (string, error) {
	root := c.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(bundle, root)
	}
	return filepath.EvalSymlinks(root)
}
