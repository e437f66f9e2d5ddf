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
		grow()
		fn()
	}()
	<-done
}

// Room16 makes the goroutine's stack 16 KiB large, as a request and a prepared launch need it: at once, while there is nothing on it, and not in
// three steps with a copy each.
//
//go:noinline
func Room16() {
	var room [12 << 10]byte
	goruntime.KeepAlive(&room)
}

// Room8 is Room16 for what needs half of it.
//
//go:noinline
func Room8() {
	var room [5 << 10]byte
	goruntime.KeepAlive(&room)
}

// grow is that of a whole launch.
//
//go:noinline
func grow() {
	var room [24 << 10]byte
	goruntime.KeepAlive(&room)
}
