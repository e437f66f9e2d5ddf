// SPDX-License-Identifier: Apache-2.0

package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nobodys are the ids of a user whom the image's files don't know.
const nobodys = -1

// WhoIs finds the ids of an image's user, NAME or ID, with :GROUP or without, in the text of its own files: nothing of it is run.
func WhoIs(root, user string) (uid, gid int, err error) {
	name, group, grouped := strings.Cut(user, ":")
	if name == "" {
		return 0, 0, nil
	}
	passwd, err := lines(root, "etc/passwd")
	if err != nil {
		return 0, 0, err
	}
	uid, gid = number(name), 0
	for _, f := range passwd { // name:x:uid:gid:…
		if len(f) > 3 && (f[0] == name || uid >= 0 && f[2] == name) {
			uid, gid = number(f[2]), number(f[3])
			break
		}
	}
	if !grouped || uid < 0 {
		return uid, gid, nil
	}
	groups, err := lines(root, "etc/group")
	gid = number(group)
	for _, f := range groups { // name:x:gid:…
		if len(f) > 2 && f[0] == group {
			gid = number(f[2])
			break
		}
	}
	return uid, gid, err
}

func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return nobodys
	}
	return int(n)
}

// maxAccounts bounds a file of accounts.
const maxAccounts = 1 << 20

// lines are the fields of a file's lines. A link in the image is followed as the image would; none there is an empty one.
func lines(root, name string) (all [][]string, err error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("openat2", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if err == nil && len(text) > maxAccounts { // half of a line would be another account
		err = fmt.Errorf("more than %d bytes of accounts", maxAccounts)
	}
	if err != nil {
		return nil, fmt.Errorf("its %s: %w", name, err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		all = append(all, strings.Split(line, ":"))
	}
	return all, nil
}
