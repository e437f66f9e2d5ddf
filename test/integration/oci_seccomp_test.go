// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func deny(errno int, args []object, names ...string) object {
	return object{"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args}
}

func arg(index uint, op string, value, two uint64) []object {
	return []object{{"index": index, "op": "SCMP_CMP_" + op, "value": value, "valueTwo": two}}
}

// THREATS "engines and images": of a bundle's filter and its ring's the stricter holds, for each call; what the ring refuses is seen,
// whatever the bundle says of it. errno 99 (EADDRNOTAVAIL) is nothing that any of these calls gives by itself.
func TestOCISeccomp(t *testing.T) {
	uname := fmt.Sprintf("sys %d 0", unix.SYS_UNAME)
	const younger = "sys 439 -100 0 0 0" // faccessat2, everywhere
	asks := uname + " , " + younger + " , socket inet stream , mount tmpfs /tmp , personality 0 , socketpair unix"
	open := []string{uname + ": errno=EFAULT", younger + ": errno=EFAULT", "socket inet stream: ok", "mount tmpfs /tmp: errno=EPERM", "personality 0: ok", "socketpair unix: ok"}
	with := func(errnos ...string) []string { // of the calls in their order; empty: as without a filter
		lines := slices.Clone(open)
		for i, errno := range errnos {
			if call, _, _ := strings.Cut(lines[i], ":"); errno != "" {
				lines[i] = call + ": errno=" + errno
			}
		}
		return lines
	}
	but := func(rules ...object) object { return object{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules} }
	rest := []string{ // of what the probe itself does
		"execve", "read", "write", "close", "exit", "exit_group", "brk", "mmap", "munmap", "mprotect", "arch_prctl", "set_tid_address", "set_robust_list", "rseq",
		"prlimit64", "readlinkat", "readlink", "getrandom", "fstat", "newfstatat", "rt_sigaction", "rt_sigprocmask", "ioctl", "socket", "socketpair", "personality", "lseek", "poll", "fcntl",
	}
	for _, tc := range []struct {
		name   string
		filter object
		want   []string
		seen   string // refused calls on record
	}{
		{"none", nil, open, "mount 1"},
		{"all is allowed", but(), open, "mount 1"},
		{"a call", but(deny(99, nil, "uname")), with("EADDRNOTAVAIL"), "mount 1"},
		{"a call that isn't among those allowed", object{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []object{
			{"names": append([]string{"no_such_call", "socketcall", "process_mrelease"}, rest...), "action": "SCMP_ACT_ALLOW"},
		}}, with("EPERM", "EPERM"), "mount 1"},
		{"and is younger than all of them", object{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 99, "syscalls": []object{
			{"names": rest, "action": "SCMP_ACT_ALLOW"},
		}}, with("EADDRNOTAVAIL", "ENOSYS"), "mount 1"},
		{"by a value", but(deny(99, arg(0, "EQ", 0, 0), "personality")), with("", "", "", "", "EADDRNOTAVAIL"), "mount 1"},
		{"by another value", but(deny(99, arg(0, "GT", 0, 0), "personality")), open, "mount 1"},
		{"by a mask", but(deny(99, arg(1, "MASKED_EQ", 1, 1), "socket", "socketpair")), // SOCK_STREAM, of all families
			with("", "", "EADDRNOTAVAIL", "", "", "EADDRNOTAVAIL"), "mount 1 socket 1"},
		{"by either of two values", but(deny(99, slices.Concat(arg(0, "EQ", 2, 0), arg(0, "EQ", 10, 0)), "socket")), with("", "", "EADDRNOTAVAIL"), "mount 1 socket 1"},
		{"what the ring refuses is the ring's", but(deny(99, nil, "mount")), open, "mount 1"},
		{"a signal", but(object{"names": []string{"personality"}, "action": "SCMP_ACT_KILL_PROCESS"}), open[:4], "mount 1"},
		{"a signal, where the ring is asked", but(object{"names": []string{"socket"}, "action": "SCMP_ACT_KILL"}), open[:2], "socket 1"},
	} {
		for _, handler := range []string{"agentrun-ring2", "agentrun-ring3"} {
			t.Run(tc.name+"/"+handler, func(t *testing.T) {
				e := newEngine(t, handler)
				bundle := e.bundle(func(c map[string]any) {
					if tc.filter != nil {
						c["linux"].(map[string]any)["seccomp"] = tc.filter
					}
				}, append([]string{"/bin/probe"}, strings.Fields(asks)...)...)
				text, err := os.ReadFile(probeBin)
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(bundle, "rootfs/bin/probe"), string(text), 0o755)
				r := e.oci("run", "--bundle", bundle, "box")
				if got := strings.Split(strings.TrimSpace(r.stdout), "\n"); !slices.Equal(got, tc.want) {
					t.Errorf("exit %d, %s\n got %q\nwant %q", r.exit, r.stderr, got, tc.want)
				}
				if all := len(tc.want) == len(open); all != (r.exit != 159) { // 128 + SIGSYS
					t.Errorf("exit %d", r.exit)
				}
				var seen []string
				of := asked[endedBox](e.place, "inspect", "c-box").End.Refused
				for _, call := range slices.Sorted(maps.Keys(of)) {
					seen = append(seen, fmt.Sprintf("%s %d", call, of[call]))
				}
				if got := strings.Join(seen, " "); got != tc.seen {
					t.Errorf("on record: %q, want %q", got, tc.seen)
				}
			})
		}
	}
}

// A further command in a container has its filter, too.
func TestOCISeccompOfFurtherCommands(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(func(c map[string]any) {
		c["linux"].(map[string]any)["seccomp"] = object{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []object{deny(99, arg(0, "EQ", 2, 0), "socket"), deny(99, nil, "sethostname", "mkdir", "mkdirat")}}
	}, "/bin/sleep", "1000")
	e.good("create", "--bundle", bundle, "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	e.good("start", "box")
	for _, command := range [][]string{{"mkdir", "/tmp/x"}, {"nc", "127.0.0.1", "1"}} { // decided in the kernel, and by the supervisor
		if r := e.oci(append([]string{"exec", "box", "/bin/busybox"}, command...)...); r.exit == 0 || !strings.Contains(r.stderr, "Cannot assign requested address") {
			t.Errorf("%v: exit %d %s", command, r.exit, r.stderr)
		}
	}
}

// A bundle's filter that can't be taken at its word is refused by name.
func TestOCISeccompRefused(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	rule := func(r object) object {
		return object{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []object{r}}
	}
	for name, tc := range map[string]struct {
		filter object
		want   string
	}{
		"a program that is asked": {rule(object{"names": []string{"uname"}, "action": "SCMP_ACT_NOTIFY"}), "linux.seccomp.syscalls[0].action: SCMP_ACT_NOTIFY can't be honoured"},
		"by default":              {object{"defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/run/x.sock"}, "linux.seccomp.defaultAction: SCMP_ACT_NOTIFY can't be honoured"},
		"a tracer":                {rule(object{"names": []string{"uname"}, "action": "SCMP_ACT_TRACE"}), "nothing may trace a run"},
		"no action":               {rule(object{"names": []string{"uname"}, "action": "SCMP_ACT_PRAY"}), `"SCMP_ACT_PRAY" is no action`},
		"no default":              {object{}, `linux.seccomp.defaultAction: "" is no action`},
		"a success":               {rule(deny(0, nil, "uname")), "errno 0 is no error number"},
		"no comparison":           {rule(deny(1, []object{{"index": 0, "op": "EQ"}}, "uname")), `syscalls[0].args[0].op: "EQ" is no comparison`},
		"a seventh argument":      {rule(deny(1, arg(6, "EQ", 1, 0), "uname")), "linux.seccomp.syscalls[0].args[0].index: 6: a call has arguments 0 to 5"},
		"a flag":                  {object{"defaultAction": "SCMP_ACT_ALLOW", "flags": []string{"SECCOMP_FILTER_FLAG_LOG"}}, `linux.seccomp.flags: "SECCOMP_FILTER_FLAG_LOG" can't be honoured`},
		"another machine":         {object{"defaultAction": "SCMP_ACT_ALLOW", "architectures": []string{"SCMP_ARCH_PPC64LE"}}, "linux.seccomp.architectures: "},
		"the launch's own calls":  {rule(deny(1, nil, "execve")), "it stops system call execve"},
		"everything":              {object{"defaultAction": "SCMP_ACT_KILL"}, "it stops system call execve"},
	} {
		r := e.oci("create", "--bundle", e.bundle(func(c map[string]any) { c["linux"].(map[string]any)["seccomp"] = tc.filter }, "/bin/true"), "box")
		if r.exit == 0 || !strings.Contains(r.stderr, tc.want) {
			t.Errorf("%s: exit %d %s, want %q", name, r.exit, r.stderr, tc.want)
		}
	}
	if left, _ := os.ReadDir(e.root); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	noAgents(t)
}
