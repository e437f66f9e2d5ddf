// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Colour is one that terminals have; the theme says how it looks.
type Colour string

// The colours.
const (
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
	Cyan   Colour = "36"
)

// Paint returns our own text in a colour where w is a terminal that shows some and nobody wants none (NO_COLOR with
// any value). Text of others goes through Line before and stays without.
func Paint(w io.Writer, c Colour, text string) string {
	f, ok := w.(interface{ Fd() uintptr })
	if term := os.Getenv("TERM"); !ok || term == "" || term == "dumb" || os.Getenv("NO_COLOR") != "" {
		return text
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[m"
}
