// SPDX-License-Identifier: Apache-2.0

// Package thread runs functions on threads that are thrown away, for work that changes the thread
// itself: its namespaces, its cgroup, being a parent for the parent-death signal.
//
//	thread.Throwaway(func() { err = unix.Unshare(unix.CLONE_NEWNET) })
//
// It guarantees that no other goroutine ever runs on such a thread, and that it is not the main
// thread: Go ends a thread whose goroutine returns while locked to it, but it can't end the main one,
// which then stays in the namespace for good, with /proc/self pointing there.
//
// It has no errors. It does not protect against fn starting goroutines: those run elsewhere.
package thread

import (
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// Throwaway runs fn on a thread of its own, waits for it, and lets the thread end. Signals and
// children that fn's thread has belong to it no more when Throwaway returns.
func Throwaway(fn func()) {
	done := make(chan struct{})
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine holds the main thread, the next one can't get it.
			Throwaway(fn)
			goruntime.UnlockOSThread()
			close(done)
			return
		}
		defer close(done) // also if fn calls Goexit, as t.Fatal does
		Room32()
		fn()
	}()
	<-done
}

// Room32 makes the goroutine's stack 32 KiB large, as a whole launch needs it: at once, while there is next to nothing on it, and not in steps of
// twice the size with a copy each, for which the runtime looks up every function that waits on the stack. Nothing of the room is touched
// (room.s), so that the kernel makes no page that nobody needs.
func Room32()

// The main goroutine's, before what depends on this package is set up.
func init() { Room32() }

// Room16 is Room32 for a request and a prepared launch.
func Room16()

// Room8 is Room32 for what needs a quarter of it.
func Room8()
