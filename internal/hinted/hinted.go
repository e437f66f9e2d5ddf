// SPDX-License-Identifier: Apache-2.0

// Package hinted has the error that tells its reader the way out. Its text says what is wrong; the hint is printed on a line of
// its own, below that of the whole chain of errors. It is no type to branch on: what it wraps is.
package hinted

// Error is an error with the way out.
type Error struct {
	err  error
	Hint string
}

// New returns err with a hint.
func New(err error, hint string) *Error { return &Error{err, hint} }

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }
