// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

var runnable = []string{"ring1", "ring2", "ring3", "strict"}

func builtinProfile(t testing.TB, name string) Profile {
	t.Helper()
	p, err := Load(Sources{}, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBuiltinLimits: the defaults of DESIGN's table (M-3).
func TestBuiltinLimits(t *testing.T) {
	type row struct {
		Ring    int
		CPU     float64
		Memory  Size
		PIDs    int
		Timeout time.Duration
	}
	for name, want := range map[string]row{
		"ring3":  {3, 0.5, 256 * MiB, 64, 60 * time.Second},
		"strict": {3, 0.5, 256 * MiB, 64, 60 * time.Second},
		"ring2":  {2, 0.75, 512 * MiB, 128, 120 * time.Second},
		"ring1":  {1, 1, 1024 * MiB, 256, 300 * time.Second},
	} {
		p := builtinProfile(t, name)
		got := row{p.Ring, p.Limits.CPU, p.Limits.Memory, p.Limits.PIDs, time.Duration(p.Limits.Timeout)}
		if got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		if p.Limits.Why == "" || p.Network.Why == "" || p.Files.Why == "" || p.Subprocess.Why == "" {
			t.Errorf("%s: a section without why", name)
		}
	}
}

// TestBuiltinShape: what a ring means beside its limits (DESIGN, the table of rings).
func TestBuiltinShape(t *testing.T) {
	for name, want := range map[string]string{
		"ring3":  "none readonly ro true deny",
		"strict": "none readonly ro false tools",
		"ring2":  "allowlist readonly rw true allow",
		"ring1":  "public overlay rw true allow",
	} {
		p := builtinProfile(t, name)
		got := fmt.Sprint(p.Network.Mode, " ", p.Files.Root, " ", p.Files.Workspace, " ", p.Files.WorkspaceExec, " ", p.Subprocess.Mode)
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// TestEverythingHasAWhy walks every struct with a Why field in every built-in.
func TestEverythingHasAWhy(t *testing.T) {
	for _, name := range runnable {
		var walk func(path string, v reflect.Value)
		walk = func(path string, v reflect.Value) {
			switch v.Kind() {
			case reflect.Struct:
				if why := v.FieldByName("Why"); why.IsValid() && !v.IsZero() && strings.TrimSpace(why.String()) == "" { // what says nothing needs none
					t.Errorf("%s: %s has no why", name, path)
				}
				for i := range v.NumField() {
					walk(path+"."+v.Type().Field(i).Name, v.Field(i))
				}
			case reflect.Slice:
				for i := range v.Len() {
					walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
				}
			}
		}
		walk("", reflect.ValueOf(builtinProfile(t, name)))
	}
}

// TestEverySyscallHasAPlace: each call of amd64 is decided by name in each ring, so that no default is by oversight (M-4).
func TestEverySyscallHasAPlace(t *testing.T) {
	for _, name := range runnable {
		named := map[string]bool{}
		for _, r := range builtinProfile(t, name).Syscalls {
			for _, n := range r.Names {
				named[n] = named[n] || len(r.Args) == 0
			}
		}
		for _, n := range syscallNames {
			if !named[n] {
				t.Errorf("%s: %s has no rule that decides it for every argument", name, n)
			}
		}
	}
}

// TestSyscallNamesKnown: every name exists in the libseccomp of the build, or its rule says if_known and it is newer than
// libseccomp 2.5.4, the oldest that is supported.
func TestSyscallNamesKnown(t *testing.T) {
	newer := map[string]bool{"set_mempolicy_home_node": true, "cachestat": true, "fchmodat2": true,
		"map_shadow_stack": true, "futex_wake": true, "futex_wait": true, "futex_requeue": true, "statmount": true,
		"listmount": true, "lsm_get_self_attr": true, "lsm_set_self_attr": true, "lsm_list_modules": true, "mseal": true,
		"setxattrat": true, "getxattrat": true, "listxattrat": true, "removexattrat": true, "open_tree_attr": true,
		"file_getattr": true, "file_setattr": true}
	for _, r := range builtinRules {
		for _, n := range r.Names {
			_, err := libseccomp.GetSyscallFromName(n)
			if err != nil && !newer[n] {
				t.Errorf("%s: not in libseccomp and not in this test's list of newer calls", n)
			}
			if (err != nil || newer[n]) && !r.IfKnown {
				t.Errorf("%s: libseccomp may not know it; its rule needs if_known", n)
			}
		}
	}
}

// TestFloorHolds: each ring has base's floor, before every other rule, and no floor rule allows.
func TestFloorHolds(t *testing.T) {
	base, _ := Builtin("base")
	isFloor := func(r SyscallRule) bool { return r.Floor }
	floor := slices.DeleteFunc(base.Clone().Syscalls, func(r SyscallRule) bool { return !r.Floor })
	if len(floor) < 40 {
		t.Fatalf("base has %d floor rules, want at least 40", len(floor))
	}
	for _, name := range runnable {
		p := builtinProfile(t, name)
		if diff := cmp.Diff(floor, p.Syscalls[:len(floor)]); diff != "" {
			t.Errorf("%s: does not open with base's floor (-want +got):\n%s", name, diff)
		}
		for _, r := range p.Syscalls {
			if isFloor(r) && r.Action == ActionAllow {
				t.Errorf("%s: floor allows %v", name, r.Names)
			}
		}
	}
}

// TestMaskedInts: every comparison in the built-ins is masked (CVE-2019-10063), but that of a pointer, of which the
// kernel looks at all 64 bits too.
func TestMaskedInts(t *testing.T) {
	for _, r := range builtinRules {
		for _, c := range r.Args {
			pointer := r.Names[0] == "prlimit64" && c.Index == 2 && c.Op == OpNe
			if c.Op != OpMaskedEq && !pointer {
				t.Errorf("%v: op %s on argument %d", r.Names, c.Op, c.Index)
			}
		}
	}
}

// TestSymbols compares the table with golang.org/x/sys/unix where it has the name.
func TestSymbols(t *testing.T) {
	for name, want := range map[string]uint64{
		"AF_ALG": unix.AF_ALG, "AF_BLUETOOTH": unix.AF_BLUETOOTH, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6,
		"AF_NETLINK": unix.AF_NETLINK, "AF_PACKET": unix.AF_PACKET, "AF_UNIX": unix.AF_UNIX, "AF_VSOCK": unix.AF_VSOCK,
		"AF_XDP": unix.AF_XDP, "AT_EMPTY_PATH": unix.AT_EMPTY_PATH, "CLONE_FILES": unix.CLONE_FILES, "CLONE_FS": unix.CLONE_FS,
		"CLONE_NEWCGROUP": unix.CLONE_NEWCGROUP, "CLONE_NEWIPC": unix.CLONE_NEWIPC, "CLONE_NEWNET": unix.CLONE_NEWNET,
		"CLONE_NEWNS": unix.CLONE_NEWNS, "CLONE_NEWPID": unix.CLONE_NEWPID, "CLONE_NEWTIME": unix.CLONE_NEWTIME,
		"CLONE_NEWUSER": unix.CLONE_NEWUSER, "CLONE_NEWUTS": unix.CLONE_NEWUTS, "CLONE_SIGHAND": unix.CLONE_SIGHAND,
		"CLONE_THREAD": unix.CLONE_THREAD, "CLONE_VFORK": unix.CLONE_VFORK, "CLONE_VM": unix.CLONE_VM,
		"F_NOTIFY": unix.F_NOTIFY, "F_OFD_GETLK": unix.F_OFD_GETLK, "F_OFD_SETLK": unix.F_OFD_SETLK, "F_OFD_SETLKW": unix.F_OFD_SETLKW, "F_SETDELEG": 1024 + 16, "F_SETLEASE": unix.F_SETLEASE,
		"MAP_HUGETLB": unix.MAP_HUGETLB, "MFD_HUGETLB": unix.MFD_HUGETLB, "SHM_HUGETLB": 0o4000,
		"IPPROTO_MPTCP": unix.IPPROTO_MPTCP, "IPPROTO_TCP": unix.IPPROTO_TCP, "IPPROTO_UDP": unix.IPPROTO_UDP,
		"MFD_EXEC": unix.MFD_EXEC, "MFD_NOEXEC_SEAL": unix.MFD_NOEXEC_SEAL, "NETLINK_ROUTE": unix.NETLINK_ROUTE,
		"O_CREAT": unix.O_CREAT, "PROT_EXEC": unix.PROT_EXEC, "PROT_WRITE": unix.PROT_WRITE,
		"PR_CAPBSET_READ": unix.PR_CAPBSET_READ, "PR_GET_CHILD_SUBREAPER": unix.PR_GET_CHILD_SUBREAPER,
		"PR_GET_DUMPABLE": unix.PR_GET_DUMPABLE, "PR_GET_MDWE": unix.PR_GET_MDWE, "PR_GET_NAME": unix.PR_GET_NAME,
		"PR_GET_NO_NEW_PRIVS": unix.PR_GET_NO_NEW_PRIVS, "PR_GET_PDEATHSIG": unix.PR_GET_PDEATHSIG,
		"PR_GET_SECCOMP": unix.PR_GET_SECCOMP, "PR_GET_SECUREBITS": unix.PR_GET_SECUREBITS,
		"PR_GET_SPECULATION_CTRL": unix.PR_GET_SPECULATION_CTRL, "PR_GET_THP_DISABLE": unix.PR_GET_THP_DISABLE,
		"PR_GET_TIMERSLACK": unix.PR_GET_TIMERSLACK, "PR_SET_CHILD_SUBREAPER": unix.PR_SET_CHILD_SUBREAPER,
		"PR_SET_DUMPABLE": unix.PR_SET_DUMPABLE, "PR_SET_MDWE": unix.PR_SET_MDWE, "PR_SET_NAME": unix.PR_SET_NAME,
		"PR_SET_NO_NEW_PRIVS": unix.PR_SET_NO_NEW_PRIVS, "PR_SET_PDEATHSIG": unix.PR_SET_PDEATHSIG,
		"PR_SET_PTRACER": unix.PR_SET_PTRACER, "PR_SET_SECCOMP": unix.PR_SET_SECCOMP,
		"PR_SET_THP_DISABLE": unix.PR_SET_THP_DISABLE, "PR_SET_TIMERSLACK": unix.PR_SET_TIMERSLACK, "PR_SET_VMA": unix.PR_SET_VMA,
		"SOCK_CLOEXEC": unix.SOCK_CLOEXEC, "SOCK_DGRAM": unix.SOCK_DGRAM, "SOCK_NONBLOCK": unix.SOCK_NONBLOCK, "SOCK_RAW": unix.SOCK_RAW, "SOCK_SEQPACKET": unix.SOCK_SEQPACKET,
		"SOCK_STREAM": unix.SOCK_STREAM, "SOL_SOCKET": unix.SOL_SOCKET, "SOL_TCP": unix.SOL_TCP,
		"SO_ATTACH_FILTER": unix.SO_ATTACH_FILTER, "SO_ATTACH_REUSEPORT_CBPF": unix.SO_ATTACH_REUSEPORT_CBPF,
		"S_IFBLK": unix.S_IFBLK, "S_IFCHR": unix.S_IFCHR, "S_IFIFO": unix.S_IFIFO, "S_IFMT": unix.S_IFMT, "S_IFREG": unix.S_IFREG,
		"S_IFSOCK": unix.S_IFSOCK, "S_ISGID": unix.S_ISGID, "S_ISUID": unix.S_ISUID, "TCP_ULP": unix.TCP_ULP,
		"TIOCCONS": unix.TIOCCONS, "TIOCLINUX": unix.TIOCLINUX, "TIOCSETD": unix.TIOCSETD, "TIOCSPTLCK": unix.TIOCSPTLCK, "RLIMIT_CORE": unix.RLIMIT_CORE, "TIOCSTI": unix.TIOCSTI,
		"__O_TMPFILE": unix.O_TMPFILE &^ unix.O_DIRECTORY, "SOCK_TYPE_MASK": 0xf,
	} {
		if got, ok := SymbolValue(name); !ok || got != want {
			t.Errorf("SymbolValue(%s) = %#x, %v, want %#x", name, got, ok, want)
		}
	}
	if len(symbols) != 92 {
		t.Errorf("%d symbols: add the new one to this test", len(symbols))
	}
	for _, table := range [][]symbol{symbols[:], errnos[:]} {
		for i := 1; i < len(table); i++ {
			if table[i-1].name >= table[i].name {
				t.Errorf("%s stands before %s", table[i-1].name, table[i].name)
			}
		}
	}
	for name, want := range map[string]unix.Errno{"EACCES": unix.EACCES, "EAFNOSUPPORT": unix.EAFNOSUPPORT, "EINVAL": unix.EINVAL,
		"ENOSYS": unix.ENOSYS, "ENOTSUP": unix.ENOTSUP, "EOPNOTSUPP": unix.EOPNOTSUPP, "EPERM": unix.EPERM, "ENOMEM": unix.ENOMEM,
		"EPROTONOSUPPORT": unix.EPROTONOSUPPORT, "EROFS": unix.EROFS} {
		if got, ok := ErrnoValue(name); !ok || got != int(want) {
			t.Errorf("ErrnoValue(%s) = %d, %v, want %d", name, got, ok, want)
		}
	}
}

// TestSyscallDecisions: a line per attack or need, in each profile (M-4, THREATS). Register values as a program sends
// them, upper halves dirty where the kernel ignores them.
func TestSyscallDecisions(t *testing.T) {
	const dirty = 0xdead << 32
	type args = [6]uint64
	const (
		thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM | unix.CLONE_SETTLS
		cloex  = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	)
	all := func(want string) [4]string { return [4]string{want, want, want, want} } // ring1 ring2 ring3 strict
	strictNo := [4]string{"allow", "allow", "allow", "notify"}
	above3 := [4]string{"allow", "allow", "notify", "notify"}
	quiet3 := [4]string{"allow", "allow", "errno EAFNOSUPPORT", "notify"}
	for _, tc := range []struct {
		what string
		name string
		args args
		want [4]string
	}{
		{"a thread", "clone", args{thread}, all("allow")},
		{"a process", "clone", args{uint64(unix.SIGCHLD)}, all("notify")},
		{"vfork by clone", "clone", args{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, all("notify")},
		{"fork", "fork", args{}, all("notify")},
		{"vfork", "vfork", args{}, all("notify")},
		{"a thread with a user namespace", "clone", args{thread | unix.CLONE_NEWUSER}, all("notify")},
		{"a mount namespace", "clone", args{unix.CLONE_NEWNS}, all("notify")},
		{"clone3", "clone3", args{1, 88}, all("notify ENOSYS")},
		{"unshare", "unshare", args{unix.CLONE_NEWUSER}, all("notify")},
		{"setns", "setns", args{3, 0}, all("notify")},
		{"execve", "execve", args{}, above3},
		{"execveat by path", "execveat", args{3, 0, 0, 0, 0}, above3},
		{"fexecve", "execveat", args{3, 0, 0, 0, unix.AT_EMPTY_PATH}, all("notify")},
		{"fexecve, dirty", "execveat", args{3, 0, 0, 0, unix.AT_EMPTY_PATH | dirty}, all("notify")},
		{"memfd sealed against execution", "memfd_create", args{0, unix.MFD_CLOEXEC | unix.MFD_NOEXEC_SEAL}, all("allow")},
		{"memfd", "memfd_create", args{0, unix.MFD_CLOEXEC}, all("notify ENOSYS")},
		{"memfd of huge pages", "memfd_create", args{0, unix.MFD_NOEXEC_SEAL | unix.MFD_HUGETLB | dirty}, all("errno ENOMEM")},
		{"huge pages", "mmap", args{0, 1 << 21, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, all("errno ENOMEM")},
		{"huge pages of 1 GiB", "mmap", args{0, 1 << 30, unix.PROT_READ, unix.MAP_SHARED | unix.MAP_HUGETLB | 30<<unix.MAP_HUGE_SHIFT}, all("errno ENOMEM")},
		{"shared huge pages", "shmget", args{0, 1 << 21, unix.IPC_CREAT | 0o4600}, all("errno ENOMEM")},
		{"memfd to execute", "memfd_create", args{0, unix.MFD_EXEC}, all("notify EPERM")},
		{"memfd of both kinds", "memfd_create", args{0, unix.MFD_EXEC | unix.MFD_NOEXEC_SEAL}, all("notify EPERM")},
		{"tcp", "socket", args{unix.AF_INET, unix.SOCK_STREAM | cloex, 0}, strictNo},
		{"tcp by name", "socket", args{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, strictNo},
		{"udp", "socket", args{unix.AF_INET6, unix.SOCK_DGRAM | cloex, 0}, strictNo},
		{"unix stream", "socket", args{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0}, above3},
		{"glibc's nscd", "socket", args{unix.AF_UNIX, unix.SOCK_STREAM | cloex, 0}, quiet3},
		{"unix datagram", "socket", args{unix.AF_UNIX, unix.SOCK_DGRAM | cloex, 0}, above3},
		{"mptcp", "socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, [4]string{"errno EPROTONOSUPPORT", "errno EPROTONOSUPPORT", "errno EPROTONOSUPPORT", "notify"}},
		{"sctp", "socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, all("notify")},
		{"raw", "socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, all("notify")},
		{"ping", "socket", args{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, all("notify")},
		{"netlink route", "socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, above3},
		{"glibc's netlink route", "socket", args{unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE}, quiet3},
		{"netlink netfilter", "socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, all("notify")},
		{"vsock", "socket", args{unix.AF_VSOCK | dirty, unix.SOCK_STREAM, 0}, all("notify")},
		{"alg", "socket", args{unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, all("notify")},
		{"packet", "socket", args{unix.AF_PACKET, unix.SOCK_RAW, 0}, all("notify")},
		{"socketpair", "socketpair", args{unix.AF_UNIX, unix.SOCK_STREAM | cloex, 0}, strictNo},
		{"datagram pair", "socketpair", args{unix.AF_UNIX, unix.SOCK_DGRAM | cloex, 0}, above3},
		{"raw pair, which is one of datagrams", "socketpair", args{unix.AF_UNIX | dirty, unix.SOCK_RAW | dirty, 0}, above3},
		{"pair of packets", "socketpair", args{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, above3},
		{"pair of another family", "socketpair", args{unix.AF_TIPC, unix.SOCK_STREAM, 0}, all("notify")},
		{"kernel tls", "setsockopt", args{3, unix.SOL_TCP, unix.TCP_ULP}, all("notify")},
		{"paced", "setsockopt", args{3, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE | dirty}, all("errno EPERM")},
		{"nodelay", "setsockopt", args{3, unix.SOL_TCP, unix.TCP_NODELAY}, strictNo},
		{"TIOCSTI", "ioctl", args{0, unix.TIOCSTI}, all("notify")},
		{"TIOCSTI, dirty", "ioctl", args{0, unix.TIOCSTI | dirty}, all("notify")},
		{"TIOCLINUX", "ioctl", args{0, unix.TIOCLINUX}, all("notify")},
		{"SIOCGIFBR", "ioctl", args{3, 0x8940}, all("notify")},
		{"SIOCSIFBR", "ioctl", args{3, 0x8941 | dirty}, all("notify")},
		{"SIOCBRDELBR", "ioctl", args{3, 0x89a1}, all("notify")},
		{"SIOCSIFVLAN", "ioctl", args{3, 0x8983}, all("notify")},
		{"BTRFS_IOC_SNAP_CREATE_V2", "ioctl", args{3, 0x50009417 | dirty}, all("notify")},
		{"BTRFS_IOC_SUBVOL_CREATE", "ioctl", args{3, 0x5000940e}, all("notify")},
		{"BTRFS_IOC_SUBVOL_SETFLAGS", "ioctl", args{3, 0x4008941a}, all("notify")},
		{"FICLONE", "ioctl", args{3, unix.FICLONE}, all("allow")},
		{"SIOCGIFINDEX", "ioctl", args{3, unix.SIOCGIFINDEX}, all("allow")},
		{"core limit", "setrlimit", args{unix.RLIMIT_CORE | dirty}, all("notify EINVAL")},
		{"another limit", "setrlimit", args{unix.RLIMIT_NOFILE}, all("allow")},
		{"new core limit", "prlimit64", args{0, unix.RLIMIT_CORE, 1 << 40}, all("notify EINVAL")},
		{"what the core limit is", "prlimit64", args{0, unix.RLIMIT_CORE, 0}, all("allow")},
		{"TIOCGWINSZ", "ioctl", args{0, unix.TIOCGWINSZ}, all("allow")},
		{"chmod", "fchmodat", args{3, 0, 0o755}, all("allow")},
		{"chmod setuid", "fchmodat", args{3, 0, 0o4755}, all("notify")},
		{"chmod setgid, dirty", "chmod", args{0, 0o2755 | dirty}, all("notify EPERM")},
		{"fchmodat2 setuid", "fchmodat2", args{3, 0, 0o6755}, all("notify")},
		{"open to read, garbage mode", "openat", args{3, 0, unix.O_RDONLY, 0o6777 | dirty}, all("allow")},
		{"open to create", "openat", args{3, 0, unix.O_WRONLY | unix.O_CREAT, 0o666}, all("allow")},
		{"open to create setuid", "openat", args{3, 0, unix.O_WRONLY | unix.O_CREAT, 0o4755}, all("notify")},
		{"unnamed setgid", "open", args{0, unix.O_RDWR | unix.O_TMPFILE, 0o2755}, all("notify EPERM")},
		{"directory, garbage mode", "open", args{0, unix.O_DIRECTORY, 0o6000}, all("allow")},
		{"creat setuid", "creat", args{0, 0o4755}, all("notify")},
		{"mkdir setgid", "mkdirat", args{3, 0, 0o2755}, all("notify EPERM")},
		{"lease", "fcntl", args{3, unix.F_SETLEASE | dirty, unix.F_RDLCK}, all("notify")},
		{"delegation", "fcntl", args{3, 1024 + 16, 0}, all("notify")},
		{"dnotify", "fcntl", args{3, unix.F_NOTIFY, 1}, all("notify")},
		{"open file description lock", "fcntl", args{3, unix.F_OFD_SETLK | dirty, 0}, all("errno EINVAL")},
		{"the same, waiting", "fcntl", args{3, unix.F_OFD_SETLKW, 0}, all("errno EINVAL")},
		{"asking for one", "fcntl", args{3, unix.F_OFD_GETLK, 0}, all("errno EINVAL")},
		{"record lock", "fcntl", args{3, unix.F_SETLK, 0}, all("allow")},
		{"a file thrown out of memory", "fadvise64", args{3, 0, 0, 4 | dirty}, all("errno EINVAL")},
		{"a file read ahead", "fadvise64", args{3, 0, 0, unix.FADV_WILLNEED}, all("allow")},
		{"own lease asked for", "fcntl", args{3, unix.F_GETLEASE, 0}, all("allow")},
		{"inotify", "inotify_init1", args{unix.IN_CLOEXEC}, [4]string{"allow", "allow", "notify ENOSYS", "notify ENOSYS"}},
		{"inotify of old", "inotify_init", args{}, [4]string{"allow", "allow", "notify ENOSYS", "notify ENOSYS"}},
		{"mkfifo", "mknodat", args{3, 0, unix.S_IFIFO | 0o600}, all("allow")},
		{"a device", "mknodat", args{3, 0, unix.S_IFCHR | 0o600, 0}, all("notify")},
		{"a file by mknod, no type", "mknod", args{0, 0o600}, all("notify")},
		{"setuid fifo", "mknod", args{0, unix.S_IFIFO | 0o4600}, all("notify")},
		{"openat2", "openat2", args{}, all("notify ENOSYS")},
		{"io_uring", "io_uring_setup", args{8}, all("notify")},
		{"mount", "mount", args{}, all("notify")},
		{"new mount API", "fsopen", args{}, all("notify")},
		{"ptrace", "ptrace", args{}, all("notify EPERM")},
		{"pidfd_getfd", "pidfd_getfd", args{}, all("notify")},
		{"bpf", "bpf", args{}, all("notify")},
		{"keyctl", "keyctl", args{}, all("notify")},
		{"by handle", "open_by_handle_at", args{}, all("notify")},
		{"own filter", "seccomp", args{1, 0}, all("notify ENOSYS")},
		{"own filter by prctl", "prctl", args{unix.PR_SET_SECCOMP, 2}, all("errno EINVAL")},
		{"thread name", "prctl", args{unix.PR_SET_NAME}, all("allow")},
		{"name of memory", "prctl", args{unix.PR_SET_VMA}, all("allow")},
		{"memory map", "prctl", args{unix.PR_SET_MM}, all("notify")},
		{"which personality", "personality", args{0xffffffff}, all("allow")},
		{"no randomisation", "personality", args{0x0040000}, all("notify EPERM")},
		{"trace pid 1", "ptrace", args{unix.PTRACE_ATTACH, 1}, all("notify")},
		{"trace pid 1, dirty", "ptrace", args{unix.PTRACE_SEIZE, 1 | dirty}, all("notify")},
		{"trace another", "ptrace", args{unix.PTRACE_SEIZE, 7}, all("notify EPERM")},
		{"read pid 1", "process_vm_readv", args{1 | dirty}, all("notify")},
		{"read another", "process_vm_readv", args{7}, all("notify EPERM")},
		{"dmesg", "syslog", args{3}, all("notify EPERM")},
		{"empty the kernel's log", "syslog", args{5}, all("notify")},
		{"ambient capabilities", "prctl", args{unix.PR_CAP_AMBIENT}, all("notify EPERM")},
		{"sock_diag", "socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}, [4]string{"notify EAFNOSUPPORT", "notify EAFNOSUPPORT", "notify EAFNOSUPPORT", "notify"}},
		{"own limits", "prlimit64", args{0, 7}, all("allow")},
		{"pid 1's limits", "prlimit64", args{1, 7}, all("notify")},
		{"affinity", "sched_setaffinity", args{0}, all("allow")},
		{"own scheduling policy", "sched_setscheduler", args{0}, all("errno EPERM")},
		{"another's scheduling policy", "sched_setscheduler", args{1}, all("notify EPERM")},
		{"another's affinity", "sched_setaffinity", args{1}, all("errno EPERM")},
		{"shared memory", "shmget", args{}, above3},
		{"xattr", "setxattr", args{}, above3},
		{"sync", "sync", args{}, above3},
		{"setuid", "setuid", args{}, above3},
		{"setgroups", "setgroups", args{}, all("notify")},
		{"read", "read", args{}, all("allow")},
		{"mmap w+x", "mmap", args{0, 4096, unix.PROT_WRITE | unix.PROT_EXEC}, all("allow")},
		{"close_range", "close_range", args{3, ^uint64(0)}, all("allow")},
		{"rseq", "rseq", args{}, all("allow")},
	} {
		for i, name := range runnable {
			p := builtinProfile(t, name)
			got := ""
			if r := p.Match(tc.name, tc.args); r >= 0 {
				got = strings.TrimSpace(string(p.Syscalls[r].Action) + " " + p.Syscalls[r].Errno)
			}
			if got != tc.want[i] {
				t.Errorf("%s: %s: %s%#x is %q, want %q", name, tc.what, tc.name, tc.args, got, tc.want[i])
			}
		}
	}
}

// TestM4WhatIsRefusedUnseen: what no record shows is a list that docs/seccomp.md tells. Nothing is refused as by an older kernel
// without a trace, and nobody is killed by the filter itself (M-4).
func TestM4WhatIsRefusedUnseen(t *testing.T) {
	unseen := map[string]string{
		"fcntl": "EINVAL", "fadvise64": "EINVAL", "mmap": "ENOMEM", "memfd_create": "ENOMEM", "shmget": "ENOMEM", "prctl": "EINVAL", "setsockopt": "EPERM",
		"socket": "EAFNOSUPPORT EPROTONOSUPPORT", "sched_setscheduler": "EPERM", "sched_setparam": "EPERM", "sched_setattr": "EPERM", "sched_setaffinity": "EPERM",
	}
	for _, r := range builtinRules {
		for _, name := range r.Names {
			if r.Action == ActionKill || r.Action == ActionErrno && !strings.Contains(unseen[name], r.Errno) {
				t.Errorf("%s is refused with %s %s: nobody sees it", name, r.Action, r.Errno)
			}
		}
	}
}

// TestLiveControlNeedsNotify: in no ring may process creation be allowed or quietly refused: a demotion takes it back and
// an elevation gives it (M-22).
func TestLiveControlNeedsNotify(t *testing.T) {
	for _, name := range runnable {
		p := builtinProfile(t, name)
		for _, r := range p.Syscalls {
			higher := slices.ContainsFunc([]string{"fork", "vfork"}, func(n string) bool { return slices.Contains(r.Names, n) })
			if higher && r.Action != ActionNotify {
				t.Errorf("%s: %v is %s", name, r.Names, r.Action)
			}
		}
	}
	r1, r3 := builtinProfile(t, "ring1"), builtinProfile(t, "ring3")
	for _, r := range r1.Syscalls {
		for _, n := range r.Names {
			if r.Action != ActionAllow || len(r.Args) > 0 {
				continue
			}
			if i := r3.Match(n, [6]uint64{}); i >= 0 && (r3.Syscalls[i].Action == ActionErrno || r3.Syscalls[i].Action == ActionKill) {
				t.Errorf("ring1 allows %s, ring 3 answers %s: an elevation could not give it", n, r3.Syscalls[i].Action)
			}
		}
	}
}

func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(Schema())))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("urn:agentrun:profile", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("urn:agentrun:profile")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// schemaAccepts validates YAML text as the schema sees it: through JSON.
func schemaAccepts(t testing.TB, s *jsonschema.Schema, src string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(src), &v); err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// TestSchemaAcceptsBuiltins: the published schema and the files that ship agree.
func TestSchemaAcceptsBuiltins(t *testing.T) {
	s := compiledSchema(t)
	for _, name := range order {
		src, _ := BuiltinYAML(name)
		if err := schemaAccepts(t, s, src); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchemaMatchesTypes: each struct's keys are its schema's properties, each enumeration its choices.
func TestSchemaMatchesTypes(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(Schema(), &root); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, typ reflect.Type, sch map[string]any)
	walk = func(path string, typ reflect.Type, sch map[string]any) {
		if sch["$ref"] != nil {
			return // a leaf of its own definition
		}
		if c, ok := reflect.Zero(typ).Interface().(interface{ choices() []string }); ok {
			if diff := cmp.Diff(fmt.Sprint(c.choices()), fmt.Sprint(sch["enum"])); diff != "" {
				t.Errorf("%s: choices (-type +schema):\n%s", path, diff)
			}
			return
		}
		switch typ.Kind() {
		case reflect.Slice:
			items, ok := sch["items"].(map[string]any)
			if sch["type"] != "array" || !ok {
				t.Fatalf("%s: schema has no array", path)
			}
			walk(path+"[]", typ.Elem(), items)
		case reflect.Struct:
			props, _ := sch["properties"].(map[string]any)
			if sch["additionalProperties"] != false {
				t.Errorf("%s: schema takes unknown keys", path)
			}
			var want []string
			for i := range typ.NumField() {
				want = append(want, keyOf(typ.Field(i)))
			}
			slices.Sort(want)
			got := slices.Sorted(mapKeys(props))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: keys (-type +schema):\n%s", path, diff)
			}
			if _, why := typ.FieldByName("Why"); why && !strings.Contains(fmt.Sprint(sch["required"]), "why") {
				t.Errorf("%s: schema does not require why", path)
			}
			for i := range typ.NumField() {
				if p, ok := props[keyOf(typ.Field(i))].(map[string]any); ok {
					walk(path+"."+keyOf(typ.Field(i)), typ.Field(i).Type, p)
				}
			}
		}
	}
	walk("", reflect.TypeFor[Profile](), root)

	limits := root["properties"].(map[string]any)["limits"].(map[string]any)["properties"].(map[string]any)
	r := SpecRanges()
	for key, want := range map[string]float64{ // the most is the node's word (M-3), which no schema knows
		"cpu": r.CPU.Min, "pids": float64(r.PIDs.Min), "open_files": float64(r.OpenFiles.Min), "max_steps": float64(r.MaxSteps.Min),
	} {
		p := limits[key].(map[string]any)
		if got := p["minimum"].(float64); got != want || p["maximum"] != nil {
			t.Errorf("limits.%s: schema has %v to %v, SpecRanges from %v", key, got, p["maximum"], want)
		}
	}
}

func mapKeys(m map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestBuiltinIsACopy: what a caller does to a profile stays with the caller.
func TestBuiltinIsACopy(t *testing.T) {
	p := builtinProfile(t, "ring3")
	p.Syscalls[0].Names[0] = "mount"
	p.Syscalls[0].Args[0].Value.N = 1
	p.Files.Etc[0].Path = "/etc/shadow"
	p.Environment.Set[0].Value = ""
	if q := builtinProfile(t, "ring3"); q.Syscalls[0].Names[0] != "clone" || q.Files.Etc[0].Path != "/etc/alternatives" ||
		q.Environment.Set[0].Value == "" || q.Syscalls[0].Args[0].Value.N == 1 {
		t.Error("a change to one copy shows in the next")
	}
}

// TestZeroRefuses: nothing that was forgotten allows anything.
func TestZeroRefuses(t *testing.T) {
	if ps := (Limits{}).Check(SpecRanges()); len(ps) != 11 {
		t.Errorf("zero Limits: %d problems, want one for each of 11 fields: %v", len(ps), ps)
	}
	good := builtinProfile(t, "ring3")
	if ps := good.Limits.Check(Ranges{}); len(ps) != 11 {
		t.Errorf("zero Ranges: %d problems, want 11: %v", len(ps), ps)
	}
	if i := (Profile{}).Match("read", [6]uint64{}); i != -1 {
		t.Errorf("zero Profile matches rule %d", i)
	}
	if (ArgCond{}).Holds([6]uint64{}) {
		t.Error("zero ArgCond holds")
	}
	n := 0
	checkResolved(Profile{}, SpecRanges(), func(string, string, ...any) { n++ })
	if n < 10 {
		t.Errorf("zero Profile: %d problems", n)
	}
}

// TestDigest: stable over loads, moved by every field, deaf to how a number is written.
func TestDigest(t *testing.T) {
	p := builtinProfile(t, "ring3")
	d := p.Digest()
	if q := builtinProfile(t, "ring3"); q.Digest() != d || len(d) != 64 {
		t.Errorf("two loads: %s and %s", q.Digest(), d)
	}
	q := p.Clone()
	q.Syscalls[0].Args[0].Value.Symbol = ""
	if q.Digest() != d {
		t.Error("the digest depends on how a value is written")
	}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		if x, ok := v.Addr().Interface().(*Value); ok {
			old := *x
			x.N++
			if p.Digest() == d {
				t.Errorf("%s does not count", path)
			}
			*x = old
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
			return
		case reflect.Slice:
			if v.Len() > 0 {
				walk(v.Index(v.Len()-1), path+"[]")
			}
			return
		}
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 0.001)
		}
		if p.Digest() == d {
			t.Errorf("%s does not count", path)
		}
		v.Set(old)
	}
	walk(reflect.ValueOf(&p).Elem(), "")
}

// TestBuiltinDigests: what was generated holds for a built-in profile as it is, and for no other (TestGenerated holds the sums themselves).
func TestBuiltinDigests(t *testing.T) {
	for _, name := range builtinNames() {
		p, _ := Builtin(name)
		if got, want := p.builtinDigest(), p.digest(); got != want {
			t.Errorf("%s: built in with %q, has %q", name, got, want)
		}
		p.Syscalls[len(p.Syscalls)-1].Errno += "x"
		if got := p.builtinDigest(); got != "" {
			t.Errorf("%s with another rule: %q", name, got)
		}
	}
}

// TestDigestIsKept: what was kept of one profile is no other's, whoever changes their copy afterwards.
func TestDigestIsKept(t *testing.T) {
	p := builtinProfile(t, "ring2")
	for i := range 3 * maxDigests {
		p.Description = strconv.Itoa(i % (maxDigests + 2))
		p.Syscalls[0].Why, p.Syscalls[0].Names[0] = strconv.Itoa(i%3), strconv.Itoa(i%2)
		if got, want := p.Digest(), p.digest(); got != want {
			t.Fatalf("%d: got %s, want %s", i, got, want)
		}
	}
	if n := len(digests.lately); n != maxDigests {
		t.Errorf("%d are kept, want %d", n, maxDigests)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			q := builtinProfile(t, "ring3")
			q.Ring = i
			for range 20 {
				if q.Digest() != q.digest() {
					t.Errorf("profile %d has another's digest", i)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLoadRing3(b *testing.B) {
	for b.Loop() {
		if _, err := Load(Sources{Dirs: []string{"/nonexistent/a", "/nonexistent/b"}}, "ring3"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkYAMLRing3 is what LoadRing3 would cost without the generated table.
func BenchmarkYAMLRing3(b *testing.B) {
	for b.Loop() {
		for _, name := range []string{"base", "ring3"} {
			src, _ := BuiltinYAML(name)
			decode("", []byte(src), &Profile{})
		}
	}
}

// BenchmarkDigestRing3 is of a profile that is new each time.
func BenchmarkDigestRing3(b *testing.B) {
	p, _ := Builtin("ring3")
	for b.Loop() {
		p.digest()
	}
}

// BenchmarkDigestAgain is of one that another run had.
func BenchmarkDigestAgain(b *testing.B) {
	p, _ := Builtin("ring3")
	for b.Loop() {
		p.Digest()
	}
}

// TestDocsListSymbols: docs/profiles.md names every symbol and errno, and every range end that is M-3's.
func TestDocsListSymbols(t *testing.T) {
	doc, err := os.ReadFile("../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(string(doc), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, s := range slices.Concat(symbols[:], errnos[:]) {
		if !slices.Contains(words, s.name) {
			t.Errorf("docs/profiles.md lacks %s", s.name)
		}
	}
	for _, want := range []string{"0.01 – 1 |", "4MiB – 1GiB | 256MiB | 512MiB | 1GiB", "1ms – 300s | 60s | 120s | 300s"} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("docs/profiles.md lacks %q", want)
		}
	}
}

// TestS15SafetySection: absent in every built-in, inherited by a child that says only a part, with its own reason.
func TestS15SafetySection(t *testing.T) {
	for _, name := range runnable {
		if s := builtinProfile(t, name).Safety; s != (Safety{}) || s.On() {
			t.Errorf("%s has a safety loop: %+v", name, s)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"watched": "name: watched\ndescription: x\nextends: ring3\nsafety: {mode: enforcing, tolerance: conservative, max_steps: 7, require_intent: true, why: untrusted}\n",
		"killed":  "name: killed\ndescription: x\nextends: watched\nsafety: {on_stop: kill, confirm: server, why: batch}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Load(Sources{Dirs: []string{dir}}, "killed")
	if err != nil {
		t.Fatal(err)
	}
	want := Safety{Mode: SafetyEnforcing, Tolerance: SafetyConservative, MaxSteps: 7, RequireIntent: true, OnStop: SafetyKill, Confirm: SafetyServer, Why: "batch"}
	if diff := cmp.Diff(want, p.Safety); diff != "" || !p.Safety.On() {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What was copied ahead is had once, by one, and is the profile as it is built in.
func TestAhead(t *testing.T) {
	want, _ := Builtin("ring3")
	Ahead()
	Ahead()
	first, _ := Builtin("ring3")
	first.Syscalls[0].Names[0] = "changed"
	Ahead()
	second, _ := Builtin("ring3")
	third, _ := Builtin("ring3")
	if !second.equal(&want) || !third.equal(&want) {
		t.Error("ring3 isn't as it was")
	}
	if second.Syscalls[0].Names[0] = "changed"; third.Syscalls[0].Names[0] == "changed" {
		t.Error("two have the same copy")
	}
	Ahead()
	other, ok := Builtin("strict")
	if !ok || other.Name != "strict" {
		t.Errorf("strict: %q, %v", other.Name, ok)
	}
	if _, ok := Builtin("none"); ok {
		t.Error("there is a profile none")
	}
}
