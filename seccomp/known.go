// SPDX-License-Identifier: Apache-2.0

package seccomp

import "errors"

// Known says whether any architecture has a system call of this name, as far as this package knows. A rule with a name
// that is not known can't be compiled; as an unknown number the call gives ENOSYS all the same.
func Known(name string) bool {
	arch, err := Native.info()
	if err != nil {
		return false
	}
	_, err = number(name, arch)
	return err == nil || errors.Is(err, ErrNotHere)
}
