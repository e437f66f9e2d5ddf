// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// H-32: an agent that writes and closes on and on has a bound of the host's processor time: no more is read, and it is said that there
// was more. What was read before it counts.
func TestH32WritesAreBounded(t *testing.T) {
	for name, w := range map[string]*Writes{
		"closings": {asks: 3, left: maxAll},
		"bytes":    {asks: maxAsks, left: 3 * 4},
		"none":     {asks: 5, left: 5 * 4},
	} {
		t.Run(name, func(t *testing.T) {
			r, events, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer events.Close()
			w.fan, w.done, w.last = r, make(chan struct{}), map[uint64]Written{}
			size := uint32(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
			for i := range 5 {
				f, err := os.CreateTemp(t.TempDir(), "")
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(f, "%04d", i)
				fd, err := unix.Dup(int(f.Fd()))
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				if err := binary.Write(&b, binary.NativeEndian, unix.FanotifyEventMetadata{Event_len: size, Metadata_len: uint16(size), Fd: int32(fd)}); err != nil {
					t.Fatal(err)
				}
				events.Write(b.Bytes())
			}
			want, bounded := 3, true
			if name == "none" {
				want, bounded = 5, false
				events.Close()
			}
			go w.listen()
			<-w.done
			if len(w.last) != want || w.more != bounded {
				t.Errorf("%d files, more: %v", len(w.last), w.more)
			}
			if bounded {
				if err := w.mark(0); err != nil {
					t.Errorf("a mount that comes later: %v", err)
				}
				if last, more := w.End(); len(last) != want || !more {
					t.Errorf("at the end %d files, more: %v", len(last), more)
				}
			}
		})
	}
}
