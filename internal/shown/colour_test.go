// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Colour is for a terminal whose owner wants it, and for nothing else.
func TestPaint(t *testing.T) {
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tt := range []struct{ term, none, want string }{
		{"xterm", "", "\x1b[31mx\x1b[m"}, {"xterm", "1", "x"}, {"dumb", "", "x"}, {"", "", "x"},
	} {
		t.Setenv("TERM", tt.term)
		t.Setenv("NO_COLOR", tt.none)
		if got := Paint(screen, Red, "x"); got != tt.want {
			t.Errorf("TERM=%q NO_COLOR=%q: got %q, want %q", tt.term, tt.none, got, tt.want)
		}
		if got := Paint(file, Red, "x") + Paint(&bytes.Buffer{}, Red, "x"); got != "xx" {
			t.Errorf("TERM=%q: no terminal gets %q", tt.term, got)
		}
	}
}
