// SPDX-License-Identifier: Apache-2.0

//go:build race

package hostcaps

// The race detector multiplies the cost of Go code around each call.
const raceFactor = 4
