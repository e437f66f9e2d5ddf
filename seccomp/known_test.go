// SPDX-License-Identifier: Apache-2.0

package seccomp

import "testing"

func TestKnown(t *testing.T) {
	for name, want := range map[string]bool{"read": true, "arm_fadvise64_64": true, "mseal": true, "file_setattr": true, "raed": false, "": false} {
		if got := Known(name); got != want {
			t.Errorf("%q: got %v, want %v", name, got, want)
		}
	}
}
