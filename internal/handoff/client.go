// SPDX-License-Identifier: Apache-2.0

package handoff

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-stack-protector
// #include "client.h"
import "C"

import "unsafe"

// Declined tells why the daemon did not take this command over; empty: none was asked, or none listens.
func Declined() string { return C.GoString(C.agentrun_declined()) }

// BuildID is the linker's digest of this program; empty if it was linked without.
func BuildID() string {
	var id [64]byte
	n := C.agentrun_build_id((*C.uchar)(unsafe.Pointer(&id[0])), C.int(len(id)))
	return string(id[:n])
}
