// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

func need(t testing.TB, probes ...*hostcaps.Probe) {
	t.Helper()
	for _, p := range probes {
		if err := p.Check(); err != nil {
			if os.Getenv("AGENTRUN_TEST_MUST_RUN") == "1" {
				t.Fatalf("need: %v", err)
			}
			t.Skipf("need: %v", err)
		}
	}
}

const testUID = 64999

// buildProbe builds it without cgo: the test binary itself, under the race detector, has C threads that Drop refuses.
func buildProbe(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "confine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "probe")
	cmd := exec.Command("go", "build", "-o", name, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build probe: %v\n%s", err, out)
	}
	return name
}

func runProbe(t testing.TB, args ...string) (lines map[string]string, err error) {
	t.Helper()
	cmd := exec.Command(buildProbe(t), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("%s", errs.String())
	lines = map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		lines[name] = result
	}
	return lines, err
}

// The gateway after its drop: all that it has to do works, nothing else does, on threads from before and after.
func TestThreatToolProxyGatewayGivesEverythingUp(t *testing.T) {
	need(t, hostcaps.Root, hostcaps.Seccomp, hostcaps.Landlock(1))
	dir := t.TempDir()
	readable, writable := filepath.Join(dir, "policy.cedar"), filepath.Join(dir, "logs")
	if err := os.WriteFile(readable, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(writable, 0o700), os.Chown(writable, testUID, testUID), os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	got, err := runProbe(t, "-uid", "64999", "-gid", "64999", "-read", readable, "-write", writable)
	if err != nil {
		t.Errorf("probe: %v", err)
	}
	want := map[string]string{}
	for name := range got {
		want[name] = "EPERM"
		if !strings.HasPrefix(name, "try ") {
			want[name] = "ok"
		}
	}
	for _, name := range []string{"read shadow", "read passwd", "read own memory", "read own environ", "write hosts", "make in tmp", "list root", "escape by dots"} {
		want["try "+name] = "EACCES"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(got) < 60 || got["work https"] == "" || got["verify"] == "" {
		t.Errorf("only %d lines: %v", len(got), got)
	}
}

func TestVerifySeesThatNothingWasDropped(t *testing.T) {
	need(t, hostcaps.Root)
	got, err := runProbe(t, "-verify-only", "-uid", "64999", "-gid", "64999")
	if err != nil || got["verify"] == "ok" || got["verify"] == "" {
		t.Errorf("got %v, %v, want errors", got, err)
	}
	err = Verify(Options{UID: testUID, GID: testUID})
	for _, want := range []string{"user is 0", "capabilities", "make a netlink socket", "open what no rule names", "bind a port"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestDropRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"zero": {}, "root": {UID: 0, GID: 5}, "root's group": {UID: 5}, "negative": {UID: -1, GID: -1}, "few files": {UID: 5, GID: 5, Files: 1},
		"few threads": {UID: 5, GID: 5, Threads: 1}, "relative": {UID: 5, GID: 5, Read: []string{"x"}},
	} {
		if err := Drop(o); err == nil {
			t.Fatalf("%s: dropped", name)
		}
	}
	need(t, hostcaps.Root, hostcaps.Landlock(1))
	got, err := runProbe(t, "-uid", "64999", "-gid", "64999", "-read", "/nonexistent/policy")
	if err == nil || got["drop"] != "ENOENT" {
		t.Errorf("got %v, %v, want ENOENT", got, err)
	}
}

func TestCheckStatus(t *testing.T) {
	const good = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t \nNoNewPrivs:\t1\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n" +
		"CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\n"
	o := Options{UID: 7, GID: 8}
	if err := checkStatus([]byte(good), o); err != nil {
		t.Error(err)
	}
	for _, change := range []string{"Uid:\t7\t7\t7\t7|Uid:\t7\t0\t7\t7", "Groups:\t |Groups:\t0", "NoNewPrivs:\t1|NoNewPrivs:\t0", "CapBnd:\t0000000000000000|CapBnd:\t0000000000000001", "CapAmb|CapXmb"} {
		from, to, _ := strings.Cut(change, "|")
		if err := checkStatus([]byte(strings.Replace(good, from, to, 1)), o); err == nil {
			t.Errorf("%s: no error", change)
		}
	}
}

// data is struct seccomp_data for bpf.VM, which reads big-endian words.
func data(arch, number uint32, args ...uint64) []byte {
	b := make([]byte, 64)
	binary.BigEndian.PutUint32(b[offNumber:], number)
	binary.BigEndian.PutUint32(b[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(b[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(b[offArgs+8*i+4:], uint32(a>>32))
	}
	return b
}

func machine(t testing.TB, o Options) *bpf.VM {
	t.Helper()
	p := program(allowed(o, 42))
	if _, err := bpf.Assemble(p); err != nil || len(p) > 4096 {
		t.Fatalf("%d instructions: %v", len(p), err)
	}
	// The VM wants byte offsets within the packet, which is all that seccomp's loads are.
	vm, err := bpf.NewVM(p)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestFilter(t *testing.T) {
	vm, withUnix := machine(t, Options{}), machine(t, Options{Unix: true})
	const allow = unix.SECCOMP_RET_ALLOW
	for _, tt := range []struct {
		name   string
		number uintptr
		args   []uint64
		want   int
	}{
		{"tcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, allow},
		{"tcp6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, allow},
		{"udp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, allow},
		{"unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, int(refusal)},
		{"seqpacket", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_SEQPACKET, 0}, int(refusal)},
		{"raw", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW, 0}, int(refusal)},
		{"sctp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, int(refusal)},
		{"go's threads", unix.SYS_CLONE, []uint64{0x50f00}, allow},
		{"fork", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, int(refusal)},
		{"vfork", unix.SYS_CLONE, []uint64{unix.CLONE_VFORK | unix.CLONE_VM}, int(refusal)},
		{"thread in a namespace", unix.SYS_CLONE, []uint64{0x50f00 | unix.CLONE_NEWNS}, int(refusal)},
		{"memory", unix.SYS_MMAP, []uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, allow},
		{"code", unix.SYS_MMAP, []uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, int(refusal)},
		{"own signal", unix.SYS_TGKILL, []uint64{42, 43, 23}, allow},
		{"other's signal", unix.SYS_TGKILL, []uint64{1, 1, 9}, int(refusal)},
		{"every signal", unix.SYS_KILL, []uint64{^uint64(0), 9}, int(refusal)},
		{"get a limit", unix.SYS_PRLIMIT64, []uint64{0, 7, 0, 1 << 40}, allow},
		{"set a limit", unix.SYS_PRLIMIT64, []uint64{0, 7, 1 << 40, 0}, int(refusal)},
		{"another's limit", unix.SYS_PRLIMIT64, []uint64{1, 7, 0, 1}, int(refusal)},
		{"nodelay", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, allow},
		{"option of another level", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, int(refusal)},
		{"unknown", 4000, nil, int(refusal)},
	} {
		if got, err := vm.Run(data(auditArch, uint32(tt.number), tt.args...)); err != nil || got != tt.want {
			t.Errorf("%s: got %#x, %v, want %#x", tt.name, got, err, tt.want)
		}
	}
	if got, _ := withUnix.Run(data(auditArch, unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)); got != allow {
		t.Errorf("unix with Unix: got %#x", got)
	}
	kill := int(uint32(unix.SECCOMP_RET_KILL_PROCESS))
	for _, d := range [][]byte{data(unix.AUDIT_ARCH_I386, 1), data(auditArch, x32Bit|uint32(unix.SYS_READ)), data(0, 0)} {
		if got, _ := vm.Run(d); got != kill {
			t.Errorf("foreign architecture: got %#x, want %#x", got, kill)
		}
	}
}

// Whatever the number and arguments, without a rule there is no allowance; and each rule has its reason and only one owner.
func TestFilterRulesAreWhole(t *testing.T) {
	seen := map[uint32]string{}
	rules := allowed(Options{}, 42)
	for _, r := range rules {
		if r.why == "" || seen[r.number] != "" {
			t.Errorf("%s (%d): reason %q, also %q", r.name, r.number, r.why, seen[r.number])
		}
		seen[r.number] = r.name
	}
	vm := machine(t, Options{})
	for n := range uint32(1024) {
		got, err := vm.Run(data(auditArch, n, 1<<63-1, 1<<63-1, 1<<63-1))
		if err != nil || got != unix.SECCOMP_RET_ALLOW && got != int(refusal) || got == unix.SECCOMP_RET_ALLOW && seen[n] == "" {
			t.Errorf("%d: got %#x, %v", n, got, err)
		}
	}
	for _, name := range []string{"execve", "execveat", "bind", "listen", "ioctl", "ptrace", "memfd_create", "socketpair", "setuid", "chmod", "fchmod", "chown", "rename"} {
		for _, r := range rules {
			if r.name == name {
				t.Errorf("%s is allowed", name)
			}
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(uint32(auditArch), uint32(unix.SYS_SOCKET), uint64(2), uint64(1), uint64(0))
	f.Add(uint32(auditArch), uint32(unix.SYS_CLONE), uint64(0x50f00), uint64(0), uint64(0))
	vm := machine(f, Options{})
	f.Fuzz(func(t *testing.T, arch, number uint32, a, b, c uint64) {
		got, err := vm.Run(data(arch, number, a, b, c))
		if err != nil || arch != auditArch && got == unix.SECCOMP_RET_ALLOW {
			t.Errorf("got %#x, %v", got, err)
		}
		if got == unix.SECCOMP_RET_ALLOW && number == unix.SYS_CLONE && uint32(a)&unix.CLONE_THREAD == 0 {
			t.Errorf("clone %#x allowed", a)
		}
	})
}

func TestErrorsTellTheStep(t *testing.T) {
	err := wrap("setresuid(2)", syscall.EPERM)
	if !errors.Is(err, unix.EPERM) || err.Error() != "setresuid(2): operation not permitted" || wrap("x", nil) != nil {
		t.Errorf("got %v", err)
	}
}
