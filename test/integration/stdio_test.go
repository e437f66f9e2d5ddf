// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// What goes in and out: environment, streams, terminal. M-1, M-3; THREATS
// "kernel surface" (the agent's tty).

func TestEnvironmentIsClean(t *testing.T) {
	needSandbox(t)
	o := opts{env: []string{"SECRET_TOKEN=hunter2", "LD_PRELOAD=/tmp/x.so", "AGENTRUN_SECRET=x", "PASSED=yes", "NOT_PASSED=no", "BASH_ENV=/tmp/x"},
		flags: []string{"--env", "GIVEN=a=b c", "--env", "EMPTY=", "--env", "TWICE=1", "--env", "TWICE=2", "--env", "LIST=a,b", "--env", "PAD= x ", "--env-pass", "PASSED", "--env-pass", "UNSET_HERE"}}
	got := strings.Split(observe(t, o, "env"), "|")
	have := map[string]string{}
	for _, kv := range got {
		k, v, _ := strings.Cut(kv, "=")
		have[k] = v
	}
	for k, want := range map[string]string{"GIVEN": "a=b c", "EMPTY": "", "TWICE": "2", "LIST": "a,b", "PAD": " x ", "PASSED": "yes", "HOME": "/tmp/sandbox/home", "TMPDIR": "/tmp/sandbox"} {
		if v, ok := have[k]; !ok || v != want {
			t.Errorf("%s: got %q (set: %v), want %q", k, v, ok, want)
		}
	}
	if !strings.Contains(have["PATH"], "/usr/bin") {
		t.Errorf("PATH: got %q", have["PATH"])
	}
	for k, v := range have {
		switch {
		case k == "AGENTRUN_MCP_URL", k == "AGENTRUN_TOOLS_URL":
			// ours, for the agent
		case k == "SECRET_TOKEN", k == "LD_PRELOAD", k == "NOT_PASSED", k == "UNSET_HERE", k == "BASH_ENV",
			strings.HasPrefix(k, "AGENTRUN_"), strings.HasPrefix(k, "_LIBCONTAINER"), strings.HasPrefix(k, "GO"):
			t.Errorf("%s=%s came through", k, v)
		}
	}
}

func TestArguments(t *testing.T) {
	needSandbox(t)
	args := []string{"a b", "", "--flag", "-t", "--", "é\n\t", "$HOME", "*", strings.Repeat("x", 10000)}
	r := run(t, opts{}, append([]string{"/probe", "argv"}, args...)...)
	want := "value=" + strings.Join(args, "|")
	if i := strings.LastIndex(r.stdout, ": value="); i < 0 || strings.TrimSuffix(r.stdout[i+2:], "\n") != want {
		t.Errorf("arguments came through as %.200q", r.stdout)
	}
}

func TestStdin(t *testing.T) {
	needSandbox(t)
	data := make([]byte, 3<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for _, profile := range []string{"ring2", "ring3"} {
		r := run(t, opts{profile: profile, stdin: bytes.NewReader(data)}, "/probe", "echo")
		r.want(t, 0, "exited")
		if r.stdout != string(data) {
			t.Errorf("%s: %d bytes in, %d bytes out, or other ones", profile, len(data), len(r.stdout))
		}
	}
	// Empty and closed.
	run(t, opts{stdin: strings.NewReader("")}, "/probe", "wait").want(t, 0, "exited")
	run(t, opts{}, "/probe", "wait").want(t, 0, "exited")
}

// An agent that doesn't read its input, and one that ends early, hang nobody.
func TestStdinNotRead(t *testing.T) {
	needSandbox(t)
	run(t, opts{stdin: io.LimitReader(zeros{}, 64<<20)}, "/probe", "exit", "5").want(t, 5, "exited")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestStreamsAreApart(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{}, "/probe", "stderr", "on-stderr")
	if !strings.Contains(r.stderr, "on-stderr") || strings.Contains(r.stdout, "on-stderr\n") {
		t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
	}
}

// M-6: what a full disk kept from the caller is told, in the exit code too, whether the agent wrote on or not.
func TestOutputThatIsLost(t *testing.T) {
	needSandbox(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, tt := range []struct{ script, state string }{
		{"echo all of it", "failed"}, {"echo a; while echo b; do :; done", "failed"}, {"true", "exited"}, {"echo a >&2", "exited"},
	} {
		c := prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway"}}, "sh", "-c", tt.script)
		c.Stdout = full
		code := 0
		var exit *exec.ExitError
		if err := c.Run(); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		told := strings.Contains(c.errOut.String(), "no space left on device")
		if want := tt.state == "failed"; (code == 125) != want || told != want {
			t.Errorf("%s: exit %d\n%s", tt.script, code, c.errOut.String())
		}
	}
}

// Nor is what a verb prints cut short without a word: a part of a diff is reviewed as the whole.
func TestVerbsSayWhatIsLost(t *testing.T) {
	p := newPlace(t)
	need(t, hostcaps.OverlayIDMapped)
	ws := workspace(t)
	owned(t, ws)
	p.must("exec", "--ring", "2", "--no-gateway", "--workspace", ws, "--workspace-mode", "overlay", "--", "sh", "-c", "echo new > new")
	p.must("session", "create", "s")
	p.must("session", "join", "s", "--agent", "a")
	p.must("session", "put", "s", "k", "v", "--agent", "a")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	id := strings.TrimSpace(p.must("ps", "--all", "-q").stdout)
	for _, args := range [][]string{
		{"diff", id}, {"diff", "--stat", id}, {"diff", "--json", id}, {"session", "get", "s", "k", "--agent", "a"}, {"doctor"}, {"safety", "check", "rm x"},
		{"audit", "export"}, {"audit", "show"}, {"audit", "verify"}, {"history"},
	} {
		var told bytes.Buffer
		cmd := exec.CommandContext(t.Context(), agentrun, append([]string{"--state-dir", p.state, "--run-dir", p.run}, args...)...)
		cmd.Stdout, cmd.Stderr = full, &told
		if err := cmd.Run(); err == nil || !strings.Contains(told.String(), "no space left on device") {
			t.Errorf("%q: %v\n%s", args, err, told.String())
		}
	}
}

// The reader of stdout goes away: the agent gets EPIPE or is ended, agentrun
// ends too.
// THREATS "runtime takeover": what the caller has left open isn't the gateway's, which reads what the agent writes.
func TestGatewayHasNothingOfTheCallers(t *testing.T) {
	needSandbox(t)
	needProgram(t, "bash")
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "x", 0o600)
	f, err := os.Open(secret)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := prepare(t, opts{profile: "ring2"}, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7600; echo ready; exec sleep 1000")
	for range 80 { // more than the gateway has of its own, which lie on them
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	c.startUntil(t, "ready")
	var gateway string
	eventually(t, 10*time.Second, "there is a gateway", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, at := range all {
			b, _ := os.ReadFile(at)
			if f := strings.Fields(string(b)); len(f) > 3 && f[1] == "(agentrun-gatewa)" && f[3] == strconv.Itoa(c.Process.Pid) {
				gateway = filepath.Dir(at)
			}
		}
		return gateway != ""
	})
	fds, err := os.ReadDir(gateway + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(gateway + "/fd/" + fd.Name()); to == secret {
			t.Errorf("descriptor %s is the caller's", fd.Name())
		}
	}
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.finish(t).want(t, 143, "signaled")
}

// A signal that the caller was started to ignore, as by nohup(1), isn't the agent's; and the agent ignores none of its own.
func TestIgnoredSignals(t *testing.T) {
	needSandbox(t)
	c := prepare(t, opts{profile: "ring2"}, "/usr/bin/sh", "-c", "trap 'exit 9' TERM; grep SigIgn /proc/self/status; echo ready; while :; do sleep 0.05; done")
	c.Args = append([]string{"sh", "-c", `trap "" HUP INT TSTP TTIN; exec "$@"`, "sh", c.Path}, c.Args[1:]...)
	c.Path = "/bin/sh"
	c.startUntil(t, "ready")
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	r := c.finish(t)
	r.want(t, 9, "exited")
	if !strings.Contains(r.stdout, "SigIgn:\t0000000000000000\n") {
		t.Errorf("ignored inside: %s", r.stdout)
	}
}

func TestReaderGoesAway(t *testing.T) {
	needSandbox(t)
	c := prepare(t, opts{profile: "ring2"}, "/probe", "output", "30000000")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	r.Read(make([]byte, 1))
	r.Close()
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Duration(slow * float64(20*time.Second))):
		t.Error("agentrun hangs when its reader is gone")
		c.cancel()
		<-done
	}
	// Its supervisor must not die of SIGPIPE: folder, cgroup and an open end in the audit would stay.
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signaled() {
		t.Errorf("agentrun: %v", c.ProcessState)
	}
	if left, _ := filepath.Glob(filepath.Join(runDir, "sandboxes", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	noAgents(t)
}

// A child that keeps the output open after the agent's end must not keep the
// run alive: everything dies with the agent.
func TestBackgroundChildDoesNotHoldTheRun(t *testing.T) {
	needSandbox(t)
	needProgram(t, "bash")
	r := run(t, opts{profile: "ring2"}, "bash", "-c", "sleep 1000 & echo started")
	r.want(t, 0, "exited")
	if r.wall > time.Duration(slow*float64(5*time.Second)) || !strings.Contains(r.stdout, "started") {
		t.Errorf("took %v, said %q", r.wall, r.stdout)
	}
	noAgents(t)
}

// terminal is a pty whose slave is agentrun's own terminal.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	seen   chan []byte
	all    []byte
}

func openTerminal(t *testing.T, cols, rows uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Through Fd() the file would become blocking: a read could not be ended.
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	raw.Control(func(fd uintptr) {
		unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	})
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: master, slave: slave, seen: make(chan []byte, 1024)}
	term.resize(cols, rows)
	t.Cleanup(func() { master.Close(); slave.Close() })
	go func() {
		defer close(term.seen)
		for {
			b := make([]byte, 4096)
			n, err := master.Read(b)
			if n > 0 {
				term.seen <- b[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (term *terminal) resize(cols, rows uint16) {
	raw, _ := term.master.SyscallConn()
	raw.Control(func(fd uintptr) {
		unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
	})
}

func (term *terminal) modes() unix.Termios {
	m, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *m
}

// until reads what the terminal shows up to a word, from where the last call
// ended.
func (term *terminal) until(word string) string {
	term.t.Helper()
	limit := time.After(time.Duration(slow * float64(20*time.Second)))
	for {
		if i := bytes.Index(term.all, []byte(word)); i >= 0 {
			got := string(term.all[:i+len(word)])
			term.all = term.all[i+len(word):]
			return got
		}
		select {
		case b, ok := <-term.seen:
			if !ok {
				term.t.Fatalf("terminal closed before %q; shown: %q", word, term.all)
			}
			term.all = append(term.all, b...)
		case <-limit:
			term.t.Fatalf("no %q on the terminal; shown: %q", word, term.all)
		}
	}
}

func (term *terminal) type_(keys string) { term.master.WriteString(keys) }

func (term *terminal) run(o opts, argv ...string) *call {
	term.t.Helper()
	o.flags = append(o.flags, "-t")
	return term.begin(prepare(term.t, o, argv...))
}

func (term *terminal) begin(c *call) *call {
	term.t.Helper()
	c.Stdin, c.Stdout, c.Stderr = term.slave, term.slave, term.slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	c.started = time.Now()
	if err := c.Start(); err != nil {
		term.t.Fatal(err)
	}
	return c
}

func TestTerminal(t *testing.T) {
	needSandbox(t)
	for _, profile := range []string{"ring2", "ring3"} {
		t.Run(profile, func(t *testing.T) {
			term := openTerminal(t, 91, 33)
			before := term.modes()
			c := term.run(opts{profile: profile}, "/probe", "tty", ",", "fds")
			shown := term.until("fds: value=")
			if !strings.Contains(shown, "91x33 111 /dev/pts/0 fg=1") {
				t.Errorf("got %q, want a terminal of its own with 91x33, in the foreground", shown)
			}
			fds := term.until("\n")
			if strings.Count(fds, "/dev/pts/0") != 3 || strings.Count(fds, "->") != 3 {
				t.Errorf("descriptors: %s, want three to the sandbox's own pts", fds)
			}
			c.finish(t).want(t, 0, "exited")
			if strings.Contains(shown+fds, "\r\r") {
				t.Errorf("line ends are translated twice, by both terminals: %q", shown)
			}
			if after := term.modes(); after != before {
				t.Error("the caller's terminal is not as it was before")
			}
		})
	}
}

// A run ends with its processes, though the agent has given its terminal away, as to another run by a socket in a workspace that both write.
func TestTerminalGivenAway(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	ws := workspace(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	path := filepath.Join(ws, "taker")
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), os.Chown(path, owner, owner), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	term := openTerminal(t, 80, 24)
	c := term.run(opts{profile: "ring2", flags: []string{"--workspace", ws}}, "/usr/bin/python3", "-c", `import array, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect("/workspace/taker")
s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1]))])
print("given", "away")`)
	c.finish(t).want(t, 0, "exited") // the terminal waits in the socket
	term.until("given away")
	b, control := make([]byte, 8), make([]byte, 64)
	if _, n, _, _, err := unix.Recvmsg(fd, b, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC); err != nil || n == 0 {
		t.Errorf("what was given: %d bytes, %v", n, err)
	}
}

func TestTerminalSizeFollows(t *testing.T) {
	needSandbox(t)
	term := openTerminal(t, 80, 24)
	c := term.run(opts{profile: "ring2"}, "/probe", "winch")
	term.until("size 80x24")
	term.resize(120, 50)
	term.until("size 120x50")
	c.finish(t).want(t, 0, "exited")
}

// Ctrl-C and Ctrl-\ act on the agent, not on agentrun.
func TestTerminalKeys(t *testing.T) {
	needSandbox(t)
	for key, sig := range map[string]unix.Signal{"\x03": unix.SIGINT, "\x1c": unix.SIGQUIT} {
		term := openTerminal(t, 80, 24)
		c := term.run(opts{profile: "ring3"}, "/probe", "trap")
		term.until("ready")
		term.type_(key)
		c.finish(t).want(t, 40+int(sig), "exited")
	}
}

// A program that is killed on a full screen leaves the terminal behind as it was: what it switched and didn't switch back is set back,
// before the next line is printed, and nothing else is.
func TestTerminalIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	for name, flags := range map[string][]string{"killed": nil, "timed out": {"--timeout", "3s"}} {
		term := openTerminal(t, 80, 24)
		before := term.modes()
		c := term.run(opts{profile: "ring2", flags: flags}, "/bin/sh", "-c",
			`printf '\033[?1049h\033[?1003;1006h\033[?2004h\033[?1004h\033[?25l\033[>1uall of this\033[?1004l\033[?25h\033[?2'; printf '5lready'; sleep 1000`)
		term.until("ready")
		if flags == nil {
			c.Process.Signal(unix.SIGTERM)
		}
		if got, want := term.until("\x1b[?25h"), "\x1b[<1u\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1049l\x1b[?25h"; !strings.HasSuffix(got, want) || strings.Contains(got, "agentrun:") {
			t.Errorf("%s: got %q, want it to end with %q, before any line of ours", name, got, want)
		}
		c.Wait()
		if after := term.modes(); after != before {
			t.Errorf("%s: the terminal's line settings are not as before", name)
		}
	}
}

// A caller whose run the daemon has puts its terminal into raw mode and back by itself, without libc.
func TestTerminalByDaemon(t *testing.T) {
	needSandbox(t)
	n := startDaemon(t)
	for key, sig := range map[string]unix.Signal{"\x03": unix.SIGINT, "\x1c": unix.SIGQUIT} {
		term := openTerminal(t, 91, 33)
		before := term.modes()
		c := term.begin(n.prepare(t, opts{profile: "ring3", flags: []string{"-t"}}, "/probe", "tty", ",", "trap"))
		shown := term.until("ready")
		if !strings.Contains(shown, "91x33 111 /dev/pts/0 fg=1") || strings.Contains(shown, "\r\r") {
			t.Errorf("got %q, want a terminal of its own with 91x33, in the foreground", shown)
		}
		// The daemon asks the caller for it and waits for no answer: what the agent prints may be there first.
		eventually(t, 10*time.Second, "the caller's terminal is raw", func() bool { return term.modes() != before })
		term.type_(key)
		c.finish(t).want(t, 40+int(sig), "exited")
		if after := term.modes(); after != before {
			t.Error("the caller's terminal is not as it was before")
		}
	}
	if got := n.said("carried out"); got != 2 {
		t.Errorf("the daemon carried out %d, want 2", got)
	}
	n.drain(t)
}

// A run with a terminal whose launch fails takes nobody's run along: the daemon says why and goes on.
func TestTerminalThatFailsByDaemon(t *testing.T) {
	needSandbox(t)
	n := startDaemon(t)
	shut := workspace(t)
	if err := os.Mkdir(filepath.Join(shut, "shut"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := n.prepare(t, opts{profile: "ring2", flags: []string{"--workspace", workspace(t)}}, "/probe", "live")
	p := place{t, n.run, n.state}
	a := p.begin("other", other)
	term := openTerminal(t, 80, 24)
	before := term.modes()
	term.begin(n.prepare(t, opts{profile: "ring2", flags: []string{"-t", "--ro-bind", shut + ":/opt", "--cwd", "/opt/shut"}}, "/probe", "ok"))
	if shown := term.until("permission denied"); !strings.Contains(shown, "enter the working directory") {
		t.Errorf("got %q", shown)
	}
	if after := term.modes(); after != before {
		t.Error("the caller's terminal is not as it was before")
	}
	a.expect("ok", "fork")
	a.quit()
	n.drain(t)
}

// Pushing input into a terminal: the agent's own is as closed as the caller's
// is far (CVE-2016-7545, CVE-2019-10063 by the 33rd bit).
func TestTerminalInjection(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		term := openTerminal(t, 80, 24)
		c := term.run(opts{profile: profile}, probeArgs("tiocsti", "tiocsti 1", "tioclinux", "tioclinux 1", "tiocsetd", "tioccons", "ok")...)
		got := answers(term.until("ok: ok"))
		for _, words := range []string{"tiocsti", "tiocsti 1", "tioclinux", "tioclinux 1", "tiocsetd", "tioccons"} {
			if got[words] != "EPERM" {
				t.Errorf("%s: %s: got %q, want EPERM", profile, words, got[words])
			}
		}
		r := c.finish(t)
		if r.status.Refused["ioctl"] != 6 {
			t.Errorf("%s: refused ioctls: got %d, want 6", profile, r.status.Refused["ioctl"])
		}
	}
}

// Job control in a shell: stop, continue in the background, end.
func TestJobControl(t *testing.T) {
	needSandbox(t)
	needProgram(t, "bash")
	term := openTerminal(t, 80, 24)
	c := term.run(opts{profile: "ring2", flags: []string{"--env", "PS1=prompt>"}}, "bash", "--norc", "-i")
	term.until("prompt>")
	term.type_("sleep 1000\n")
	term.until("sleep 1000")
	// The shell hands the terminal over when the job runs; the key is typed
	// again until it meets the job.
	stopped := make(chan struct{})
	go func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(100 * time.Millisecond):
				term.type_("\x1a")
			}
		}
	}()
	shown := term.until("Stopped")
	close(stopped)
	if strings.Contains(shown, "no job control") {
		t.Errorf("the shell has no job control: %q", shown)
	}
	term.until("prompt>")
	// The first exit is refused while bash still counts the job as stopped.
	term.type_("kill -KILL %1\nexit 7\nexit 7\n")
	c.finish(t).want(t, 7, "exited")
}

// The terminal goes away: the agent gets SIGHUP or is killed, agentrun ends.
func TestTerminalHangsUp(t *testing.T) {
	needSandbox(t)
	term := openTerminal(t, 80, 24)
	c := term.run(opts{profile: "ring2"}, "/probe", "stubborn")
	term.until("ready")
	term.slave.Close()
	term.master.Close()
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Duration(slow * float64(15*time.Second))):
		t.Error("agentrun lives on without its terminal")
		c.cancel()
		<-done
	}
	noAgents(t)
}

// -t without a terminal on our side still gives the agent one.
func TestTerminalWithoutCaller(t *testing.T) {
	needSandbox(t)
	_, r := try(t, opts{flags: []string{"-t"}}, "tty")
	r.want(t, 0, "exited")
	if v := value(t, r, "tty"); !strings.Contains(v, "111 /dev/pts/") {
		t.Errorf("got %s, want a terminal", v)
	}
}
