// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/seccomp"
)

// FuzzProfileFilter: a profile file, what it means, and what the kernel does with the program made of it, are the same. The file goes through the
// loader, the merge with its parent, the plan and the compiler; the meaning is worked out here from the rules as they were written
// and those of the parent; the program is run by the interpreter and, with every return turned into an errno of its own, by the
// kernel in a child process.
func FuzzProfileFilter(f *testing.F) {
	for parent := range byte(4) {
		f.Add([]byte{parent})
		f.Add([]byte{parent, 3, 0, 1, 0, 0, 0, 1, 1, 0, 2, 1, 2, 40, 9, 3, 2, 2, 0, 3, 7, 5})
		f.Add([]byte("\x02many different words give many different rules, some of which the loader refuses"[parent:]))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkProfileFilter(t, data) })
}

// Profiles of the corpus and some more, in each run of the tests.
func TestProfileFilter(t *testing.T) {
	taken := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 90)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		taken += checkProfileFilter(t, data)
	}
	if taken < 40 {
		t.Errorf("%d rules of 40 profiles were taken: this looks at too little", taken)
	}
}

// fuzzCalls are calls with rules worth fighting about, and which of their arguments the kernel reads as 32 bits (a bit each).
var fuzzCalls = []struct {
	name   string
	narrow uint8
}{
	{"socket", 7}, {"socketpair", 7}, {"setsockopt", 7}, {"ioctl", 3}, {"fcntl", 3}, {"prctl", 1}, {"personality", 1}, {"clone", 1}, {"open", 2},
	{"openat", 5}, {"madvise", 4}, {"memfd_create", 2}, {"prlimit64", 3}, {"kill", 3}, {"accept4", 9}, {"mmap", 0}, {"mprotect", 0}, {"shmget", 0},
	{"futex", 0}, {"chmod", 0}, {"getpid", 0}, {"mknod", 0}, {"inotify_init1", 0}, {"unshare", 0}, {"mount", 0}, {"fork", 0}, {"seccomp", 3}, {"clone3", 0},
}

// bytesOf deals out what the fuzzer made up; zeros when there is no more.
type bytesOf struct{ rest []byte }

func (b *bytesOf) n(below int) int {
	if len(b.rest) == 0 {
		return 0
	}
	v := int(b.rest[0]) % below
	b.rest = b.rest[1:]
	return v
}

func (b *bytesOf) value() uint64 {
	v := []uint64{0, 1, 2, 0xffffffff, 1 << 31, 1 << 32, ^uint64(0), 0x40000}[b.n(8)]
	return v ^ uint64(b.n(256))<<(8*b.n(8))
}

func (b *bytesOf) rules() (list []profiles.SyscallRule) {
	for range b.n(8) {
		r := profiles.SyscallRule{Why: "t", Floor: b.n(4) == 0}
		for range 1 + b.n(3) {
			if name := fuzzCalls[b.n(len(fuzzCalls))].name; !slices.Contains(r.Names, name) {
				r.Names = append(r.Names, name)
			}
		}
		r.Action = []profiles.Action{profiles.ActionAllow, profiles.ActionNotify, profiles.ActionErrno, profiles.ActionKill}[b.n(4)]
		if r.Action == profiles.ActionErrno || r.Action == profiles.ActionNotify && b.n(2) == 0 {
			r.Errno = []string{"EPERM", "ENOSYS", "EINVAL", "ENOMEM", "EACCES"}[b.n(5)]
		}
		for index := range 6 {
			if b.n(3) != 1 {
				continue
			}
			c := profiles.ArgCond{Index: index, Op: profiles.OpMaskedEq, Value: profiles.Value{N: b.value()}, Mask: profiles.Value{N: 0xffffffff}}
			switch b.n(4) {
			case 0:
				c.Mask.N = b.value()
			case 1:
				c.Op, c.Mask.N = profiles.OpEq, 0
			case 2:
				c.Op, c.Mask.N = profiles.OpNe, 0
			}
			if c.Op == profiles.OpMaskedEq {
				c.Value.N &= c.Mask.N
			}
			r.Args = append(r.Args, c)
		}
		list = append(list, r)
	}
	return list
}

func profileText(parent string, rules []profiles.SyscallRule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: mine\ndescription: t\nextends: %s\n", parent)
	if len(rules) > 0 {
		b.WriteString("syscalls:\n")
	}
	for _, r := range rules {
		fmt.Fprintf(&b, "  - {names: [%s], action: %s, floor: %v, why: t", strings.Join(r.Names, ", "), r.Action, r.Floor)
		if r.Errno != "" {
			fmt.Fprintf(&b, ", errno: %s", r.Errno)
		}
		for i, a := range r.Args {
			fmt.Fprintf(&b, "%s{index: %d, op: %s, value: %#x", map[bool]string{true: ", args: [", false: ", "}[i == 0], a.Index, a.Op, a.Value.N)
			if a.Op == profiles.OpMaskedEq {
				fmt.Fprintf(&b, ", mask: %#x", a.Mask.N)
			}
			b.WriteString("}")
		}
		if len(r.Args) > 0 {
			b.WriteString("]")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// written is what a call means by the rules as they were written: the parent's floor, the child's, the child's rules, the parent's.
func written(parent profiles.Profile, child []profiles.SyscallRule, call string, narrow uint8, args [6]uint64) uint32 {
	for i := range args {
		if narrow>>i&1 == 1 {
			args[i] &= 0xffffffff
		}
	}
	for part := range 4 {
		rules, floor := parent.Syscalls, part < 2
		if part == 1 || part == 2 {
			rules = child
		}
		for _, r := range rules {
			holds := r.Floor == floor && slices.Contains(r.Names, call)
			for _, a := range r.Args {
				v := args[a.Index]
				switch a.Op {
				case profiles.OpEq:
					holds = holds && v == a.Value.N
				case profiles.OpNe:
					holds = holds && v != a.Value.N
				default:
					holds = holds && v&a.Mask.N == a.Value.N
				}
			}
			if !holds {
				continue
			}
			switch r.Action {
			case profiles.ActionAllow:
				if counted(r) { // the supervisor says yes to it, and counts
					return unix.SECCOMP_RET_USER_NOTIF
				}
				return unix.SECCOMP_RET_ALLOW
			case profiles.ActionNotify, profiles.ActionKill: // the supervisor kills
				return unix.SECCOMP_RET_USER_NOTIF
			}
			e, _ := profiles.ErrnoValue(r.Errno)
			return unix.SECCOMP_RET_ERRNO | uint32(e)
		}
	}
	return unix.SECCOMP_RET_USER_NOTIF
}

// checkProfileFilter gives the number of rules that were taken: one that the loader or the filter refuses is left out.
func checkProfileFilter(t *testing.T, data []byte) int {
	t.Helper()
	b := &bytesOf{data}
	parent := builtin(t, builtins[b.n(len(builtins))])
	dir := t.TempDir()
	load := func(rules []profiles.SyscallRule) (profile profiles.Profile, prog seccomp.Program, text string, ok bool) {
		text = profileText(parent.Name, rules)
		if err := os.WriteFile(filepath.Join(dir, "mine.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		profile, err := profiles.Load(profiles.Sources{Dirs: []string{dir}}, "mine")
		if err != nil {
			if !errors.As(err, new(*read.InvalidError)) {
				t.Fatalf("%v\n%s", err, text)
			}
			return profile, prog, text, false
		}
		p := &Plan{Profile: "mine", profile: profile}
		if err := p.planFilter(); err != nil {
			return profile, prog, text, false
		}
		prog, err = p.filter.Compile(seccomp.Options{})
		if err != nil && !strings.Contains(err.Error(), "32 bits wide") {
			t.Fatalf("%v\n%s", err, text)
		}
		return profile, prog, text, err == nil
	}
	var child []profiles.SyscallRule
	for _, r := range b.rules() {
		if _, _, _, ok := load(append(child, r)); ok {
			child = append(child, r)
		}
	}
	profile, prog, text, ok := load(child)
	if !ok {
		t.Fatalf("refused without the rules that were refused:\n%s", text)
	}
	sum := fnv.New64a()
	sum.Write(data)
	rng := rand.New(rand.NewPCG(sum.Sum64(), 3))
	var calls []kernelCall
	var want []uint32
	for _, c := range fuzzCalls {
		nr := numberOf(t, c.name)
		for range 12 {
			args := interesting(rng, profile, c.name)
			if i := rng.IntN(len(child) + 1); i < len(child) {
				for _, a := range child[i].Args {
					args[a.Index] = a.Value.N ^ uint64(rng.IntN(2))<<rng.IntN(64)
				}
			}
			means := written(parent, child, c.name, c.narrow, args)
			got, err := prog.Run(seccomp.Data{NR: nr, Arch: unix.AUDIT_ARCH_X86_64, Args: args})
			if err != nil || got != means {
				t.Fatalf("%s%#x: the filter says %#x, %v, the profile %#x\n%s", c.name, args, got, err, means, text)
			}
			calls, want = append(calls, kernelCall{uintptr(nr), args}), append(want, means)
		}
		calls, want = append(calls, kernelCall{uintptr(nr) | 0x40000000, [6]uint64{}}), append(want, unix.SECCOMP_RET_USER_NOTIF) // x32
	}
	calls, want = append(calls, kernelCall{9999, [6]uint64{}}), append(want, unix.SECCOMP_RET_USER_NOTIF)
	for i, got := range inKernel(t, prog, calls) {
		if got != want[i] {
			t.Fatalf("call %d%#x: the kernel says %#x, the profile %#x\n%s", calls[i].nr, calls[i].args, got, want[i], text)
		}
	}
	return len(child)
}

func numberOf(t *testing.T, name string) uint32 {
	t.Helper()
	for nr := range 470 {
		if seccomp.Name(nr) == name {
			return uint32(nr)
		}
	}
	t.Fatalf("no number for %s", name)
	return 0
}

type kernelCall struct {
	nr   uintptr
	args [6]uint64
}

// Errnos that stand for the other verdicts: above every real one, within the kernel's 4095.
var standIns = map[uint32]uint32{
	unix.SECCOMP_RET_ALLOW: 4001, unix.SECCOMP_RET_USER_NOTIF: 4002, unix.SECCOMP_RET_KILL_PROCESS: 4003,
}

// inKernel has the kernel run the program on each call, in a child that is nothing else. Each return of the program is one of an errno that
// says which it was: so no call is executed, whatever its arguments are, and the child outlives what would kill it.
func inKernel(t *testing.T, prog seccomp.Program, calls []kernelCall) []uint32 {
	t.Helper()
	code := slices.Clone(prog.Bytes())
	for at := 0; at < len(code); at += 8 {
		if binary.NativeEndian.Uint16(code[at:]) != unix.BPF_RET|unix.BPF_K {
			continue
		}
		if e, ok := standIns[binary.NativeEndian.Uint32(code[at+4:])]; ok {
			binary.NativeEndian.PutUint32(code[at+4:], unix.SECCOMP_RET_ERRNO|e)
		}
	}
	shared, err := unix.Mmap(-1, 0, 8*len(calls), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(shared)
	answers := unsafe.Slice((*uint64)(unsafe.Pointer(&shared[0])), len(calls))
	filter := unix.SockFprog{Len: uint16(prog.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(&code[0]))}

	// The child has this thread's stack and no Go runtime: no signal may reach it, nor may it be given another thread's.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		t.Fatal(err)
	}
	pid := forkFiltered(&filter, calls, answers, nil)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		t.Fatal(err)
	}
	if pid < 0 {
		t.Fatalf("clone: %v", unix.Errno(-pid))
	}
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if ws.Signal() != unix.SIGSEGV {
		t.Fatalf("the child ended as %#x, installing its filter or before", uint32(ws))
	}
	got := make([]uint32, len(calls))
	for i, e := range answers {
		got[i] = unix.SECCOMP_RET_ERRNO | uint32(e)
		for verdict, standIn := range standIns {
			if e == uint64(standIn) {
				got[i] = verdict
			}
		}
	}
	goruntime.KeepAlive(code)
	return got
}

// forkFiltered makes the child, which answers in shared memory. At its end no call works any more, not even exit: it ends itself by writing to
// nowhere. Nothing here may touch the Go runtime, whose other threads the child hasn't got.
//
//go:norace
//go:nosplit
func forkFiltered(filter *unix.SockFprog, calls []kernelCall, answers []uint64, nowhere *int) int {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return -int(e)
	}
	if pid != 0 {
		return int(pid)
	}
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0, 0) // no core of it
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	_, _, e = unix.RawSyscall6(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(filter)), 0, 0, 0)
	if e != 0 {
		unix.RawSyscall6(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0, 0, 0, 0)
	}
	for i := range calls {
		c := &calls[i]
		_, _, e := unix.RawSyscall6(c.nr, uintptr(c.args[0]), uintptr(c.args[1]), uintptr(c.args[2]), uintptr(c.args[3]), uintptr(c.args[4]), uintptr(c.args[5]))
		answers[i] = uint64(e)
	}
	*nowhere = 1
	return 0
}
