// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// reclaimStep is what one write to memory.reclaim asks for: the kernel gives up in the middle of none, so ctx is looked at between two.
const reclaimStep = 64 << 20

// Reclaim has the kernel give back what memory of the group it can do without, until that is nothing or ctx ends: no limit changes, so
// nothing is ever killed for it. A group has no swap (Limits), so that is what files can be read from again; the data of its processes
// and of its tmpfs stay. The error is errors.ErrUnsupported on version 2 before Linux 5.19, and the end of ctx is none.
//
// It is for a group that stands still: others read back at once what they use. Version 1 has memory.force_empty, which works with
// processes in the group, despite its name. Measured on 6.18 with 96 MiB of a file in cache, half of it mapped: force_empty and
// memory.limit_in_bytes as low as it goes gave back 96 MiB in 6 ms, process_madvise(2) with MADV_PAGEOUT the mapped 48 MiB.
func (g *Group) Reclaim(ctx context.Context) error {
	if g.mode != V2 {
		return g.reclaimed(interruptibly(ctx, g.file("memory", "memory.force_empty"), "0"))
	}
	for ctx.Err() == nil {
		err := interruptibly(ctx, g.file("memory", "memory.reclaim"), strconv.Itoa(reclaimStep))
		if err != nil {
			return g.reclaimed(err)
		}
	}
	return nil
}

// reclaimed takes an end of the kernel's work for what it is.
func (g *Group) reclaimed(err error) error {
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.EBUSY): // there is no more
		return nil
	case gone(err):
		err = errors.ErrUnsupported
	}
	return fmt.Errorf("reclaim memory of cgroup %s: %w", g.name, err)
}

// interruptibly writes on a thread of its own. The kernel gives such a write up for any signal: at the end of ctx it gets Go's own, which
// means nothing to a thread that executes none of Go's code. Again and again, as the first may come before the write.
func interruptibly(ctx context.Context, path, value string) (err error) {
	if ctx.Err() != nil {
		return nil
	}
	began, done := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(done)
		thread.Throwaway(func() {
			var fd int
			if fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err != nil {
				return
			}
			defer unix.Close(fd)
			began <- unix.Gettid()
			_, err = unix.Write(fd, []byte(value))
		})
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	var tid int
	select {
	case tid = <-began:
	case <-done:
		return err
	}
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // a thread that has ended is none of this process's: no other has its number here
		select {
		case <-done:
			return err
		case <-again.C:
		}
	}
}
