// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

func TestSocketCount(t *testing.T) {
	file := func(text string) *os.File {
		t.Helper()
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	line := strings.Repeat("x", 99) + "\n"
	for _, c := range []struct {
		name          string
		used, netlink string
		ring          rings.Ring
		family        uint64
		want          unix.Errno
	}{
		{"few", "sockets: used 7\nTCP: inuse 5\n", line, rings.Sandbox, unix.AF_INET, 0},
		{"the last in ring 3", "sockets: used 159\n", line, rings.Sandbox, unix.AF_INET, 0},
		{"one too many in ring 3", "sockets: used 160\n", line, rings.Sandbox, unix.AF_INET6, unix.ENOBUFS},
		{"ring 2 has more", "sockets: used 160\n", line, rings.Standard, unix.AF_INET, 0},
		{"no ring has least", "sockets: used 160\n", line, rings.NoRing, unix.AF_INET, unix.ENOBUFS},
		{"ring 1 has an end", "sockets: used 2048\n", line, rings.Privileged, unix.AF_INET, unix.ENOBUFS},
		{"not a number", "sockets: used many\n", line, rings.Sandbox, unix.AF_INET, unix.ENOBUFS},
		{"another file", "TCP: inuse 5\n", line, rings.Sandbox, unix.AF_INET, unix.ENOBUFS},
		{"empty", "", line, rings.Sandbox, unix.AF_INET, unix.ENOBUFS},
		{"netlink", "sockets: used 7\n", strings.Repeat(line, 64), rings.Standard, unix.AF_NETLINK, 0},
		{"too many netlink", "sockets: used 7\n", strings.Repeat(line, 65), rings.Standard, unix.AF_NETLINK, unix.ENOBUFS},
		{"too many netlink, high bits", "sockets: used 7\n", strings.Repeat(line, 65), rings.Standard, 1<<32 | unix.AF_NETLINK, unix.ENOBUFS},
		{"netlink doesn't hold up others", "sockets: used 7\n", strings.Repeat(line, 65), rings.Standard, unix.AF_INET, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &socketCount{file(c.used), file(c.netlink)}
			if got := s.socket(c.ring, c.family); got.Err() != c.want {
				t.Errorf("got %v, want errno %v", got, c.want)
			}
		})
	}
	if a := (*socketCount)(nil).socket(rings.Standard, unix.AF_INET); a.Allowed() {
		t.Error("a run whose sockets can't be counted may make one")
	}
}

// Every socket that a built-in profile allows is counted, but those of AF_UNIX; and none is given that the profile refuses.
func TestSocketsOfProfilesAreCounted(t *testing.T) {
	for _, name := range builtins {
		p := filterOf(t, name)
		w := &warden{profile: &p.profile, recorder: &seccomp.Recorder{}}
		for family := range uint64(48) {
			for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW} {
				c := seccomp.Call{Name: "socket", Args: [6]uint64{family, kind, 0}}
				i := p.profile.Match(c.Name, c.Args)
				may := i >= 0 && p.profile.Syscalls[i].Action == profiles.ActionAllow
				if got := allowed(&rights{}, w.rule(c), c); got != (may && family != unix.AF_UNIX) {
					t.Errorf("%s: family %d type %d: counted %v, allowed %v", name, family, kind, got, may)
				}
				if a, _ := w.decide(&rights{}, c); a.Allowed() { // there is no count: fail closed
					t.Errorf("%s: family %d type %d is let through uncounted", name, family, kind)
				}
			}
		}
	}
}
