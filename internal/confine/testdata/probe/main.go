// SPDX-License-Identifier: Apache-2.0

// Command probe drops everything and then tries, from several threads, what must and what must not work. Each line of its
// output is "name: ok" or "name: error". It is built without cgo, as the gateway is.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/confine"
)

func main() {
	var o confine.Options
	var read, write, open string
	flag.IntVar(&o.UID, "uid", 0, "")
	flag.IntVar(&o.GID, "gid", 0, "")
	flag.StringVar(&read, "read", "", "")
	flag.StringVar(&write, "write", "", "")
	flag.StringVar(&open, "open", "", "a file kept open from before")
	verify := flag.Bool("verify-only", false, "")
	flag.Parse()
	o.Read, o.Write = strings.Fields(read), strings.Fields(write)
	if *verify {
		say("verify", confine.Verify(o))
		return
	}
	threads() // so that Drop has some to reach
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	start := time.Now()
	err := confine.Drop(o)
	fmt.Fprintln(os.Stderr, "drop took", time.Since(start))
	say("drop", err)
	if err != nil {
		os.Exit(1)
	}
	start = time.Now()
	say("verify", confine.Verify(o))
	fmt.Fprintln(os.Stderr, "verify took", time.Since(start))
	works(server, o)
	refused(o)
}

func say(name string, err error) {
	text := "ok"
	if err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			text = unix.ErrnoName(errno)
		}
	}
	fmt.Printf("%s: %s\n", name, text)
}

// threads makes goruntime start some: each goroutine holds one.
func threads() {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			goruntime.LockOSThread()
			defer goruntime.UnlockOSThread()
			time.Sleep(10 * time.Millisecond)
		})
	}
	wg.Wait()
}

func works(server *httptest.Server, o confine.Options) {
	client := server.Client()
	client.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS12
	for range 20 {
		resp, err := client.Post(server.URL, "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if err != nil {
			say("work https", err)
			return
		}
	}
	say("work https", nil)
	threads()
	say("work threads", nil)
	var keep [][]byte
	for range 100 {
		keep = append(keep, make([]byte, 1<<20))
	}
	_ = keep
	debug.FreeOSMemory()
	say("work memory", nil)
	_, err := net.DefaultResolver.LookupHost(context.Background(), "localhost")
	say("work hosts file", err)
	_, err = net.Dial("udp", "127.0.0.1:53")
	say("work udp", err)
	_, err = time.LoadLocation("Europe/Paris")
	say("work zones", err)
	for _, dir := range o.Write {
		say("work write", os.WriteFile(dir+"/new", []byte("x"), 0o600))
		say("work remove", os.Remove(dir+"/new"))
	}
	for _, name := range o.Read {
		_, err := os.ReadFile(name)
		say("work read", err)
	}
	a, b := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, a) }()
	_, err = b.Write([]byte("x"))
	say("work goroutines", err)
}

// refused is tried on four new threads at once: what holds must hold on all, also on those that began after Drop.
func refused(o confine.Options) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]string{}
	for range 4 {
		wg.Go(func() {
			goruntime.LockOSThread() // and never unlocked: the thread ends
			for name, err := range tries(o) {
				text := fmt.Sprint(err)
				if errno, ok := errors.AsType[syscall.Errno](err); ok {
					text = unix.ErrnoName(errno)
				}
				mu.Lock()
				if before, ok := seen[name]; ok && before != text {
					text = before + " and " + text
				}
				seen[name] = text
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for name, text := range seen {
		fmt.Printf("try %s: %s\n", name, text)
	}
}

func forkExec() error {
	_, err := syscall.ForkExec("/bin/true", nil, nil)
	return err
}

func tries(o confine.Options) map[string]error {
	call := func(number uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		} else if r != 0 {
			return fmt.Errorf("result %d", r)
		}
		return nil
	}
	bad := ^uintptr(0)
	out := map[string]error{
		"exec":              forkExec(),
		"fork":              call(unix.SYS_CLONE, uintptr(unix.SIGCHLD)),
		"clone newuser":     call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
		"clone thread ns":   call(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_SIGHAND|unix.CLONE_THREAD|unix.CLONE_NEWNET),
		"clone3":            call(unix.SYS_CLONE3),
		"setuid 0":          call(unix.SYS_SETUID, 0),
		"setgid 0":          call(unix.SYS_SETGID, 0),
		"capset":            call(unix.SYS_CAPSET),
		"unshare":           call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"setns":             call(unix.SYS_SETNS, bad),
		"mount":             call(unix.SYS_MOUNT),
		"umount2":           call(unix.SYS_UMOUNT2),
		"move_mount":        call(unix.SYS_MOVE_MOUNT),
		"open_tree":         call(unix.SYS_OPEN_TREE, bad),
		"fsopen":            call(unix.SYS_FSOPEN),
		"pivot_root":        call(unix.SYS_PIVOT_ROOT),
		"chroot":            call(unix.SYS_CHROOT),
		"ptrace":            call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(os.Getppid())),
		"process_vm_writev": call(unix.SYS_PROCESS_VM_WRITEV, 1),
		"pidfd_open":        call(unix.SYS_PIDFD_OPEN, 1),
		"pidfd_getfd":       call(unix.SYS_PIDFD_GETFD, bad),
		"bpf":               call(unix.SYS_BPF),
		"keyctl":            call(unix.SYS_KEYCTL),
		"add_key":           call(unix.SYS_ADD_KEY),
		"io_uring":          call(unix.SYS_IO_URING_SETUP, 1),
		"perf":              call(unix.SYS_PERF_EVENT_OPEN),
		"userfaultfd":       call(unix.SYS_USERFAULTFD),
		"handle":            call(unix.SYS_OPEN_BY_HANDLE_AT, bad),
		"memfd":             call(unix.SYS_MEMFD_CREATE),
		"personality":       call(unix.SYS_PERSONALITY, 0x0004000),
		"kexec":             call(unix.SYS_KEXEC_LOAD),
		"init_module":       call(unix.SYS_INIT_MODULE),
		"seccomp":           call(unix.SYS_SECCOMP, 1),
		"ioctl":             call(unix.SYS_IOCTL, 1, unix.TIOCSTI),
		"unknown number":    call(1000),
		"kill parent":       unix.Kill(os.Getppid(), 0),
		"bind":              call(unix.SYS_BIND, bad),
		"listen":            call(unix.SYS_LISTEN, bad),
		"raise a limit":     unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 0, Max: 0}, nil),
		"dumpable again":    call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1),
		"protect exec":      call(unix.SYS_MPROTECT, 0, 0, unix.PROT_EXEC),
	}
	maps.Copy(out, sockets())
	maps.Copy(out, files())
	for _, dir := range o.Write {
		out["exec bit"] = call(unix.SYS_MKNODAT, bad)
		out["escape by dots"] = open(dir+"/../escaped", unix.O_CREAT|unix.O_WRONLY)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		out["kernel tls"] = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls")
		_ = unix.Close(fd)
	}
	return out
}

func sockets() map[string]error {
	socket := func(family, kind, protocol int) error {
		_, err := unix.Socket(family, kind, protocol)
		return err
	}
	return map[string]error{
		"unix socket": socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"netlink":     socket(unix.AF_NETLINK, unix.SOCK_RAW, 0),
		"packet":      socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"vsock":       socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"alg":         socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"raw":         socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"ping":        socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		"mptcp":       socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
	}
}

func files() map[string]error {
	return map[string]error{
		"read shadow":      open("/etc/shadow", unix.O_RDONLY),
		"read passwd":      open("/etc/passwd", unix.O_RDONLY),
		"read own memory":  open("/proc/self/mem", unix.O_RDWR),
		"read own environ": open("/proc/self/environ", unix.O_RDONLY),
		"write hosts":      open("/etc/hosts", unix.O_WRONLY),
		"make in tmp":      open("/tmp/confine-probe", unix.O_CREAT|unix.O_WRONLY),
		"list root":        open("/", unix.O_RDONLY|unix.O_DIRECTORY),
	}
}

func open(name string, flags int) error {
	fd, err := unix.Open(name, flags, 0o600)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}
