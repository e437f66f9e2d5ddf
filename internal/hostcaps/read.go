// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ReadKernel is os.ReadFile for files that the kernel writes (proc(5), cgroups(7)), with a third of its system calls: these files have no
// size, and nobody need wait for them, while os.File has the netpoller watch them, which wakes a thread for nothing. Errors are
// *os.PathError.
func ReadKernel(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var text []byte
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return string(text), nil
		default:
			text = append(text, buf[:n]...)
		}
	}
}
