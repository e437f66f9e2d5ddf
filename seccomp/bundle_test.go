// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/json"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ringLike allows, asks, refuses by itself, and leaves the rest to the supervisor.
var ringLike = Filter{Unlisted: Notify, Rules: []Rule{
	{Syscalls: []string{"uname", "read", "getpid"}, Action: Allow, Why: "x"},
	{Syscalls: []string{"personality"}, Action: Allow, Args: []Arg{{Index: 0, Op: Equal, Value: 8}}, Why: "x"},
	{Syscalls: []string{"socket"}, Action: Notify, Why: "x"},
	{Syscalls: []string{"mincore"}, Action: Errno, Errno: unix.EINVAL, Why: "x"},
}}

// What a ring allows is its bundle's to refuse; what it doesn't, no bundle does anything about.
func TestWithin(t *testing.T) {
	ring := compiled(t, ringLike)
	for _, tc := range []struct{ filter, call, want string }{
		{`{"defaultAction": "SCMP_ACT_ALLOW"}`, "uname", "allow"},
		{`{"defaultAction": "SCMP_ACT_ALLOW"}`, "mincore", "errno 22"},
		{`{"defaultAction": "SCMP_ACT_ALLOW"}`, "mount", "notify"},
		{`{"defaultAction": "SCMP_ACT_KILL"}`, "mount", "notify"},
		{`{"defaultAction": "SCMP_ACT_KILL"}`, "mincore", "errno 22"},
		{`{"defaultAction": "SCMP_ACT_KILL", "syscalls": [{"names": ["getpid", "personality"], "action": "SCMP_ACT_ALLOW"}]}`, "uname", "kill"},
		{`{"defaultAction": "SCMP_ACT_KILL", "syscalls": [{"names": ["getpid", "personality"], "action": "SCMP_ACT_ALLOW"}]}`, "personality", "notify"},
		{`{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["getpid"], "action": "SCMP_ACT_ALLOW"}]}`, "uname", "errno 38"}, // 39 and 63
		{`{"defaultAction": "SCMP_ACT_TRAP", "syscalls": [{"names": ["uname"], "action": "SCMP_ACT_LOG"}]}`, "uname", "log"},
		{`{"defaultAction": "SCMP_ACT_TRAP", "syscalls": [{"names": ["uname"], "action": "SCMP_ACT_LOG"}]}`, "read", "trap"},
	} {
		var s specs.LinuxSeccomp
		if err := json.Unmarshal([]byte(tc.filter), &s); err != nil {
			t.Fatal(err)
		}
		bundle, err := OfBundle(&s)
		if err != nil {
			t.Fatal(err)
		}
		both, err := ring.Within(bundle)
		if err != nil {
			t.Fatal(err)
		}
		arch, _ := Native.info()
		nr, _ := number(tc.call, arch)
		verdict, err := both.Run(Data{NR: uint32(nr), Arch: arch.audit})
		want := map[string]uint32{
			"allow": unix.SECCOMP_RET_ALLOW, "notify": unix.SECCOMP_RET_USER_NOTIF, "errno 22": unix.SECCOMP_RET_ERRNO | 22, "errno 38": unix.SECCOMP_RET_ERRNO | 38,
			"kill": unix.SECCOMP_RET_KILL_THREAD, "trap": unix.SECCOMP_RET_TRAP, "log": unix.SECCOMP_RET_LOG,
		}[tc.want]
		if err != nil || verdict != want {
			t.Errorf("%s of %s: %#x, %v, want %s", tc.call, tc.filter, verdict, err, tc.want)
		}
	}
	long := Program{code: make([]byte, maxInsns*insnSize)}
	if _, err := ring.Within(long); err == nil || !strings.Contains(err.Error(), "the kernel takes 4096") {
		t.Errorf("a filter that is too long: %v", err)
	}
}

// A bundle of a few hundred kilobytes can name more rules than the kernel takes, and its check looks at all of them for each.
func TestBundleTooLong(t *testing.T) {
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
	for n := range uint64(20000) {
		s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{Names: []string{"ioctl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 1, Value: n, Op: specs.OpEqualTo}}})
	}
	if _, err := OfBundle(s); err == nil || !strings.Contains(err.Error(), "linux.seccomp.syscalls: ") || !strings.Contains(err.Error(), "the kernel takes 4096") {
		t.Errorf("%v", err)
	}
}

// Each name of a rule may stand with each of its conditions, and both lists be as long as a bundle is.
func TestBundleOfManyNamesAndConditions(t *testing.T) {
	r := specs.LinuxSyscall{Action: specs.ActAllow, Names: slices.Repeat([]string{"ioctl"}, 1<<11)}
	for n := range uint64(1 << 11) {
		r.Args = append(r.Args, specs.LinuxSeccompArg{Index: 1, Value: n, Op: specs.OpEqualTo})
	}
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	_, err := OfBundle(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{r}})
	goruntime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "the kernel takes 4096") {
		t.Errorf("%v", err)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("it took %d MiB", took)
	}
}

// Whatever a bundle's filter says: it is refused, or nothing that its ring doesn't allow is allowed by it.
func FuzzBundle(f *testing.F) {
	f.Add([]byte(`{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "op": "SCMP_CMP_LE", "value": 8}]}]}`), uint64(8))
	f.Add([]byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["uname"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99, "args": [{"index": 5, "op": "SCMP_CMP_MASKED_EQ", "value": 7, "valueTwo": 9}]}]}`), uint64(0))
	ring := compiled(f, ringLike)
	arch, err := Native.info()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte, arg uint64) {
		var s specs.LinuxSeccomp
		if json.Unmarshal(text, &s) != nil {
			return
		}
		bundle, err := OfBundle(&s)
		if err != nil {
			return
		}
		both, err := ring.Within(bundle)
		if err != nil {
			t.Fatal(err)
		}
		for nr := range uint32(maxNumber) {
			d := Data{NR: nr, Arch: arch.audit, Args: [6]uint64{arg, arg, arg, arg, arg, arg}}
			own, err := ring.Run(d)
			if err != nil {
				t.Fatal(err)
			}
			verdict, err := both.Run(d)
			if err != nil || own != unix.SECCOMP_RET_ALLOW && verdict != own {
				t.Fatalf("call %d: %#x, %v, and the ring's is %#x", nr, verdict, err, own)
			}
			if lets := bundle.Answer(Call{NR: int(nr), Arch: arch.audit, Args: d.Args}).Allowed(); own == unix.SECCOMP_RET_ALLOW && lets != (verdict == unix.SECCOMP_RET_ALLOW || verdict == unix.SECCOMP_RET_LOG) {
				t.Fatalf("call %d: the kernel says %#x, the supervisor that it may run: %t", nr, verdict, lets)
			}
		}
	})
}

func compiled(t testing.TB, f Filter) Program {
	t.Helper()
	p, err := f.Compile(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
