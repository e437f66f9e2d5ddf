// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	retAllow  = uint32(unix.SECCOMP_RET_ALLOW)
	retNotify = uint32(unix.SECCOMP_RET_USER_NOTIF)
	retKill   = uint32(unix.SECCOMP_RET_KILL_PROCESS)
	retEPERM  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
)

var archs = []struct {
	arch  Arch
	audit uint32
}{{AMD64, unix.AUDIT_ARCH_X86_64}, {ARM64, unix.AUDIT_ARCH_AARCH64}}

// anyOf holds when any of the bits is set in the argument.
func anyOf(index uint, bits uint64) Arg { return Arg{Index: index, Op: MaskedNotEqual, Mask: bits} }

// noNamespaces refuses new namespaces, in which the agent would hold every capability over what it makes. Put these before the
// rules that allow clone and unshare. clone3 keeps its flags behind a pointer where no filter sees them: give it ENOSYS.
func noNamespaces(a Action, e unix.Errno) []Rule {
	const why = "a new namespace gives capabilities over kernel code that is not reachable without"
	return []Rule{
		{Syscalls: []string{"clone"}, Action: a, Errno: e, Why: why, Args: []Arg{anyOf(0, NamespaceFlags)}},
		{Syscalls: []string{"unshare"}, Action: a, Errno: e, Why: why, Args: []Arg{anyOf(0, NamespaceFlags|unix.CLONE_NEWTIME)}},
	}
}

// noSetID refuses to give a file the set-user-ID or set-group-ID bit. The workspace is an idmapped mount on which the agent's
// files belong to the workspace's owner on the host: a setuid shell left there would be that owner's, often root's, for any
// local user who runs it outside. Put these before the rules that allow the calls. The mode of open and openat counts only with
// O_CREAT or O_TMPFILE; without them the register holds leftovers. openat2 has its mode behind a pointer: give it ENOSYS.
func noSetID(a Action, e unix.Errno) []Rule {
	const why = "a setuid or setgid file in the workspace would act for its host owner"
	const creates = unix.O_CREAT | (unix.O_TMPFILE &^ unix.O_DIRECTORY)
	rule := func(args []Arg, names ...string) Rule {
		return Rule{Syscalls: names, Action: a, Errno: e, Why: why, Args: args, IfPresent: true}
	}
	return []Rule{
		rule([]Arg{anyOf(1, SetIDBits)}, "chmod", "fchmod", "creat", "mkdir", "mknod"),
		rule([]Arg{anyOf(2, SetIDBits)}, "fchmodat", "fchmodat2", "mkdirat", "mknodat"),
		rule([]Arg{anyOf(1, creates), anyOf(2, SetIDBits)}, "open"),
		rule([]Arg{anyOf(2, creates), anyOf(3, SetIDBits)}, "openat"),
	}
}

// realistic has the size of a ring's profile: most native calls allowed, thirty with conditions, the rest unlisted.
func realistic(t testing.TB) Filter {
	t.Helper()
	refused := map[string]bool{}
	for _, n := range strings.Fields("mount umount2 pivot_root chroot ptrace bpf perf_event_open userfaultfd keyctl add_key request_key kexec_load " +
		"kexec_file_load init_module finit_module delete_module quotactl setns unshare clone clone3 socket ioctl prctl personality open_by_handle_at " +
		"name_to_handle_at process_vm_readv process_vm_writev pidfd_getfd io_uring_setup io_uring_enter io_uring_register swapon swapoff reboot") {
		refused[n] = true
	}
	f := Filter{Unlisted: Notify}
	f.Rules = append(f.Rules, noNamespaces(Notify, 0)...)
	f.Rules = append(f.Rules, noSetID(Errno, unix.EPERM)...)
	f.Rules = append(f.Rules,
		Rule{Syscalls: []string{"clone"}, Action: Allow, Args: []Arg{anyOf(0, unix.CLONE_THREAD)}, Why: "threads"},
		Rule{Syscalls: []string{"clone"}, Action: Notify, Why: "processes are asked for"},
		Rule{Syscalls: []string{"clone3"}, Action: Errno, Errno: unix.ENOSYS, Why: "flags behind a pointer"},
		Rule{Syscalls: []string{"ioctl"}, Action: Notify, Args: []Arg{{Index: 1, Op: Equal, Value: unix.TIOCSTI}}, Why: "types into a terminal"},
		Rule{Syscalls: []string{"ioctl"}, Action: Allow, Why: "the rest is up to the file"},
	)
	for _, fam := range []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		f.Rules = append(f.Rules, Rule{Syscalls: []string{"socket"}, Action: Allow, Args: []Arg{{Index: 0, Op: Equal, Value: fam}}, Why: "family"})
	}
	for _, op := range []uint64{unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_PDEATHSIG, unix.PR_GET_DUMPABLE} {
		f.Rules = append(f.Rules, Rule{Syscalls: []string{"prctl"}, Action: Allow, Args: []Arg{{Index: 0, Op: Equal, Value: op}}, Why: "own thread"})
	}
	info, err := Native.info()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for nr, known := range knownNumbers(info) {
		if known && !refused[Name(nr)] && len(names) < 330 {
			names = append(names, Name(nr))
		}
	}
	f.Rules = append(f.Rules, Rule{Syscalls: names, Action: Allow, Why: "harmless"})
	return f
}

func run(t testing.TB, p Program, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	d := Data{NR: uint32(nr), Arch: arch}
	copy(d.Args[:], args)
	got, err := p.Run(d)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func compile(t testing.TB, f Filter, o Options) Program {
	t.Helper()
	p, err := f.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// M-4: what every program does whatever its rules say.
func TestDefaults(t *testing.T) {
	for _, a := range archs {
		// Without a listener the filter kills and answers by itself.
		for _, unlisted := range []Action{Notify, KillProcess} {
			unlistedRet, unknown, foreign := retNotify, retNotify, retNotify
			if unlisted == KillProcess {
				unlistedRet, unknown, foreign = retKill, retENOSYS, retKill
			}
			f := Filter{Unlisted: unlisted, Rules: []Rule{
				{Syscalls: []string{"read"}, Action: Allow, Why: "t"},
				{Syscalls: []string{"socket"}, Action: Allow, Args: []Arg{{Op: MaskedEqual, Mask: 0xffffffff, Value: unix.AF_UNIX}}, Why: "t"},
			}}
			p := compile(t, f, Options{Arch: a.arch})
			info, _ := a.arch.info()
			nr := func(name string) int {
				n, err := number(name, info)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			for _, c := range []struct {
				what string
				arch uint32
				nr   int
				args []uint64
				want uint32
			}{
				{"listed", a.audit, nr("read"), nil, retAllow},
				{"unlisted", a.audit, nr("mount"), nil, unlistedRet},
				{"condition holds", a.audit, nr("socket"), []uint64{unix.AF_UNIX}, retAllow},
				{"condition does not hold", a.audit, nr("socket"), []uint64{unix.AF_VSOCK}, unlistedRet},
				{"upper half is not the kernel's", a.audit, nr("socket"), []uint64{1<<32 | unix.AF_UNIX}, retAllow},
				{"younger than libseccomp", a.audit, 462, nil, unknown},
				{"no such number", a.audit, 599, nil, unknown},
				{"no such number", a.audit, 0x3fffffff, nil, unknown},
				{"no such number, and no bit of x32's", a.audit, 2*x32Bit + nr("read"), nil, unknown},
				{"a tracer's skip", a.audit, -1, nil, unknown},
				{"i386", unix.AUDIT_ARCH_I386, 3, nil, foreign},
				{"arm", unix.AUDIT_ARCH_ARM, 3, nil, foreign},
				{"no arch", 0, nr("read"), nil, foreign},
				{"mips", unix.AUDIT_ARCH_MIPS64, nr("read"), nil, foreign},
			} {
				if got := run(t, p, c.arch, c.nr, c.args...); got != c.want {
					t.Errorf("%v %s %d%v: got %#x, want %#x", a.arch, c.what, c.nr, c.args, got, c.want)
				}
			}
			if a.arch == AMD64 {
				for _, n := range []int{x32Bit, x32Bit | nr("read"), x32Bit | nr("socket"), x32Bit | 520, 2*x32Bit - 1, 3 * x32Bit, -2} {
					if got := run(t, p, a.audit, n, unix.AF_UNIX); got != foreign {
						t.Errorf("x32 number %#x: got %#x, want %#x", uint32(n), got, foreign)
					}
				}
			}
		}
	}
}

// M-4, THREATS kernel surface: each rule of the helpers, its matching case and those one off.
func TestRulesOneOff(t *testing.T) {
	f := realistic(t)
	p := compile(t, f, Options{})
	info, _ := Native.info()
	for _, c := range []struct {
		name string
		args []uint64
		want uint32
	}{
		{"clone", []uint64{unix.CLONE_THREAD | unix.CLONE_VM}, retAllow},
		{"clone", []uint64{17}, retNotify},
		{"clone", []uint64{unix.CLONE_THREAD | unix.CLONE_NEWUSER}, retNotify},
		{"unshare", []uint64{unix.CLONE_NEWTIME}, retNotify},
		{"clone3", nil, retENOSYS},
		{"chmod", []uint64{0, 0o755}, retAllow},
		{"chmod", []uint64{0, 0o4755}, retEPERM},
		{"chmod", []uint64{0, 0o2755}, retEPERM},
		{"chmod", []uint64{0, 0o1777}, retAllow},
		{"fchmodat", []uint64{0, 0, 0o6000}, retEPERM},
		{"fchmodat2", []uint64{0, 0, 0o4000}, retEPERM},
		{"fchmodat2", []uint64{0, 0, 0o700}, retAllow},
		{"openat", []uint64{0, 0, unix.O_CREAT, 0o4755}, retEPERM},
		{"openat", []uint64{0, 0, unix.O_TMPFILE, 0o2755}, retEPERM},
		{"openat", []uint64{0, 0, unix.O_DIRECTORY, 0o6755}, retAllow},
		{"openat", []uint64{0, 0, unix.O_CREAT, 0o755}, retAllow},
		{"open", []uint64{0, unix.O_RDONLY, 0o6755}, retAllow},
		{"mkdir", []uint64{0, 0o2755}, retEPERM},
		{"mknod", []uint64{0, unix.S_IFREG | unix.S_ISUID}, retEPERM},
		{"ioctl", []uint64{0, unix.TIOCSTI}, retNotify},
		{"ioctl", []uint64{0, 1<<32 | unix.TIOCSTI}, retNotify}, // CVE-2019-7303
		{"ioctl", []uint64{0, unix.TIOCSTI + 1}, retAllow},
		{"socket", []uint64{unix.AF_INET6}, retAllow},
		{"socket", []uint64{unix.AF_VSOCK}, retNotify},
		{"socket", []uint64{unix.AF_ALG}, retNotify},
		{"prctl", []uint64{unix.PR_SET_NAME}, retAllow},
		{"prctl", []uint64{unix.PR_SET_NAME | 1<<40}, retAllow},
		{"prctl", []uint64{unix.PR_SET_SECCOMP}, retNotify},
		{"io_uring_setup", nil, retNotify},
	} {
		nr, err := number(c.name, info)
		if errors.Is(err, ErrNotHere) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, p, info.audit, nr, c.args...); got != c.want {
			t.Errorf("%s%#x: got %#x, want %#x", c.name, c.args, got, c.want)
		}
	}
}

// Every mistake is reported with its place, all at once.
func TestValidate(t *testing.T) {
	ok := Rule{Syscalls: []string{"read"}, Action: Allow, Why: "t"}
	with := func(change func(*Rule)) Rule { r := ok; change(&r); return r }
	arg := func(a Arg) Rule { return with(func(r *Rule) { r.Syscalls = []string{"socket"}; r.Args = []Arg{a} }) }
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{with(func(r *Rule) { r.Action = Invalid }), "no valid action"},
		{with(func(r *Rule) { r.Action = Errno }), "errno 0 is not"},
		{with(func(r *Rule) { r.Action, r.Errno = Errno, 4096 }), "errno 4096 is not"},
		{with(func(r *Rule) { r.Errno = unix.EPERM }), "given with action allow"},
		{with(func(r *Rule) { r.Syscalls = nil }), "names no system call"},
		{with(func(r *Rule) { r.Why = "" }), "gives no reason"},
		{with(func(r *Rule) { r.Syscalls = []string{"raed"} }), "(raed): no such system call"},
		{with(func(r *Rule) { r.Syscalls = []string{"arm_fadvise64_64"} }), "not a system call of this architecture"},
		{with(func(r *Rule) { r.Syscalls = []string{"read", "read"} }), "never reached"},
		{arg(Arg{}), "no valid comparison"},
		{arg(Arg{Op: opEnd}), "no valid comparison"},
		{arg(Arg{Index: 6, Op: Equal}), "0 to 5"},
		{arg(Arg{Op: Equal, Mask: 1}), "goes with masked"},
		{arg(Arg{Op: MaskedEqual}), "selects nothing"},
		{arg(Arg{Op: MaskedEqual, Mask: 1, Value: 2}), "outside the mask"},
		{arg(Arg{Op: Equal, Value: 1 << 32}), "32 bits wide"},
		{with(func(r *Rule) { r.Args = make([]Arg, 17) }), "17 conditions"},
	} {
		err := Filter{Unlisted: Notify, Rules: []Rule{with(func(r *Rule) { r.Syscalls = []string{"write"} }), c.rule}}.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "rule 1") {
			t.Errorf("%+v: got %v, want %q of rule 1", c.rule, err, c.want)
		}
	}
	err := Filter{Rules: []Rule{{}, {Syscalls: []string{"x"}, Action: Allow, Why: "t"}}}.Validate()
	for _, want := range []string{"filter: action", "rule 0: no valid", "rule 0: names", "rule 1 (x)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	var pr *Problem
	if !errors.As(err, &pr) || !errors.Is(err, ErrUnknownName) {
		t.Errorf("got %#v, want a *Problem wrapping ErrUnknownName", err)
	}
	if err := (Filter{Unlisted: Allow, Rules: []Rule{ok}}).Validate(); err == nil {
		t.Error("a filter that allows by default is accepted")
	}
	if _, err := (Filter{}).Compile(Options{}); err == nil {
		t.Error("the zero filter compiles")
	}
	if _, err := (Filter{Unlisted: Notify}).Compile(Options{Arch: 9}); !errors.Is(err, ErrUnsupportedArch) {
		t.Errorf("unknown architecture: got %v", err)
	}
}

// Names of another architecture: an error that says so, unless the rule is marked.
func TestIfPresent(t *testing.T) {
	f := Filter{Unlisted: Notify, Rules: []Rule{{Syscalls: []string{"fork", "open", "read"}, Action: Allow, Why: "t"}}}
	if _, err := f.Compile(Options{Arch: AMD64}); err != nil {
		t.Error(err)
	}
	_, err := f.Compile(Options{Arch: ARM64})
	if !errors.Is(err, ErrNotHere) || !strings.Contains(err.Error(), "fork") || !strings.Contains(err.Error(), "open") {
		t.Errorf("got %v, want ErrNotHere for fork and open", err)
	}
	f.Rules[0].IfPresent = true
	p := compile(t, f, Options{Arch: ARM64})
	if got := run(t, p, unix.AUDIT_ARCH_AARCH64, 63); got != retAllow {
		t.Errorf("read on arm64: got %#x", got)
	}
	f.Rules[0].Syscalls = append(f.Rules[0].Syscalls, "raed")
	if _, err := f.Compile(Options{Arch: ARM64}); !errors.Is(err, ErrUnknownName) {
		t.Errorf("a misspelt name with if-present: got %v, want ErrUnknownName", err)
	}
}

// The names agree with the kernel's headers where x/sys has them.
func TestNames(t *testing.T) {
	arch, err := Native.info()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"cachestat": unix.SYS_CACHESTAT, "fchmodat2": unix.SYS_FCHMODAT2, "futex_requeue": unix.SYS_FUTEX_REQUEUE, "mseal": unix.SYS_MSEAL,
		"statmount": unix.SYS_STATMOUNT, "listmount": unix.SYS_LISTMOUNT, "lsm_list_modules": unix.SYS_LSM_LIST_MODULES,
		"set_mempolicy_home_node": unix.SYS_SET_MEMPOLICY_HOME_NODE, "map_shadow_stack": unix.SYS_MAP_SHADOW_STACK,
		"open_tree_attr": unix.SYS_OPEN_TREE_ATTR, "removexattrat": unix.SYS_REMOVEXATTRAT,
	} {
		if got, err := number(name, arch); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, want)
		}
	}
	if Name(unix.SYS_MSEAL) != "mseal" || Name(unix.SYS_READ) != "read" || Name(-1) != "syscall_-1" || Name(599) != "syscall_599" {
		t.Error("Name:", Name(unix.SYS_MSEAL), Name(unix.SYS_READ), Name(-1), Name(599))
	}
}

// reference is the filter's meaning read off its declaration, without resolve, narrowing table aside.
func reference(f Filter, info archInfo, name string, args [6]uint64) uint32 {
	ret := func(a Action, e unix.Errno) uint32 {
		return map[Action]uint32{Allow: retAllow, Notify: retNotify, KillProcess: retKill, Errno: unix.SECCOMP_RET_ERRNO | uint32(e)}[a]
	}
	for _, r := range f.Rules {
		match := false
		for _, s := range r.Syscalls {
			match = match || s == name
		}
		for _, a := range r.Args {
			v := args[a.Index]
			if narrowArgs(name)&(1<<a.Index) != 0 {
				v = uint64(uint32(v))
			}
			holds := false
			switch a.Op {
			case Equal:
				holds = v == a.Value
			case NotEqual:
				holds = v != a.Value
			case MaskedEqual:
				holds = v&a.Mask == a.Value
			case MaskedNotEqual:
				holds = v&a.Mask != a.Value
			}
			match = match && holds
		}
		if match {
			return ret(r.Action, r.Errno)
		}
	}
	return ret(f.Unlisted, f.UnlistedErrno)
}

var fuzzNames = []string{"socket", "ioctl", "clone", "mmap", "openat", "prctl", "read", "futex"}

func randomValue(r *rand.Rand) uint64 {
	switch r.IntN(6) {
	case 0:
		return uint64(r.IntN(4))
	case 1:
		return uint64(r.IntN(4)) << 31
	case 2:
		return uint64(r.IntN(4)) << 32
	case 3:
		return ^uint64(0) - uint64(r.IntN(3))
	case 4:
		return uint64(r.Uint32())
	}
	return r.Uint64()
}

func randomFilter(r *rand.Rand) (Filter, []uint64) {
	f := Filter{Unlisted: []Action{Notify, KillProcess, Errno}[r.IntN(3)]}
	if f.Unlisted == Errno {
		f.UnlistedErrno = unix.Errno(1 + r.IntN(60))
	}
	closed := map[string]bool{}
	var edges []uint64
	for range r.IntN(24) {
		var rule Rule
		rule.Why = "t"
		rule.Action = Action(1 + r.IntN(4))
		if rule.Action == Errno {
			rule.Errno = unix.Errno(1 + r.IntN(200))
		}
		name := fuzzNames[r.IntN(len(fuzzNames))]
		if closed[name] {
			continue
		}
		rule.Syscalls = []string{name}
		for range r.IntN(4) {
			a := Arg{Index: uint(r.IntN(6)), Op: Op(1 + r.IntN(int(opEnd)-1)), Value: randomValue(r)}
			if a.Op == MaskedEqual || a.Op == MaskedNotEqual {
				a.Mask = randomValue(r) | 1<<r.IntN(32)
				a.Value &= a.Mask
			}
			if narrowArgs(name)&(1<<a.Index) != 0 {
				a.Value &= 0xffffffff
				a.Mask &= 0xffffffff
			}
			edges = append(edges, a.Value, a.Value+1, a.Value-1, a.Value^1<<32, a.Value^a.Mask)
			rule.Args = append(rule.Args, a)
		}
		closed[name] = len(rule.Args) == 0
		f.Rules = append(f.Rules, rule)
	}
	return f, edges
}

func agree(t testing.TB, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	f, edges := randomFilter(r)
	a := archs[r.IntN(len(archs))]
	info, _ := a.arch.info()
	p, library := compile(t, f, Options{Arch: a.arch}), byLibrary(t, f, a.arch)
	for range 400 {
		name := fuzzNames[r.IntN(len(fuzzNames))]
		nr, err := number(name, info)
		if err != nil {
			t.Fatal(err)
		}
		var args [6]uint64
		for i := range args {
			if args[i] = randomValue(r); len(edges) > 0 && r.IntN(2) == 0 {
				args[i] = edges[r.IntN(len(edges))]
			}
		}
		want := reference(f, info, name, args)
		if got := run(t, p, a.audit, nr, args[:]...); got != want {
			t.Fatalf("seed %d: %s%#x: got %#x, want %#x\n%+v", seed, name, args, got, want, f)
		}
	}
	rules, _ := f.resolve(a.arch)
	for _, arch := range []uint32{a.audit, unix.AUDIT_ARCH_I386, 0} {
		for nr := range 700 {
			if conditional(rules.steps[nr]) {
				continue
			}
			if got, want := run(t, p, arch, nr), run(t, library, arch, nr); got != want {
				t.Fatalf("seed %d: number %d of architecture %#x: got %#x, libseccomp has %#x", seed, nr, arch, got, want)
			}
		}
	}
}

// Programs of random filters mean what their declaration says; libseccomp says the same of all numbers without conditions.
func TestRandomFilters(t *testing.T) {
	for seed := range uint64(150) {
		agree(t, seed)
	}
}

func FuzzFirstMatch(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { agree(t, seed) })
}

// The worst case of jump distances: many calls, each with as many conditions as are allowed.
func TestLongRules(t *testing.T) {
	f := Filter{Unlisted: Notify}
	for i, name := range []string{"mmap", "read", "futex", "write", "pread64", "pwrite64"} {
		var args []Arg
		for j := range maxArgs {
			a := Arg{Index: uint(j % 6), Op: NotEqual, Value: uint64(j)<<32 | uint64(i)}
			if j%2 == 0 {
				a.Op, a.Mask = MaskedNotEqual, a.Value|1<<63|8 // two loads, two masks, two comparisons
			}
			args = append(args, a)
		}
		for range 4 {
			f.Rules = append(f.Rules, Rule{Syscalls: []string{name}, Action: Allow, Args: args, Why: "t"})
		}
	}
	p := compile(t, f, Options{})
	if got := run(t, p, archs[0].audit, 9, ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)); got != retAllow {
		t.Errorf("got %#x, want allow", got)
	}
	for range 200 {
		f.Rules = append(f.Rules, Rule{Syscalls: []string{"mmap"}, Action: Allow, Args: f.Rules[0].Args, Why: "t"})
	}
	if _, err := f.Compile(Options{}); err == nil || !strings.Contains(err.Error(), "the kernel takes 4096") {
		t.Errorf("a program over the kernel's limit: got %v", err)
	}
}

func TestRunRefusesBadPrograms(t *testing.T) {
	for _, code := range [][]byte{nil, {0x20, 0, 0, 0, 3, 0, 0, 0}, {0xff, 0, 0, 0, 0, 0, 0, 0}, {5, 0, 0, 0, 255, 255, 255, 255}, {5, 0, 0, 0, 9, 0, 0, 0}} {
		if got, err := (Program{code: code}).Run(Data{}); err == nil {
			t.Errorf("%v: got %#x, want an error", code, got)
		}
	}
}

// Verify finds a program that says something else than its filter.
func TestVerify(t *testing.T) {
	f := realistic(t)
	p, err := f.resolve(Native)
	if err != nil {
		t.Fatal(err)
	}
	p.known = knownNumbers(p.arch)
	prog := compile(t, f, Options{})
	returns, unnoticed := 0, 0
	for i := 0; i < len(prog.code); i += insnSize {
		if prog.code[i] != opRet {
			continue
		}
		returns++
		broken := Program{code: append([]byte(nil), prog.code...)}
		broken.code[i+7] ^= 0x40 // another action
		if p.verify(broken) == nil {
			unnoticed++
		}
	}
	if returns < 20 || unnoticed > 0 {
		t.Errorf("%d of %d changed returns not noticed, want none of at least 20", unnoticed, returns)
	}
}

func TestDescribeArgs(t *testing.T) {
	for _, c := range []struct {
		name string
		args [6]uint64
		want string
	}{
		{"socket", [6]uint64{unix.AF_VSOCK}, "family=AF_VSOCK"},
		{"socket", [6]uint64{1<<32 | unix.AF_ALG}, "family=AF_ALG"},
		{"socket", [6]uint64{99}, "family=99"},
		{"unshare", [6]uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNET}, "flags=CLONE_NEWUSER|CLONE_NEWNET"},
		{"setns", [6]uint64{3, unix.CLONE_NEWPID}, "flags=CLONE_NEWPID"},
		{"clone", [6]uint64{unix.CLONE_NEWNS | 17}, "flags=CLONE_NEWNS"},
		{"clone", [6]uint64{17}, ""},
		{"ioctl", [6]uint64{0, unix.TIOCSTI}, "request=TIOCSTI"},
		{"ioctl", [6]uint64{0, 0x541c}, "request=TIOCLINUX"},
		{"ioctl", [6]uint64{0, 0x1234}, "request=0x1234"},
		{"chmod", [6]uint64{0xdead, 0o4755}, "mode=S_ISUID"},
		{"mount", [6]uint64{1, 2, 3}, ""},
	} {
		if got := DescribeArgs(c.name, c.args); got != c.want {
			t.Errorf("%s%#x: got %q, want %q", c.name, c.args, got, c.want)
		}
	}
}

// narrowArgs speaks of calls that exist.
func TestNarrowNames(t *testing.T) {
	info, _ := AMD64.info()
	for _, n := range strings.Fields("socket socketpair setsockopt getsockopt ioctl fcntl prctl personality bpf keyctl seccomp setns clone open openat madvise memfd_create prlimit64 sched_setscheduler kill tgkill execveat accept4") {
		if _, err := number(n, info); err != nil || narrowArgs(n) == 0 {
			t.Errorf("%s: %v, bits %b", n, err, narrowArgs(n))
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	f := realistic(b)
	b.Run("compiled", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = compile(b, f, Options{}).Len()
		}
		b.ReportMetric(float64(n), "insns")
	})
	b.Run("cached", func(b *testing.B) {
		dir := b.TempDir()
		if err := chmod(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		f.CompileCached(dir, Options{})
		for b.Loop() {
			if p, err := f.CompileCached(dir, Options{}); err != nil || !p.Cached {
				b.Fatal(err, p.CacheErr)
			}
		}
	})
	b.Run("validate", func(b *testing.B) {
		for b.Loop() {
			f.Validate()
		}
	})
}

var _ = retKill
