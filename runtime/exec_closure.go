// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// narrowExec holds execve(2) to the command's own chain and the profile's tools, by Landlock rights on
// those very files: the path that execve is given sits in memory the agent can change after anybody
// looked at it, so no answer to a notification could hold it (M-4, mode tools of a profile).
//
// The kernel executes the dynamic linker of a program by the same right as the program itself, and a linker
// that is executed as a program runs any other: /lib64/ld-linux-x86-64.so.2 /usr/bin/id. So the sandbox has a
// copy of the linker that the kernel takes as an interpreter only (interpreterOnly). What is left to the
// agent is what no right of execve holds: it can load a file that it may read into its own memory, and jump
// there.
func (p *Plan) narrowExec() error {
	programs := []string{p.Command.Exe}
	for _, t := range p.profile.Subprocess.Tools {
		programs = append(programs, t.Path)
	}
	p.Landlock.Rules = slices.DeleteFunc(p.Landlock.Rules, func(r fsjail.LandlockRule) bool { return r.Access == unix.LANDLOCK_ACCESS_FS_EXECUTE })
	for i := range p.Landlock.Rules {
		p.Landlock.Rules[i].Access &^= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	seen := map[string]bool{}
	p.programs = map[string]bool{}
	for len(programs) > 0 {
		name := programs[0]
		programs = programs[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		p.programs[name] = true
		host, info, err := view(p.Entries).host(name)
		if err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("profile %s: tool %s is not a file in the sandbox", p.Profile, name)
		}
		p.Landlock.Rules = append(p.Landlock.Rules, fsjail.LandlockRule{
			Path: name, Access: unix.LANDLOCK_ACCESS_FS_EXECUTE,
		})
		words, linker := p.interpreters(host)
		programs = append(programs, words...)
		if linker != "" && !seen["linker "+linker] {
			seen["linker "+linker] = true
			if err := p.coverLinker(linker); err != nil {
				return fmt.Errorf("profile %s: dynamic linker %s of %s: %w", p.Profile, linker, name, err)
			}
		}
	}
	return nil
}

// coverLinker puts a copy that can't be executed by itself in the linker's place.
func (p *Plan) coverLinker(name string) error {
	p.Landlock.Rules = append(p.Landlock.Rules, fsjail.LandlockRule{
		Path: name, Access: unix.LANDLOCK_ACCESS_FS_EXECUTE,
	})
	target, host, _, err := view(p.Entries).resolved(name)
	if err != nil {
		return err
	}
	if e, ok := view(p.Entries).at(target); ok && e.Kind == fsjail.Cover {
		return nil // known by another name
	}
	f, err := openHead(host)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLinker+1))
	if err != nil {
		return err
	}
	if b, err = interpreterOnly(b); err != nil {
		return err
	}
	p.Entries = append(p.Entries, fsjail.Entry{
		Kind: fsjail.Cover, Target: target, Source: host, Content: string(b), IsFile: true,
		Why: "a copy of the dynamic linker that the kernel takes as an interpreter only",
	})
	return nil
}

// maxLinker is far above any: glibc's has 200 KiB; musl's, which is its whole C library, 600.
const maxLinker = 4 << 20

// interpreterOnly changes one program header of an ELF file so that execve(2) of it is ENOEXEC while it goes
// on working as the interpreter of others: load_elf_binary refuses a program whose PT_INTERP names less than
// one character, and load_elf_interp doesn't look at an interpreter's PT_INTERP (fs/binfmt_elf.c). The header
// is PT_GNU_STACK, which the kernel reads of the program and not of its interpreter, and which linkers don't
// read of themselves.
func interpreterOnly(b []byte) ([]byte, error) {
	const ( // elf(5), ELFCLASS64, little-endian
		ehSize, phSize       = 64, 56
		phoff, phentsize     = 32, 54
		phnum                = 56
		pType, pFilesz       = 0, 32
		ptInterp, ptGNUStack = 3, 0x6474e551
	)
	le := binary.LittleEndian
	if len(b) > maxLinker || len(b) < ehSize || string(b[:6]) != "\x7fELF\x02\x01" || le.Uint16(b[phentsize:]) != phSize {
		return nil, errors.New("not a 64-bit ELF file of this machine, or larger than 4 MiB")
	}
	at, n := le.Uint64(b[phoff:]), uint64(le.Uint16(b[phnum:]))
	if at > uint64(len(b)) || n > (uint64(len(b))-at)/phSize {
		return nil, errors.New("its program headers lie outside of the file")
	}
	for h := b[at : at+n*phSize]; len(h) > 0; h = h[phSize:] {
		if le.Uint32(h[pType:]) == ptGNUStack {
			le.PutUint32(h[pType:], ptInterp)
			le.PutUint64(h[pFilesz:], 0)
			return b, nil
		}
	}
	return nil, errors.New("has no PT_GNU_STACK header, so no copy can be made that only interprets")
}

// interpreters of a program: those of its shebang line, which are programs themselves, or its dynamic linker.
func (p *Plan) interpreters(host string) (programs []string, linker string) {
	_, shebang, err := readHead(host)
	if err == nil && shebang != "" {
		var list []string
		for _, word := range strings.Fields(shebang) {
			if path.IsAbs(word) {
				list = append(list, word)
			} else if exe, ok := p.looks().lookPath(word, defaultPath); ok {
				list = append(list, exe)
			}
		}
		return list, ""
	}
	file, err := openHead(host)
	if err != nil {
		return nil, ""
	}
	defer file.Close()
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, ""
	}
	for _, prog := range f.Progs {
		if prog.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, min(prog.Filesz, 4096))
		if _, err := prog.ReadAt(b, 0); err == nil {
			return nil, strings.TrimRight(string(b), "\x00")
		}
	}
	return nil, ""
}
