// SPDX-License-Identifier: Apache-2.0

// Package mapped is for files that processes map to count in together.
package mapped

import (
	"fmt"
	"runtime/debug"
)

// Guard does what touches a mapping of a file, called what for people. A page of it that can't be had is SIGBUS (mmap(2)), which
// would end the process: the file was cut, or its disk is full where it has a hole, or where the file system writes a page elsewhere
// each time, as btrfs. That is the error.
func Guard(what string, do func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("a page of %s can't be had: its disk is full, or the file was cut", what)
		default:
			panic(r)
		}
	}()
	do()
	return nil
}
