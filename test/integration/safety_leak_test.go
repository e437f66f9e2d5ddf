// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// S-10: a code is on the operators' channels, and in nothing that the agent could come to see.
func TestS10CodesLeaveNoTrace(t *testing.T) {
	need(t, hostcaps.Root)
	needSafetyNPM(t)
	p := safetyPlace(t)
	screen, tty := safetyTerminal(t)
	var mu sync.Mutex
	var bodies, heads bytes.Buffer
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.Copy(&bodies, r.Body)
		fmt.Fprintln(&heads, r.URL, r.Header)
	}))
	defer hook.Close()
	key := write(t, filepath.Join(filepath.Dir(p.run), "key"), strings.Repeat("k", 40), 0o600)
	c := newNodeClient(t, append([]string{"stdio", agentrun}, p.serveArgs("--stdio", "--show-codes-on", tty, "--webhook", hook.URL, "--webhook-key", key)...)...)

	p.confirmed(c, "record_execution_step", aStep(safe)).want(t, "the first step", "continue")
	var codes []string
	seen := func(id string) {
		t.Helper()
		code := p.code(id)
		codes = append(codes, code)
		eventually(t, 20*time.Second, "the code is on terminal and webhook", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(bodies.String(), code) && strings.Contains(screen(), code)
		})
	}
	id := c.do("record_execution_step", aStep("sending the report to the mailing list", "riskScore", 70)).want(t, "a verify step", "pause").verification()
	seen(id)
	c.do("verify_challenge", map[string]any{"challenge_id": id, "code": "guessed"})
	p.must("challenges", "verify", id, codes[0])
	c.do("record_execution_step", aStep(safe)).want(t, "after verification", "continue")
	seen(c.do("record_execution_step", aStep(harmful)).want(t, "a denied step", "stop").verification())
	c.do("introspect", nil)

	metrics := p.scrape("safety-*")
	if !strings.Contains(metrics, `agentrun_safety_decisions_total{stage="`) {
		t.Errorf("got metrics %s", metrics)
	}
	found := places{
		"metrics": metrics, "the webhook's head": heads.String(), "output and log of client and loop": c.text(),
		"challenges list": p.must("challenges", "list", "--json").stdout, "challenges blocks": p.must("challenges", "blocks", "--json").stdout,
		"audit": p.must("audit", "show", "--json").stdout, "ps": p.must("ps", "--json").stdout, "the client's memory": memory(t, c.cmd.Process.Pid),
		"command lines": commandLines(t),
	}
	found.read(t, id, "the client's memory", "audit")
	c.hangUp()
	found.files(t, p.state, p.run)
	found.none(t, codes)
}

// S-10, S-15: nor in anything of a sandbox: what its agent and operators are told, what is written and sent, the memory of the agent
// and of its gateway. Only the supervisor has it.
func TestS10SandboxLeavesNoTrace(t *testing.T) {
	x := newExit(t)
	collector := &exittest.Collector{}
	x.settings.collector("http://" + x.host("otlp.test", collector).Addr.String())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	a := x.cautiously("leaky", "ring3", nil, "--agent", "planner-1", "--metrics-addr", at, "--safety", "enforcing")
	a.expect("value=pause", `step sending+a+report+to+the+list {"riskScore":70}`)
	id := strings.TrimPrefix(a.try("told verificationId"), "value=")
	codes := []string{a.code(id)}
	a.expect("value=PERMISSION_DENIED", `ask create verify_challenge {"challenge_id":"`+id+`","code":"guessed"}`)
	a.must("challenges", "verify", id, codes[0])
	a.tell("step drop_table+users")
	id, code := a.stopAndCode()
	codes = append(codes, code)

	r, err := http.Get("http://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	found := places{
		"metrics": string(metrics), "the loop's metrics": a.scrape(a.seen().ID), "audit": x.n.must("audit", "show", "--json").stdout, "ps": a.must("ps", "--json").stdout, "inspect": a.must("inspect", "leaky").stdout,
		"events": a.must("events", "leaky", "--json").stdout, "challenges list": a.must("challenges", "list", "--json").stdout,
		"challenges blocks": a.must("challenges", "blocks", "--json").stdout, "command lines": commandLines(t), "the gateway's memory": memory(t, gatewayOf(t).pid),
	}
	for _, p := range a.seen().Processes {
		found["the agent's memory"] += memory(t, p.PID)
	}
	found.read(t, "drop_table users", "the gateway's memory")
	found.read(t, `agentrun_safety_decisions_total{stage="pattern",verdict="stop"} 1`, "the loop's metrics")
	found.read(t, "planner-1", "audit", "ps", "inspect")
	found.read(t, "verificationId", "the agent's memory")
	a.must("challenges", "verify", id, code)
	a.answer("step drop_table+users")
	found["the agent's answer"] = a.try("whole")
	found.read(t, id, "the agent's answer")
	ended := a.quit()
	ended.want(t, 0, "exited")
	found["the run's stderr"], found["the run's status"] = ended.stderr, fmt.Sprintf("%+v", ended.status)
	found.read(t, "agentrun challenges list", "the run's stderr")
	eventually(t, 10*time.Second, "a trace at the collector", func() bool { return collector.Count() > 0 })
	for _, code := range codes {
		if collector.Holds(code) {
			t.Errorf("%s is in a trace", code)
		}
	}
	found.files(t, x.n.dir, runDir, x.ws)
	found.none(t, codes)
}

// places are texts in which no code may be, by what they are.
type places map[string]string

// read fails the test unless the places have what must be there if they were really read.
func (p places) read(t *testing.T, what string, where ...string) {
	t.Helper()
	for _, w := range where {
		if !strings.Contains(p[w], what) {
			t.Errorf("%s has no %q: it wasn't really read", w, what)
		}
	}
}

// files adds all below some folders.
func (p places) files(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				b, rerr := os.ReadFile(path)
				p[path], err = string(b), rerr
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (p places) none(t *testing.T, codes []string) {
	t.Helper()
	for where, text := range p {
		for _, code := range codes {
			for how, spelling := range map[string]string{
				"it": code, "it in small letters": strings.ToLower(code), "it in hexadecimal": hex.EncodeToString([]byte(code)), "it in base64": base64.StdEncoding.EncodeToString([]byte(code))[:24],
			} {
				if strings.Contains(text, spelling) {
					t.Errorf("%s: %s is in %s", code, how, where)
				}
			}
		}
	}
}

// S-10: who runs as the same user as the loop, as many clients do, can't read it out of the loop's memory.
func TestS10LoopsMemoryIsItsOwn(t *testing.T) {
	need(t, hostcaps.Root)
	p := safetyPlace(t)
	at := filepath.Dir(p.run)
	for _, dir := range []string{p.run, p.state} {
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(at, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(agentrun)
	for _, name := range []string{"agentrun", "agentrun-safety"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(at, "bin", name), string(b), 0o755)
	}
	as := func(user uint32, argv ...string) *exec.Cmd {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = "/", []string{"HOME=/", "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd
	}
	l := talk(t, as(owner, append([]string{filepath.Join(at, "bin", "agentrun")}, p.serveArgs("--stdio")...)...))
	hello := l.ask(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": map[string]any{"protocolVersion": protocolAt, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "x", "version": "1"}}})
	if !bytes.Contains(hello, []byte("agentrun-safety")) {
		t.Fatalf("got %s", hello)
	}
	for _, file := range []string{"mem", "environ", "maps"} {
		path := fmt.Sprintf("/proc/%d/%s", l.cmd.Process.Pid, file)
		out, err := as(owner, "/usr/bin/head", "-c", "1", path).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "ermission denied") {
			t.Errorf("%s: got %q, %v, want permission denied", path, out, err)
		}
	}
	// Another user doesn't get as far as the operators' socket.
	other := as(owner+1, filepath.Join(at, "bin", "agentrun"), "--state-dir", p.state, "--run-dir", p.run, "challenges", "list")
	if out, err := other.CombinedOutput(); err == nil {
		t.Errorf("another user lists challenges: %s", out)
	}
	if code := l.hangUp(); code != 0 {
		t.Errorf("exit %d\n%s", code, l.text())
	}
}

// safetyTerminal is an operator's terminal, and what is on it.
func safetyTerminal(t *testing.T) (screen func() string, name string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("/dev/pts/%d", n)
	hold, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0) // else reading ends when the loop does
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var shown bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&syncWriter{mu: &mu, w: &shown}, master)
	}()
	t.Cleanup(func() {
		hold.Close()
		master.Close()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("reading of the terminal doesn't end")
		}
	})
	return func() string { mu.Lock(); defer mu.Unlock(); return shown.String() }, name
}

// scrape reads the metrics of the one loop that has such a name.
func (p place) scrape(name string) string {
	p.t.Helper()
	sockets, err := filepath.Glob(filepath.Join(p.run, "control", name+".sock"))
	if err != nil || len(sockets) != 1 {
		p.t.Fatalf("got sockets %v, %v", sockets, err)
	}
	client := http.Client{Timeout: hang(), Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sockets[0])
	}}}
	resp, err := client.Get("http://agentrun/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// memory is all that a process can write to.
func memory(t *testing.T, pid int) string {
	t.Helper()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	var all bytes.Buffer
	for s := bufio.NewScanner(maps); s.Scan(); {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") {
			continue
		}
		for at := from; at < to; at += 1 << 20 {
			b := make([]byte, min(1<<20, to-at))
			if n, _ := mem.ReadAt(b, at); n > 0 && len(bytes.Trim(b[:n], "\x00")) > 0 {
				all.Write(b[:n])
			}
		}
	}
	return all.String()
}

// commandLines are those of every process there is.
func commandLines(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f) // it may have ended
		all.Write(b)
	}
	return all.String()
}
