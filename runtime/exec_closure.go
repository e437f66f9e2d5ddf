// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"debug/elf"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// narrowExec holds execve(2) to the command's own chain and the profile's tools, by Landlock rights on
// those very files: the path that execve is given sits in memory the agent can change after anybody
// looked at it, so no answer to a notification could hold it (M-4, mode tools of a profile).
func (p *Plan) narrowExec() error {
	programs := []string{p.Command.Exe}
	for _, t := range p.profile.Subprocess.Tools {
		programs = append(programs, t.Path)
	}
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
			Path: name, Access: unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE,
		})
		programs = append(programs, p.interpreters(host)...)
	}
	return nil
}

// interpreters of a program: those of its shebang line, or its dynamic linker.
func (p *Plan) interpreters(host string) []string {
	_, shebang, err := readHead(host)
	if err == nil && shebang != "" {
		var list []string
		for _, word := range strings.Fields(shebang) {
			if path.IsAbs(word) {
				list = append(list, word)
			} else if exe, ok := view(p.Entries).lookPath(word, defaultPath); ok {
				list = append(list, exe)
			}
		}
		return list
	}
	f, err := elf.Open(host)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	for _, prog := range f.Progs {
		if prog.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, min(prog.Filesz, 4096))
		if _, err := prog.ReadAt(b, 0); err == nil {
			return []string{strings.TrimRight(string(b), "\x00")}
		}
	}
	return nil
}
