// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ownerOf is the user that a process's user namespace belongs to, in ours (ioctl_ns(2)).
func ownerOf(pid int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	uid, err := unix.IoctlGetUint32(int(f.Fd()), unix.NS_GET_OWNER_UID)
	return int(uid), os.NewSyscallError("ioctl NS_GET_OWNER_UID", err)
}
