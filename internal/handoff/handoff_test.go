// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// client is a program that begins as agentrun does.
var client = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "handoff")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "alone")
	out, err := exec.Command("gcc", "-std=gnu11", "-O2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
		"-o", program, filepath.Join("testdata", "alone.c")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) { // as under nohup(1): clients would ignore it, too
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	code := m.Run()
	if program, err := client(); err == nil {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// called is a client of the daemon in dir.
func called(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := client()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--run-dir", dir, "exec"}, args...)...)
	cmd.Env = []string{"A=1", "B=2=3", "EMPTY="}
	cmd.Dir = t.TempDir()
	return cmd
}

func listen(t *testing.T) (runDir string, l *Listener) {
	t.Helper()
	// Deeper than an address of a socket is long.
	runDir = filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	control := filepath.Join(runDir, "control")
	if err := os.MkdirAll(control, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(control)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return runDir, l
}

func hear(t *testing.T, c *Conn, signals chan<- syscall.Signal) {
	t.Helper()
	if err := c.Hear(func(s syscall.Signal) { signals <- s }, func() {}); err != nil {
		t.Fatal(err)
	}
}

func accept(t *testing.T, l *Listener) *Conn {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Receive(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	return c
}

// What the client in C sends is what Decode reads, byte for byte as encode.
func TestHandOver(t *testing.T) {
	runDir, l := listen(t)
	cmd := called(t, runDir, "--", "x", "", strings.Repeat("long", 100<<10/4), strings.Repeat("more", 100<<10/4), strings.Repeat("most", 100<<10/4), "ü\n")
	cmd.Stdin = strings.NewReader("input")
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := accept(t, l)
	want := Request{Build: "a/b/c/d ", Dir: cmd.Dir, Args: cmd.Args, Env: cmd.Env}
	if diff := cmp.Diff(want, c.Request); diff != "" {
		t.Errorf("request (-want +got):\n%.2000s", diff)
	}
	if err := c.Same(); err != nil {
		t.Errorf("the same host: %v", err)
	}
	if in, err := io.ReadAll(c.Stdin); err != nil || string(in) != "input" {
		t.Errorf("stdin: got %q, %v", in, err)
	}
	fmt.Fprint(c.Stdout, "output")
	fmt.Fprint(c.Stderr, "complaint")
	heard := make(chan syscall.Signal, 8)
	hear(t, c, heard)
	for _, s := range signals {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; got != s {
			t.Errorf("signal: got %v, want %v", got, s)
		}
	}
	c.Release()
	if err := c.Exit(42); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 42 || out.String() != "output" || complaints.String() != "complaint" {
		t.Errorf("got %d %q %q", code, out.String(), complaints.String())
	}
}

// A client that isn't taken goes on by itself; one whose daemon dies says so.
func TestDeclinedAndGone(t *testing.T) {
	runDir, l := listen(t)
	for _, tt := range []struct {
		do   func(*Conn)
		code int
		out  string
	}{
		{func(c *Conn) { _ = c.Decline("another version") }, 7, "alone another version"},
		{func(c *Conn) { _ = c.Close() }, 125, ""},
	} {
		cmd := called(t, runDir, "x")
		var out, complaint strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &complaint
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c := accept(t, l)
		tt.do(c)
		c.Close()
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || out.String() != tt.out {
			t.Errorf("got %d %q, want %d %q", code, out.String(), tt.code, tt.out)
		}
		if gone := strings.Contains(complaint.String(), "the daemon is gone"); gone != (tt.code == 125) {
			t.Errorf("complaint: %q", complaint.String())
		}
	}
	l.Close()
	if out, err := called(t, runDir, "x").Output(); string(out) != "alone " || err == nil {
		t.Errorf("nobody listens: got %q, %v", out, err)
	}
}

// What is typed while a caller is stopped is for the shell that has the terminal then.
func TestTerminalOfAStoppedCaller(t *testing.T) {
	runDir, l := listen(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd := called(t, runDir, "x")
	stdin, err := os.OpenFile(slave.Name(), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	cmd.Stdin, cmd.SysProcAttr = stdin, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := accept(t, l)
	looked := make(chan bool, 1000)
	away := c.Stdin.away
	c.Stdin.away = func() bool { is := away(); looked <- is; return is }
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &ws, unix.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%v, %v", ws, err)
	}
	read := make(chan string)
	go func() {
		b := make([]byte, 64)
		n, _ := c.Stdin.Read(b)
		read <- string(b[:n])
	}()
	if _, err := master.WriteString("password\n"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case got := <-read:
			t.Fatalf("the daemon reads %q", got)
		case is := <-looked:
			if !is {
				t.Error("the caller is taken for one that has the terminal")
			}
		}
	}
	b := make([]byte, 64)
	if n, err := slave.Read(b); string(b[:n]) != "password\n" {
		t.Errorf("the shell reads %q, %v", b[:n], err)
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := master.WriteString("answer\n"); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "answer\n" {
		t.Errorf("the daemon reads %q", got)
	}
	if err := c.Exit(0); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// A caller is heard in pieces, and gone once: when he hangs up, or says what no caller of ours does. One who has been answered isn't heard any more.
func TestHear(t *testing.T) {
	frame := func(kind uint32, s syscall.Signal) []byte {
		return order.AppendUint32(order.AppendUint32(nil, kind), uint32(s)) //nolint:gosec // a signal
	}
	term := frame(kindSignal, unix.SIGTERM)
	for _, tt := range []struct {
		name  string
		say   [][]byte
		heard int
		stays bool
	}{
		{name: "hangs up"},
		{name: "a signal in pieces", say: [][]byte{term[:3], term[3:7], slices.Concat(term[7:], term[:5])}, heard: 1},
		{name: "more at once", say: [][]byte{slices.Concat(term, term, term)}, heard: 3},
		{name: "another kind", say: [][]byte{term, frame(kindRaw, unix.SIGTERM)}, heard: 1, stays: true},
		{name: "a signal that is none of his", say: [][]byte{frame(kindSignal, unix.SIGKILL)}, stays: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			peer := os.NewFile(uintptr(fds[1]), "caller")
			defer peer.Close()
			c := connOf(t, fds[0])
			defer c.Close()
			heard, gone := make(chan syscall.Signal, 8), make(chan struct{})
			if err := c.Hear(func(s syscall.Signal) { heard <- s }, func() { close(gone) }); err != nil {
				t.Fatal(err)
			}
			for _, b := range tt.say {
				if _, err := peer.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			if !tt.stays {
				peer.Close()
			}
			<-gone
			if len(heard) != tt.heard {
				t.Errorf("%d signals heard, want %d", len(heard), tt.heard)
			}
		})
	}
	t.Run("answered", func(t *testing.T) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		peer := os.NewFile(uintptr(fds[1]), "caller")
		defer peer.Close()
		c, other := connOf(t, fds[0]), make(chan struct{})
		defer c.Close()
		if err := c.Hear(func(syscall.Signal) { t.Error("heard") }, func() { t.Error("gone") }); err != nil {
			t.Fatal(err)
		}
		if err := c.Exit(0); err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Write(term); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		// Whoever comes later is heard later.
		if fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		late := connOf(t, fds[0])
		defer late.Close()
		if err := late.Hear(func(syscall.Signal) {}, func() { close(other) }); err != nil {
			t.Fatal(err)
		}
		unix.Close(fds[1])
		<-other
	})
}

// A signal that comes while the daemon looks at a request that it then declines ends the caller, as it would have alone.
func TestSignalBeforeADecline(t *testing.T) {
	runDir, l := listen(t)
	cmd := called(t, runDir, "x")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := accept(t, l)
	heard := make(chan syscall.Signal, 1)
	hear(t, c, heard)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-heard
	if err := c.Decline("another version"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != unix.SIGTERM {
		t.Errorf("it ended with %v, want SIGTERM", cmd.ProcessState)
	}
}

// A daemon that ends, or has no descriptors left, before it has read a request whole has begun nothing: the caller goes on alone.
func TestRequestThatWasNotRead(t *testing.T) {
	runDir, l := listen(t)
	cmd := called(t, runDir, "x")
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := c.receive(make([]byte, 8), nil, time.Now().Add(10*time.Second)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 || out.String() != "alone it has not read the request" {
		t.Errorf("got %d %q %q", code, out.String(), complaint.String())
	}
}

// What the caller was started to ignore, as by nohup(1), is no signal for its run.
func TestIgnoredSignals(t *testing.T) {
	runDir, l := listen(t)
	cmd := called(t, runDir, "x")
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP INT; exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := accept(t, l)
	heard := make(chan syscall.Signal, 8)
	hear(t, c, heard)
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-heard; got != unix.SIGTERM {
		t.Errorf("got %v, want SIGTERM alone", got)
	}
	if err := c.Exit(0); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// Nobody is asked where the caller, or its shell, says so.
func TestNotHandedOver(t *testing.T) {
	runDir, _ := listen(t) // it would accept, and nobody answer
	for _, args := range [][]string{{"--no-daemon", "x"}, {"--r", "--generate-bash-completion"}} {
		if out, _ := called(t, runDir, args...).Output(); string(out) != "alone " {
			t.Errorf("%v: got %q", args, out)
		}
	}
	cmd := called(t, runDir, "x")
	cmd.Env = append(cmd.Env, "AGENTRUN_NO_DAEMON=1")
	if out, _ := cmd.Output(); string(out) != "alone " {
		t.Errorf("AGENTRUN_NO_DAEMON: got %q", out)
	}
}

// The uids of sandboxes ask for nothing, whoever the daemon is.
func TestOnlyRootAndWeMayAsk(t *testing.T) {
	for _, tt := range []struct {
		peer, own uint32
		want      bool
	}{{0, 0, true}, {1000, 1000, true}, {0, 1000, true}, {1000, 0, false}, {1, 1000, false}, {0x70000000 + 1000, 0, false}, {0x70000000 + 1000, 0x70000000 + 1000, false}, {^uint32(0), 0, false}} {
		if got := allowed(tt.peer, tt.own); got != tt.want {
			t.Errorf("uid %d asks %d: got %v, want %v", tt.peer, tt.own, got, tt.want)
		}
	}
}

func TestHostileRequests(t *testing.T) {
	pair := func() (ours *Conn, theirs int) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return connOf(t, p[0]), p[1]
	}
	head := func(magic, size uint32) []byte { return order.AppendUint32(order.AppendUint32(nil, magic), size) }
	good := Request{Build: "b", Dir: "/", Args: []string{"a"}}.encode()
	for name, send := range map[string]func(fd int) error{
		"nothing": func(int) error { return nil },
		"no descriptors": func(fd int) error {
			return unix.Sendmsg(fd, append(head(magic, uint32(len(good))), good...), nil, nil, 0)
		},
		"too few descriptors": func(fd int) error {
			return unix.Sendmsg(fd, append(head(magic, uint32(len(good))), good...), unix.UnixRights(0, 1), nil, 0)
		},
		"too many descriptors": func(fd int) error {
			return unix.Sendmsg(fd, append(head(magic, uint32(len(good))), good...), unix.UnixRights(0, 0, 0, 0, 0, 0, 0, 0), nil, 0)
		},
		"another magic": func(fd int) error {
			return unix.Sendmsg(fd, append(head(1, uint32(len(good))), good...), unix.UnixRights(0, 0, 0, 0), nil, 0)
		},
		"too large": func(fd int) error {
			return unix.Sendmsg(fd, head(magic, maxBody+1), unix.UnixRights(0, 0, 0, 0), nil, 0)
		},
		"cut short": func(fd int) error {
			return unix.Sendmsg(fd, append(head(magic, uint32(len(good))+1), good...), unix.UnixRights(0, 0, 0, 0), nil, 0)
		},
	} {
		before := openFDs(t)
		c, theirs := pair()
		if err := send(theirs); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		unix.Close(theirs)
		if err := c.Receive(10 * time.Second); err == nil {
			t.Errorf("%s: taken", name)
		}
		c.Close()
		if after := openFDs(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

// What a caller's run reads and writes needs no descriptor any more: without one its output was lost, as if nobody read it.
func TestStreamsWithoutDescriptors(t *testing.T) {
	runDir, l := listen(t)
	cmd := called(t, runDir, "x")
	cmd.Stdin = strings.NewReader("input")
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := accept(t, l)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 3, Max: was.Max} // ppoll(2) takes no more files than that
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, rerr := c.Stdin.Read(b)
	_, werr := c.Stdout.Write([]byte("output"))
	_, eerr := c.Stderr.Write([]byte("complaint"))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	c.Release()
	if err := c.Exit(0); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if string(b[:n]) != "input" || out.String() != "output" || complaints.String() != "complaint" {
		t.Errorf("read %q, %v; written %q, %v and %q, %v", b[:n], rerr, out.String(), werr, complaints.String(), eerr)
	}
}

func TestStreamEndsAtStop(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	in, inErr := NewStream(int(r.Fd()))
	out, outErr := NewStream(int(w.Fd()))
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	read, written := make(chan error, 1), make(chan error, 1)
	go func() { _, err := in.Read(make([]byte, 1)); read <- err }()
	in.Stop(unix.EPIPE)
	if err := <-read; !errors.Is(err, io.EOF) {
		t.Errorf("read: got %v, want EOF", err)
	}
	go func() { _, err := out.Write(make([]byte, 1<<20)); written <- err }() // more than a pipe holds
	out.Stop(unix.ECANCELED)
	out.Stop(unix.EPIPE)
	if err := <-written; !errors.Is(err, unix.ECANCELED) {
		t.Errorf("write: got %v, want ECANCELED", err)
	}
	in.wait()
	out.wait()
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read after Stop: got %v", err)
	}
	// The caller's file is as it was: blocking.
	if flags, err := unix.FcntlInt(r.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Request{Build: "b", Dir: "/d", Args: []string{"a", ""}, Env: []string{"A=1"}}.encode())
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		// One request has one spelling: who reads the bytes and who reads the fields read the same.
		if again := r.encode(); !bytes.Equal(again, b) {
			t.Errorf("%x is read as %+v, which is %x", b, r, again)
		}
	})
}

// What a caller means is what the daemon reads, or it is refused for what can be said without reading bytes.
func FuzzRequest(f *testing.F) {
	f.Add("id", "/work", "agentrun\nexec\n--\nls", "A=1\nB=")
	f.Add("", "relative", "", "\n")
	f.Add("a\x00", "/\x00", "a\x00b", "")
	f.Fuzz(func(t *testing.T, build, dir, args, env string) {
		want := Request{Build: build, Dir: dir, Args: strings.Split(args, "\n"), Env: strings.Split(env, "\n")}
		if args == "" {
			want.Args = []string{}
		}
		if env == "" {
			want.Env = []string{}
		}
		b := want.encode()
		good := len(want.Args) > 0 && strings.HasPrefix(dir, "/") && !strings.Contains(dir+args+env, "\x00") && len(b) <= maxBody
		got, err := Decode(b)
		if (err == nil) != good {
			t.Fatalf("%+v: %v, want accepted: %v", want, err, good)
		}
		if diff := cmp.Diff(want, got); good && diff != "" {
			t.Errorf("(-meant +read):\n%s", diff)
		}
		if good && len(b) > 0 {
			if _, err := Decode(b[:len(b)-1]); err == nil {
				t.Error("a cut request is accepted")
			}
			if _, err := Decode(append(b, 0)); err == nil {
				t.Error("a request with a byte behind it is accepted")
			}
		}
	})
}

// encode is what early.c does; tests hold the two together.
func (r Request) encode() []byte {
	b := order.AppendUint32(nil, uint32(len(r.Args)))
	b = order.AppendUint32(b, uint32(len(r.Env)))
	for _, list := range [][]string{{r.Build, r.Dir}, r.Args, r.Env} {
		for _, s := range list {
			b = order.AppendUint32(b, uint32(len(s)))
			b = append(b, s...)
		}
	}
	return b
}
