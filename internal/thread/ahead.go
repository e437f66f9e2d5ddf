// SPDX-License-Identifier: Apache-2.0

package thread

import "sync"

// Ahead begins fn beside its caller and returns what waits for the answer, which is the same each time. Whoever asks before another thread has
// come to it does it himself.
func Ahead[T any](fn func() (T, error)) func() (T, error) {
	once := sync.OnceValues(fn)
	Beside(func() { _, _ = once() })
	return once
}

// Beside is a go statement for work that is to be done while the caller goes on. The goroutine that a thread has begun last is its own for a
// while: another that looks for work sleeps for 3 µs before it takes it, in case that the first waits next, and wakes some 100 µs later where
// the processor has nothing else to do. What was begun before the last is everybody's at once.
func Beside(fn func()) {
	go func() {
		Room8()
		fn()
	}()
	go func() {}()
}
