// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// THREATS "runtime takeover"; M-1, H-11.

func sum(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// CVE-2019-5736: a program that says /proc/self/exe makes the runtime execute
// itself inside the sandbox, where its file can then be opened for writing.
func TestRuntimeBinaryOverwrite(t *testing.T) {
	needSandbox(t)
	before := sum(t, agentrun)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "evil"), "#!/proc/self/exe\n", 0o755)
			for _, argv := range [][]string{
				{"/proc/self/exe", "init"}, {"/proc/self/exe"}, {"/proc/1/exe"}, {"./evil"}, {"/proc/self/fd/3"},
			} {
				r := run(t, opts{profile: profile, dir: dir}, argv...)
				if r.exit == 0 {
					t.Errorf("%v: got exit 0, want a refusal\nstdout: %s", argv, r.stdout)
				}
			}
			got, _ := try(t, opts{profile: profile},
				"write /proc/self/exe", "write /proc/1/exe", "read /proc/1/exe", "readlink /proc/1/exe", "write /probe")
			for words, answer := range got {
				if answer == "ok" || strings.HasPrefix(answer, "value=") {
					t.Errorf("%s: got %s, want a refusal", words, answer)
				}
			}
			if len(got) != 5 {
				t.Errorf("got %d answers, want 5: %v", len(got), got)
			}
		})
	}
	if after := sum(t, agentrun); after != before {
		t.Fatalf("the runtime's binary was changed from inside: %s, was %s", after, before)
	}
}

// CVE-2024-21626: a descriptor or working directory of the host's left open.
// The test leaves some open on purpose, without close-on-exec, as a careless
// parent of agentrun would.
func TestLeakedDescriptors(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			root, err := os.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			secret, err := os.Open(write(t, filepath.Join(t.TempDir(), "secret"), "secret", 0o600))
			if err != nil {
				t.Fatal(err)
			}
			defer secret.Close()
			c := prepare(t, opts{profile: profile, flags: []string{"--workspace", workspace(t)}}, probeArgs("fds", "outside", "cwd", "readlink /proc/self/cwd")...)
			c.ExtraFiles = []*os.File{root, secret, root, root, root, secret}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			r := c.finish(t)
			fds := strings.Split(value(t, r, "fds"), "|")
			for _, fd := range fds {
				n, target, _ := strings.Cut(fd, "->")
				if profile == "strict" && n == "3" && strings.HasPrefix(target, "socket:[") {
					continue // the connection to its tools
				}
				if n != "0" && n != "1" && n != "2" {
					t.Errorf("descriptor %s is open as %s", n, target)
				}
				if !strings.HasPrefix(target, "pipe:[") && target != "/dev/null" {
					t.Errorf("descriptor %s is %s, want a pipe or /dev/null", n, target)
				}
			}
			want := 3
			if profile == "strict" {
				want = 4
			}
			if len(fds) != want {
				t.Errorf("got %d descriptors, want %d: %v", len(fds), want, fds)
			}
			if got := value(t, r, "outside"); got != "" {
				t.Errorf("the host's root can be reached through %s", got)
			}
			if got := value(t, r, "cwd"); got != "/workspace" {
				t.Errorf("working directory: got %s, want /workspace", got)
			}
		})
	}
}

// A working directory that climbs out, asked for by the caller.
func TestWorkingDirectoryStaysInside(t *testing.T) {
	needSandbox(t)
	for _, cwd := range []string{"/proc/self/fd/3", "/proc/self/fd/7/../../..", "/proc/1/cwd", "/proc/1/root", "/../../..", "../../../../.."} {
		t.Run(cwd, func(t *testing.T) {
			_, r := try(t, opts{flags: []string{"--cwd", cwd}}, "outside", "ls /")
			if r.exit != 0 {
				return // refused: fine
			}
			if got := value(t, r, "outside"); got != "" {
				t.Errorf("the host's root can be reached through %s", got)
			}
		})
	}
}

// CVE-2022-29162 and M-1: no capability in any set, no_new_privs, a filter,
// an ordinary user, no groups.
func TestPrivileges(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			_, r := try(t, opts{profile: profile}, "status", "id", "rlimits")
			got := fieldsOf(value(t, r, "status"))
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				if got[set] != "0000000000000000" {
					t.Errorf("%s: got %s, want none", set, got[set])
				}
			}
			for field, want := range map[string]string{
				"NoNewPrivs": "1", "Seccomp": "2", "Uid": "1000 1000 1000 1000", "Gid": "1000 1000 1000 1000", "Groups": "",
			} {
				if got[field] != want {
					t.Errorf("%s: got %q, want %q", field, got[field], want)
				}
			}
			if id := value(t, r, "id"); !strings.Contains(id, "groups=0 ") || strings.Contains(id, " pid=1 ") {
				t.Errorf("got %s, want no groups and not pid 1", id)
			}
			limits := fieldsOf(value(t, r, "rlimits"))
			if limits["core"] != "1/1" {
				t.Errorf("core limit: got %s, want 1/1 (a core file is a copy of secrets, and at 0 the host's program for them is started)", limits["core"])
			}
		})
	}
}

func fieldsOf(v string) map[string]string {
	m := map[string]string{}
	for _, item := range strings.Split(v, "|") {
		name, val, _ := strings.Cut(item, "=")
		m[name] = strings.TrimSpace(val)
	}
	return m
}

// Pid 1 of the sandbox is ours and has the agent's uid: it must give nothing.
// Not dumpable means that its /proc entries belong to nobody inside.
func TestInitIsClosed(t *testing.T) {
	attempt(t, opts{}, []attack{
		{try: "read /proc/1/mem", want: "EACCES"},
		{try: "write /proc/1/mem", want: "EROFS"},
		{try: "read /proc/1/environ", want: "EACCES"},
		{try: "read /proc/1/maps", want: "EACCES"},
		{try: "read /proc/1/auxv", want: "EACCES"},
		{try: "read /proc/1/syscall", want: "EACCES|ENOENT"}, // needs CONFIG_HAVE_ARCH_TRACEHOOK
		{try: "read /proc/1/stack", want: "EACCES|ENOENT"},   // needs CONFIG_STACKTRACE
		{try: "ls /proc/1/fd", want: "EACCES"},
		{try: "ls /proc/1/map_files", want: "EACCES|ENOENT"}, // needs CONFIG_PROC_CHILDREN's neighbour CONFIG_CHECKPOINT_RESTORE on old kernels
		{try: "ls /proc/1/cwd/", want: "EACCES"},
		{try: "ls /proc/1/root/", want: "EACCES"},
		{try: "readlink /proc/1/exe", want: "EACCES"},
		{try: "readlink /proc/1/root", want: "EACCES"},
		{try: "readlink /proc/1/ns/mnt", want: "EACCES"},
		{try: "write /proc/1/oom_score_adj 1000", want: "EROFS"},
		{try: "write /proc/1/clear_refs 1", want: "EROFS"},
		{try: "write /proc/1/comm owned", want: "EROFS"},
		{try: "kill-init", want: "value=alive"},
		// Not the supervisor's either: it is outside of the pid namespace.
		{try: "read /proc/self/../1/../../etc/shadow", want: "ENOENT"},
	})
}

// M-2: the Landlock domain holds in the live process. Pid 1 has the agent's uid, so a signal to it is allowed by
// everything but the domain: since ABI 6 (Linux 6.12) a domain's processes can't signal those outside of it.
func TestLandlockHoldsInside(t *testing.T) {
	need(t, hostcaps.Landlock(6))
	attempt(t, opts{}, []attack{
		{try: "kill 1 0", want: "EPERM"},
		{try: "kill 1 9", want: "EPERM"},
	})
}

// The supervisor opens /proc on the agent's behalf only by numbers of its own.
// A supplied root with a fake /proc must not be believed.
func TestFakeProcIsNotBelieved(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.Openat2)
	root := tinyRoot(t)
	write(t, filepath.Join(root, "proc", "self", "status"), "CapEff: 0\nSeccomp: 2\n", 0o644)
	write(t, filepath.Join(root, "proc", "1", "status"), "CapEff: 0\nSeccomp: 2\n", 0o644)
	_, r := try(t, opts{flags: []string{"--rootfs", root}}, "status", "ls /proc/self/ns")
	if r.exit != 0 {
		return // refused: fine
	}
	if got := fieldsOf(value(t, r, "status")); got["Seccomp"] != "2" || got["NoNewPrivs"] != "1" {
		t.Errorf("got %v, want the real /proc over the supplied one", got)
	}
}
