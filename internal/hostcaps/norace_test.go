// SPDX-License-Identifier: Apache-2.0

//go:build !race

package hostcaps

const raceFactor = 1
