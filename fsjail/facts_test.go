// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A process with our own /proc is refused before anything is mounted: the option would be the host's.
func TestFactsLeaveTheHostsProcAlone(t *testing.T) {
	err := build(t, []Entry{{Kind: Dir, Target: "/sys", Mode: 0o555}}, Options{}, func(r *Root) {
		f, err := MakeFacts(r, []string{"/proc/meminfo", "/proc/sys", "/sys"}, map[string]string{
			"/proc/meminfo": "made up\n", "/proc/sys/kernel/x": "1\n", "/sys/y": "2\n",
		}, "/proc/sys", &Stages{})
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if err := f.Show(sleeper(t), "subset=pid"); !errors.Is(err, unix.EBUSY) {
			t.Errorf("got %v, want %v", err, unix.EBUSY)
		}
		if err := f.Write(map[string]string{"/proc/meminfo": "x\n", "/sys/y": "longer than before\n"}); err != nil {
			t.Error(err)
		}
		if err := f.Write(map[string]string{"/proc/none": "x"}); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a file that isn't there: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile("/proc/meminfo"); err != nil || string(b) == "made up\n" {
		t.Errorf("the host's meminfo: %q, %v", b, err)
	}
	(*Facts)(nil).Close()
}
