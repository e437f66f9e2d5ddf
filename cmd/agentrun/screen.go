// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/supervisor"
)

// The terminal's second screen, which leaves the first as it was (xterm, "Alternate Screen Buffer"), and the cursor.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	exitScreen  = "\x1b[?25h\x1b[?1049l"
	topLeft     = "\x1b[H"
	restOfLine  = "\x1b[K"
	restBelow   = "\x1b[J"
)

// takeScreen makes the terminal's second screen ours. The context it gives ends when q or Ctrl-C is typed. Signal keys are off:
// what they would send comes as a character, so nothing ends us past leave but SIGKILL.
func takeScreen(ctx context.Context) (_ context.Context, leave func(), err error) {
	ctx, end := context.WithCancel(ctx)
	restore := func() {}
	if isTerminal(os.Stdin) {
		if restore, err = readableKeys(os.Stdin); err != nil {
			end()
			return nil, nil, fmt.Errorf("terminal: %w", err)
		}
		go readKeys(os.Stdin, end)
	}
	fmt.Print(enterScreen)
	return ctx, func() {
		fmt.Print(exitScreen)
		restore()
		end()
	}, nil
}

// readableKeys gives each key as it is typed, unseen.
func readableKeys(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	keys := *was
	keys.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, unix.IoctlSetTermios(fd, unix.TCSETS, &keys)
}

func readKeys(f *os.File, end func()) {
	defer end() // a terminal that is gone shows nothing to anybody
	var b [16]byte
	for {
		n, err := f.Read(b[:])
		if err != nil || strings.ContainsAny(string(b[:n]), "q\x03\x04") {
			return
		}
	}
}

func drawLook(v look) error {
	width, height, ok := terminalSize(os.Stdout)
	if !ok {
		width, height = 80, 24
	}
	_, err := os.Stdout.WriteString(frame(topLines(v, width), height))
	return err
}

// frame overwrites the screen line by line: clearing it first would flicker. The last line has no end, or the terminal scrolls.
func frame(lines []string, height int) string {
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	return topLeft + strings.Join(lines, restOfLine+"\r\n") + restOfLine + restBelow
}

// terminalSize is that of the terminal f is, if it is one.
func terminalSize(f *os.File) (width, height int, ok bool) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}

func isTerminal(f *os.File) bool { return supervisor.IsTerminal(int(f.Fd())) }
