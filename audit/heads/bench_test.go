// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"path/filepath"
	"testing"

	"agentrun/audit"
)

// What a signature costs beside the note: one reading before it, one writing after it.
func BenchmarkHeads(b *testing.B) {
	s := State{Dir: filepath.Join(b.TempDir(), "state")}
	if err := s.Keep("node", audit.Head{Size: 1}, false); err != nil {
		b.Fatal(err)
	}
	b.Run("head", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := s.Head("node"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("keep", func(b *testing.B) {
		n := int64(1)
		for b.Loop() {
			n++
			if err := s.Keep("node", audit.Head{Size: n}, false); err != nil {
				b.Fatal(err)
			}
		}
	})
}
