// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// kernelTexts are what files are read into: a start reads some twenty, and to clear 8 KiB for each takes as long as a system call.
var kernelTexts = sync.Pool{New: func() any { return new(make([]byte, 0, 8<<10)) }}

// Kernel is os.ReadFile for files that the kernel writes (proc(5), cgroups(7)), with a third of its system calls: these
// files have no size, and nobody need wait for them, while os.File has the netpoller watch them, which wakes a thread
// for nothing. The error is a *os.PathError.
func Kernel(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	kept := kernelTexts.Get().(*[]byte) //nolint:forcetypeassert // there is nothing else in it
	defer kernelTexts.Put(kept)
	text := (*kept)[:0]
	defer func() { *kept = text }()
	for {
		text = slices.Grow(text, 4<<10) // no read of such a file gives more than a page
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return string(text), nil
		default:
			text = text[:len(text)+n]
		}
	}
}
