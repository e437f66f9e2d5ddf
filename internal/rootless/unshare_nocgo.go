// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package rootless

const unshareVariable = "_AGENTRUN_UNSHARE"

// Without cgo nothing runs before Go's threads do: such a program is never the one that enters.
func unshared() (asked bool, err error) { return false, nil }

func hasCgroup() bool { return false }
