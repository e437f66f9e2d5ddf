// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/audit"
)

// ptyPair gives both ends of a pty.
func ptyPair(t *testing.T) (main, tty *os.File) {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { main.Close() })
	if err := unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return main, tty
}

// THREATS, records and disk: names and reasons of an agent's in the audit command no terminal, in no form of
// output; what programs read stays byte for byte what was hashed.
func TestH29HostileRecordsOnATerminal(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	l, err := audit.Open(filepath.Join(state, "audit"), audit.NodeChain, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"\u009b31m\u202e\u2066\u200b\u007f\u0085", "\x1b[2J\x1b]0;owned\a", "\r\nnode: sound: 9 entries", "\xff\x9b2J", "<script>alert(1)</script>"} {
		h := audit.Claimed(text)
		for _, r := range []audit.Record{
			&audit.Refusal{AgentID: h, Class: h, Count: 1, RunID: h, Syscall: h, Verdict: h},
			&audit.SafetyOperation{AgentID: h, Code: "ok", Operation: h, Subject: h},
			&audit.SafetyStep{AgentID: h, Element: h, Factors: []string{h, h}, Hint: audit.Hash{1}, Mode: "enforcing", Rule: h, Stage: "tier", Verdict: "pause"},
			&audit.Key{Event: "created", KeyID: h, PublicKey: h, Purpose: "sre_witness"},
			&audit.CheckpointLost{By: h, Cause: "accepted", Head: h},
		} {
			if _, err := l.Append(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(nodeFile(state))
	if err != nil {
		t.Fatal(err)
	}
	entries := bytes.Count(file, []byte("\n"))
	for _, args := range []string{"tail -n 99", "tail -n 99 --json", "show", "show --json", "export", "verify", "verify --json"} {
		main, tty := ptyPair(t)
		done := make(chan string)
		go func() {
			var text []byte
			buf := make([]byte, 64<<10)
			for !bytes.HasSuffix(text, []byte("END\r\n")) {
				n, err := main.Read(buf)
				if text = append(text, buf[:n]...); err != nil {
					break
				}
			}
			done <- string(text)
		}()
		app := newApp()
		app.Writer = tty
		_ = app.RunContext(t.Context(), append([]string{"agentrun", "--state-dir", state, "audit"}, strings.Fields(args)...))
		fmt.Fprintln(tty, "END")
		shown := strings.ReplaceAll(<-done, "\r\n", "\n") // the terminal's own line ends
		if obeys(shown) {
			t.Errorf("%s: a terminal would obey %q", args, shown)
		}
		if !strings.HasPrefix(args, "verify") && strings.Count(shown, "\n") != entries+1 {
			t.Errorf("%s: %d lines, want %d", args, strings.Count(shown, "\n")-1, entries)
		}
		if strings.Contains(args, "--json") {
			for _, line := range strings.Split(strings.TrimSuffix(shown, "END\n"), "\n") {
				if !strings.HasPrefix(args, "verify") && line != "" && !json.Valid([]byte(line)) {
					t.Errorf("%s: no JSON any more: %q", args, line)
				}
			}
		}
	}
	for _, args := range []string{"tail -n 99 --json", "show --json", "export"} {
		if out, _, _ := auditRun(t, state, strings.Fields(args)...); out != string(file) {
			t.Errorf("%s: not byte for byte what was written", args)
		}
	}
}
