// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// withoutLandlock executes a program on a kernel that has no Landlock, as far as the program and all below it can tell: a filter answers its three
// calls with ENOSYS (444 to 446 on every architecture).
func withoutLandlock(argv []string) int {
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jt: 0, Jf: 2, K: unix.SYS_LANDLOCK_CREATE_RULESET},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, Jt: 1, Jf: 0, K: unix.SYS_LANDLOCK_RESTRICT_SELF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	return filtered("without-landlock", code, argv)
}

// filtered executes a program behind a filter, and says whose it was if that fails.
func filtered(name string, code []unix.SockFilter, argv []string) int {
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e == 0 {
		_ = errors.As(unix.Exec(argv[0], argv, os.Environ()), &e)
	}
	fmt.Fprintln(os.Stderr, name+":", e)
	return 125
}

// landlockFlags executes a program that may enter Landlock domains with these flags alone; with others it is told that.
func landlockFlags(flags, refusal uint64, argv []string) int {
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 3, K: unix.SYS_LANDLOCK_RESTRICT_SELF},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 24}, // the lower half of its second argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, Jf: 0, K: uint32(flags)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(refusal)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	return filtered("landlock-flags", code, argv)
}

// The host's audit log has what domains of the agent's own refuse it, unless the domain around them says that it doesn't (Linux 6.15). A kernel
// that doesn't know that says EINVAL, and has no such records.
func TestLandlockDomainsOfTheAgentAreNotLogged(t *testing.T) {
	needSandbox(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const subdomainsOff = "4" // LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF
	for _, profile := range []string{"ring1", "ring2", "ring3", "strict"} {
		t.Run(profile, func(t *testing.T) {
			need(t, hostcaps.Landlock(7))
			under := []string{self, "landlock-flags", subdomainsOff, strconv.Itoa(int(unix.EPERM))}
			run(t, opts{profile: profile, under: under}, "/probe", "exit", "0").want(t, 0, "exited")
		})
	}
	t.Run("an older kernel", func(t *testing.T) {
		under := []string{self, "landlock-flags", "0", strconv.Itoa(int(unix.EINVAL))}
		run(t, opts{profile: "ring2", under: under}, "/probe", "exit", "0").want(t, 0, "exited")
	})
}

// A kernel without Landlock: no run without --best-effort, none of strict at all, and what a run that goes on without is held by: mounts, ids,
// capabilities and the filter. What Landlock alone held is open, and SECURITY says so: a FIFO of the read-only workspace.
func TestWithoutLandlock(t *testing.T) {
	needSandbox(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	under := []string{self, "without-landlock"}
	for _, tc := range []struct {
		profile string
		flags   []string
		hint    string
	}{
		{"ring1", nil, "--best-effort"}, {"ring2", nil, "--best-effort"}, {"ring3", nil, "--best-effort"},
		{"strict", nil, "landlock"}, {"strict", []string{"--best-effort"}, "this host lacks landlock"},
	} {
		t.Run("refused "+tc.profile+strings.Join(tc.flags, ""), func(t *testing.T) {
			r := run(t, opts{profile: tc.profile, flags: tc.flags, under: under}, "/probe", "ok")
			if r.exit != 125 || r.stdout != "" || !strings.Contains(r.stderr, "landlock") || !strings.Contains(r.stderr, tc.hint) {
				t.Errorf("exit %d, want 125 and %q\nstdout: %s\nstderr: %s", r.exit, tc.hint, r.stdout, r.stderr)
			}
		})
	}
	ws := workspace(t)
	fifo := filepath.Join(ws, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chown(fifo, owner, owner)
	reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	abstract := fmt.Sprintf("@agentrun-test-nolandlock-%d", os.Getpid())
	l, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	noExec := attack{want: "EPERM@execve|EACCES", in: same("-", "ring1", "ring2")} // TestScratchHoldsPrograms has the others
	attacks := []attack{
		{try: "create /usr/made", want: "EROFS", in: same("ok", "ring1")}, // ring 1's is its own, thrown away
		{try: "create /etc/made", want: "EROFS", in: same("ok", "ring1")},
		{try: "create /made", want: "EROFS", in: same("ok", "ring1")},
		{try: "create /workspace/made", want: "EROFS", in: same("ok", "ring1", "ring2")},
		{try: "create /shown/made", want: "EROFS"},
		{try: "create /tmp/sandbox/made", want: "ok"},
		{try: "unlink /usr/bin/env", want: "EROFS", in: same("-", "ring1")},
		{try: "read /etc/shadow", want: "ENOENT"},
		{try: "read /.agentrun-init", want: "EACCES"},
		{try: "read /proc/1/environ", want: "EACCES"},
		{try: "write /proc/self/loginuid 0", want: "EROFS|ENOENT"},
		{try: "write /proc/self/mem", want: "EROFS"},
		{try: "write /dev/null x", want: "ok"},
		{try: "exec-copy /tmp/sandbox", want: noExec.want, in: noExec.in},
		{try: "exec-copy /dev/shm", want: noExec.want, in: noExec.in},
		{try: "mmap-exec /tmp/sandbox", want: "EPERM", in: same("ok", "ring1", "ring2")},
		{try: "mount tmpfs", want: "EPERM@mount"},
		{try: "mount-remount /workspace", want: "EPERM@mount"},
		{try: "unshare user", want: "EPERM@unshare"},
		{try: "chroot /tmp/sandbox", want: "EPERM@chroot"},
		{try: "open_by_handle_at /", want: "EPERM@open_by_handle_at"},
		{try: "ptrace 1", want: "EPERM@ptrace"},
		{try: "process_vm_readv 1", want: "EPERM@process_vm_readv"},
		{try: "pidfd_getfd 1 0", want: "EPERM@pidfd_getfd"},
		{try: "unix-connect " + abstract, want: "ECONNREFUSED", in: same("EAFNOSUPPORT@socket|EAFNOSUPPORT", "ring3")},
		{try: "mknod char", want: "EPERM@mknodat|EPERM@mknod"},
		{try: "suid chmod /tmp/sandbox", want: "EPERM@chmod|EPERM@fchmodat"},
		{try: "kill-init", want: "value=alive"},
		{try: "write /workspace/fifo forged", want: "ok"}, // what only Landlock would hold
	}
	for _, profile := range []string{"ring1", "ring2", "ring3"} {
		t.Run(profile, func(t *testing.T) {
			shown := workspace(t)
			attemptIn(t, opts{under: under, flags: []string{"--best-effort", "--workspace", ws, "--ro-bind", shown + ":/shown"}}, profile, attacks)
			r := run(t, opts{under: under, profile: profile, flags: []string{"--best-effort"}}, "/probe", "ok")
			if !strings.Contains(r.stderr, "landlock") {
				t.Errorf("it went on without and didn't say so: %q", r.stderr)
			}
		})
	}
}
