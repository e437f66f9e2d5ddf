// SPDX-License-Identifier: Apache-2.0

package beneath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFresh: somebody has put something else where a folder was made.
var ErrNotFresh = errors.New("somebody else has put something in its place meanwhile")

// Fresh opens a folder that this process has just made in another one, which others may write: by the time it is opened one of them may
// have given its name away. What it opens is that folder or as good as it: this user's, empty, no link, and with no right beyond perm.
func Fresh(dir int, name string, perm uint32) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = ErrNotFresh
	}
	if err != nil {
		return nil, fmt.Errorf("openat %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	err = os.NewSyscallError("fstat", unix.Fstat(fd, &st))
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o777&^perm != 0) {
		err = ErrNotFresh
	}
	if err == nil {
		if _, err = f.ReadDir(1); err == nil {
			err = ErrNotFresh
		} else if errors.Is(err, io.EOF) {
			_, err = f.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// GiveLink has a link that this process has just made be another's: the link itself, and none that has taken its name since.
func GiveLink(dir int, name, to string, uid, gid int) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	is := make([]byte, len(to)+1)
	if n, err := unix.Readlinkat(fd, "", is); err != nil || string(is[:n]) != to || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: %w", name, ErrNotFresh)
	}
	return os.NewSyscallError("fchownat", unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH))
}

// Climbs tells of a link that goes up again after it went down. Where the names before the ".." are links themselves, it leads elsewhere than
// its words say.
func Climbs(link string) bool {
	down := false
	for part := range strings.SplitSeq(link, "/") {
		switch part {
		case "", ".":
		case "..":
			if down {
				return true
			}
		default:
			down = true
		}
	}
	return false
}
