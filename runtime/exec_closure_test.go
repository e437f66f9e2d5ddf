// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// linkerOfHost reads the dynamic linker of this machine's programs.
func linkerOfHost(t testing.TB) (name string, b []byte) {
	t.Helper()
	_, name = new(Plan).interpreters("/bin/sh")
	if name == "" {
		t.Skip("need: a dynamically linked /bin/sh: this machine's is static")
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return name, b
}

// The copy is no program for the kernel, and an interpreter all the same: what it interprets runs.
func TestInterpreterOnly(t *testing.T) {
	name, b := linkerOfHost(t)
	if out, err := exec.Command(name, "/bin/echo", "any").CombinedOutput(); string(out) != "any\n" {
		t.Fatalf("the linker itself runs no program (%v, %s): there is nothing to keep it from", err, out)
	}
	covered, err := interpreterOnly(bytes.Clone(b))
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "linker")
	if err := os.WriteFile(copied, covered, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(copied, "/bin/echo", "any").Run(); !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("executing the copy: got %v, want ENOEXEC", err)
	}
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	// A shell that names the copy: same length, so that nothing else of the file moves.
	short := strings.Repeat("x", len(name)-len("/tmp/"))
	link := "/tmp/" + short
	if err := os.Symlink(copied, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	prog := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(prog, bytes.Replace(sh, []byte(name+"\x00"), []byte(link+"\x00"), 1), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(prog, "-c", "echo $((6*7))").CombinedOutput(); err != nil || string(out) != "42\n" {
		t.Errorf("a program with the copy as its linker: %v, %s", err, out)
	}
}

// What isn't a linker is refused, and never read past its end.
func TestInterpreterOnlyRefuses(t *testing.T) {
	_, b := linkerOfHost(t)
	for _, tc := range []struct {
		what   string
		change func([]byte) []byte
		want   string
	}{
		{"nothing", func([]byte) []byte { return nil }, "not a 64-bit"},
		{"a script", func([]byte) []byte { return []byte("#!/bin/sh\n" + strings.Repeat(" ", 100)) }, "not a 64-bit"},
		{"cut", func(b []byte) []byte { return b[:63] }, "not a 64-bit"},
		{"32 bits", func(b []byte) []byte { b[4] = 1; return b }, "not a 64-bit"},
		{"big-endian", func(b []byte) []byte { b[5] = 2; return b }, "not a 64-bit"},
		{"other headers", func(b []byte) []byte { b[54] = 57; return b }, "not a 64-bit"},
		{"too large", func(b []byte) []byte { return append(b, make([]byte, maxLinker)...) }, "not a 64-bit"},
		{"headers at the end", func(b []byte) []byte { return b[:100] }, "outside of the file"},
		{"headers far away", func(b []byte) []byte { b[39] = 0xff; return b }, "outside of the file"},
		{"no header to take", func(b []byte) []byte { b[56], b[57] = 0, 0; return b }, "PT_GNU_STACK"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			if _, err := interpreterOnly(tc.change(bytes.Clone(b))); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A --rootfs brings a linker of its own. Either it is refused, or one header is changed and nothing else.
func FuzzInterpreterOnly(f *testing.F) {
	_, b := linkerOfHost(f)
	f.Add(b[:4096])
	f.Add([]byte("\x7fELF\x02\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		got, err := interpreterOnly(b)
		if (err == nil) == (got == nil) {
			t.Fatalf("%d bytes and %v", len(got), err)
		}
		if err != nil {
			return
		}
		differ := 0
		for i := range got {
			if got[i] != before[i] {
				differ++
			}
		}
		if len(got) != len(before) || differ == 0 || differ > 12 {
			t.Fatalf("%d bytes of %d differ", differ, len(before))
		}
		e, err := elf.NewFile(bytes.NewReader(got))
		if err != nil {
			return // the kernel won't have it either
		}
		for _, p := range e.Progs {
			if p.Type == elf.PT_INTERP && p.Filesz < 2 {
				return
			}
		}
		t.Fatal("no program header keeps the kernel from executing it")
	})
}
