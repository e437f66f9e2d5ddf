// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// What TestMain found and made.
var (
	agentrun string // the program under test
	probeBin string
	base     string // everything this run of the tests writes
	stateDir string
	runDir   string
	slow     = 1.0
)

func TestMain(m *testing.M) {
	// The same file is also the Go program that runs in a sandbox.
	if len(os.Args) > 1 && os.Args[1] == "tiny-go-program" {
		os.Exit(tinyGoProgram())
	}
	if len(os.Args) > 2 && os.Args[1] == "without-landlock" {
		os.Exit(withoutLandlock(os.Args[2:]))
	}
	if len(os.Args) > 4 && os.Args[1] == "landlock-flags" {
		flags, _ := strconv.ParseUint(os.Args[2], 10, 32)
		refusal, _ := strconv.ParseUint(os.Args[3], 10, 16)
		os.Exit(landlockFlags(flags, refusal, os.Args[4:]))
	}
	if name := filepath.Base(os.Args[0]); name == "newuidmap" || name == "newgidmap" {
		// The race detector waits for a second in each process that ends, which a launch would wait for, too.
		unix.Exit(mapIDs(name, os.Args[1:]))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	// What we were started to ignore, as by nohup(1), agentrun would ignore too; what has a handler here it doesn't.
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	agentrun, probeBin = program("AGENTRUN_BIN", "agentrun"), program("AGENTRUN_PROBE", "probe")
	for _, p := range []string{agentrun, probeBin} {
		if err := unix.Access(p, unix.X_OK); err != nil {
			fmt.Fprintf(os.Stderr, "integration: %s: %v (make build, or set AGENTRUN_BIN and AGENTRUN_PROBE)\n", p, err)
			return 1
		}
	}
	if v := os.Getenv("AGENTRUN_TEST_SLOW"); v != "" {
		var err error
		if slow, err = strconv.ParseFloat(v, 64); err != nil || slow < 1 {
			fmt.Fprintf(os.Stderr, "integration: AGENTRUN_TEST_SLOW=%q: want a number from 1\n", v)
			return 1
		}
	}
	// Files made for a sandbox must be readable by it.
	unix.Umask(0o022)
	before := takeStock()
	var err error
	if base, err = os.MkdirTemp("", "agentrun-test-"); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	os.Chmod(base, 0o755)
	os.Setenv("TMPDIR", filepath.Join(base, "tmp"))
	for _, d := range []string{"tmp", "run"} {
		os.Mkdir(filepath.Join(base, d), 0o755)
	}
	os.Mkdir(filepath.Join(base, "state"), 0o700) // it refuses to be anybody else's
	stateDir, runDir = filepath.Join(base, "state"), filepath.Join(base, "run")
	code := m.Run()
	// The ordinary user's claims of ids: shared by all runs of that user's, so no single test may remove them.
	os.RemoveAll(fmt.Sprintf("/tmp/agentrun-%d", ordinary))
	if code != 0 {
		// A test that gave up has killed its supervisor: what that leaves is
		// gc's, and would only hide what else is left.
		command(context.Background(), "gc").Run()
	}
	if left := before.leftAfter(10 * time.Second); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "--- FAIL: leak check (M-5): left behind by the whole run:\n    %s\n", strings.Join(left, "\n    "))
		code = max(code, 1)
	}
	if err := os.RemoveAll(base); err != nil {
		fmt.Fprintln(os.Stderr, "--- FAIL: leak check (M-5): the folder of the tests can't be removed:", err)
		code = max(code, 1)
	}
	return code
}

func program(env, name string) string {
	p := os.Getenv(env)
	if p == "" {
		p = filepath.Join("..", "..", "bin", name)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return p
	}
	return abs
}

// need skips a test whose probes the host does not satisfy. The text is read
// by the program that merges the runs' tables; it must start with "need: ".
func need(t testing.TB, probes ...*hostcaps.Probe) {
	t.Helper()
	for _, p := range probes {
		if err := p.Check(); err != nil {
			unmet(t, err.Error())
		}
	}
}

// needProgram is need for a program that the sandbox's root must show.
func needProgram(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if sandboxProgram(name) == "" {
			unmet(t, "program "+name+": not in /usr/local/bin, /usr/bin or /bin")
		}
	}
}

// sandboxProgram finds a program where the sandbox's PATH looks.
func sandboxProgram(name string) string {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		p := filepath.Join(dir, name)
		if real, err := filepath.EvalSymlinks(p); err == nil && strings.HasPrefix(real, "/usr/") && unix.Access(real, unix.X_OK) == nil {
			return p
		}
	}
	return ""
}

func unmet(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("AGENTRUN_TEST_MUST_RUN") == "1" && os.Getenv("AGENTRUN_TEST_ELSEWHERE") != "1" {
		t.Fatalf("need: %s (AGENTRUN_TEST_MUST_RUN=1 makes this a failure)", why)
	}
	t.Skipf("need: %s", why)
}

// needSandbox is what every run of rings 1–3 stands on.
func needSandbox(t testing.TB) {
	t.Helper()
	need(t, hostcaps.Root, hostcaps.UserNS, hostcaps.SeccompNotify, hostcaps.NewMountAPI,
		hostcaps.Cgroup("cpu", "memory", "pids", "freezer"))
}

// opts is one call of `agentrun exec`.
type opts struct {
	breach  bool     // a breach has the consequence that it has for everybody; without, it is on record only
	profile string   // ring1, ring2, ring3 or strict; "" leaves the default
	flags   []string // before "--"
	env     []string // added to agentrun's own environment
	stdin   io.Reader
	dir     string   // working directory of agentrun; default: an empty folder
	state   string   // state folder; default: that of all tests
	user    *user    // who runs agentrun, in folders of his own; nil: root
	joined  bool     // by a command that joins a run of these
	asRoot  bool     // a table of attacks that means nothing as an ordinary user
	unsafe  bool     // limits below the spec's ranges, for tests that wait for one
	under   []string // a program and its arguments that starts agentrun
}

// profileFlags names a ring by its number, any other profile by its name.
func profileFlags(profile string) []string {
	if ring, ok := strings.CutPrefix(profile, "ring"); ok {
		return []string{"--ring", ring}
	}
	if profile == "" {
		return nil
	}
	return []string{"--profile", profile}
}

// status is the --status-file. A field that a test needs and the file lacks is
// a failure, so decoding is strict about names it knows and lenient to others.
type status struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Agent      string            `json:"agent"`
	Session    string            `json:"session"`
	Ring       int               `json:"ring"`
	Profile    string            `json:"profile"`
	PlanDigest string            `json:"plan_digest"`
	State      string            `json:"state"`
	Reason     string            `json:"reason"`
	ExitCode   int               `json:"exit_code"`
	Signal     string            `json:"signal"`
	PeakMemory int64             `json:"peak_memory_bytes"`
	CPUTime    time.Duration     `json:"cpu_time_ns"`
	WallTime   time.Duration     `json:"wall_time_ns"`
	OOMKills   uint64            `json:"oom_kills"`
	GatewayCPU time.Duration     `json:"gateway_cpu_time_ns"`
	Output     int64             `json:"output_bytes"`
	Refused    map[string]uint64 `json:"refused"`
	Events     []struct {
		At      time.Time `json:"at"`
		Kind    string    `json:"kind"`
		Syscall string    `json:"syscall"`
		Verdict string    `json:"verdict"`
		Count   uint64    `json:"count"`
	} `json:"events"`
	GatewayRefused []refusedOut `json:"gateway_refused"`

	FailedStep    string   `json:"failed_step"`
	Error         string   `json:"error"`
	Leftovers     []string `json:"leftovers"`
	FileConflicts []string `json:"file_conflicts"`
	RiskyFiles    []string `json:"risky_files"`
	RiskyMore     bool     `json:"risky_more"`
	ScratchFull   bool     `json:"scratch_full"`
	FilesChanged  int      `json:"files_changed"`
}

// refusedOut is something that the way out refused.
type refusedOut struct {
	Kind, Name, Code, Hint string
	Count                  int64
}

// result is how a call of agentrun ended.
type result struct {
	exit           int // -1 when a signal ended agentrun itself
	stdout, stderr string
	status         status
	hasStatus      bool
	wall           time.Duration
}

var counter atomic.Int64

// call is a prepared `agentrun exec`, for tests that act while it runs.
type call struct {
	*exec.Cmd
	out, errOut bytes.Buffer
	told        string // what it had said when until returned; out is still being written then
	statusFile  string
	started     time.Time
	cancel      context.CancelFunc
	read        chan struct{} // closed when all output has been read
}

// hang is the time after which a call is taken for hung and killed.
func hang() time.Duration { return time.Duration(slow * float64(200*time.Second)) }

// command builds any call of the binary with folders of its own.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, agentrun, append([]string{"--state-dir", stateDir, "--run-dir", runDir}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func prepare(t testing.TB, o opts, argv ...string) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	c := &call{cancel: cancel, statusFile: filepath.Join(base, fmt.Sprintf("status-%d.json", counter.Add(1)))}
	args := append([]string{"exec"}, profileFlags(o.profile)...)
	args = append(args, "--status-file", c.statusFile, "--ro-bind", probeBin+":/probe")
	args = append(args, o.flags...)
	if !o.breach && !slices.Contains(o.flags, "--agent") && !slices.Contains(o.flags, "--on-breach") {
		args = append(args, "--on-breach", "record") // most tests try much of what is refused, and want to hear the answers
	}
	args = append(append(args, "--"), argv...)
	ran(t, runBy(o.user), args)
	if o.user != nil {
		c.statusFile = filepath.Join(o.user.home, filepath.Base(c.statusFile))
		args[slices.Index(args, "--status-file")+1] = c.statusFile
		c.Cmd = o.user.command(t, slices.Insert(args, 1, "--best-effort")...)
		c.Env = append(c.Env, o.env...)
		c.Stdin, c.Stdout, c.Stderr = o.stdin, &c.out, &c.errOut
		t.Cleanup(cancel)
		return c
	}
	c.Cmd = command(ctx, args...)
	if o.state != "" {
		c.Args[slices.Index(c.Args, "--state-dir")+1] = o.state
	}
	if len(o.under) > 0 {
		c.Args[0] = c.Path
		c.Path, c.Args = o.under[0], append(slices.Clone(o.under), c.Args...)
	}
	c.Dir = o.dir
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	c.Env = append(os.Environ(), o.env...)
	if o.unsafe {
		c.Env = append(c.Env, "AGENTRUN_TESTONLY_UNSAFE_LIMITS=1")
	}
	c.Stdin, c.Stdout, c.Stderr = o.stdin, &c.out, &c.errOut
	t.Cleanup(cancel)
	return c
}

// startUntil starts the call and returns when the agent has said the word that
// tells that the state under test is reached.
func (c *call) startUntil(t testing.TB, word string) {
	t.Helper()
	if err := c.until(word); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.release)
}

func (c *call) until(word string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.Stdout = w
	c.started = time.Now()
	if err := c.Start(); err != nil {
		return err
	}
	w.Close()
	got := make(chan error, 1)
	c.read = make(chan struct{})
	go func() {
		defer close(c.read)
		defer r.Close()
		b := make([]byte, 4096)
		told := false
		for {
			n, err := r.Read(b)
			c.out.Write(b[:n])
			if !told && (err != nil || bytes.Contains(c.out.Bytes(), []byte(word))) {
				told = true
				c.told = c.out.String()
				got <- err
			}
			if err != nil {
				return
			}
		}
	}()
	if err := <-got; err != nil {
		c.Wait()
		return fmt.Errorf("agentrun ended before the agent said %q: %w\nstdout: %s\nstderr: %s", word, err, c.out.String(), c.errOut.String())
	}
	return nil
}

// release ends what until began, if the test has not.
func (c *call) release() {
	c.cancel()
	if c.read != nil {
		<-c.read
	}
}

// finish waits for the end and collects it.
func (c *call) finish(t testing.TB) result {
	t.Helper()
	err := c.Wait()
	if c.read != nil {
		<-c.read
	}
	r := result{exit: c.ProcessState.ExitCode(), stdout: c.out.String(), stderr: c.errOut.String(), wall: time.Since(c.started)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("wait for agentrun: %v", err)
	}
	b, err := os.ReadFile(c.statusFile)
	if err == nil {
		if err := json.Unmarshal(b, &r.status); err != nil {
			t.Errorf("status file: %v\n%s", err, b)
		}
		r.hasStatus = true
		os.Remove(c.statusFile)
	}
	if len(r.status.Leftovers) > 0 {
		t.Errorf("run %s reports leftovers (M-5): %v", r.status.ID, r.status.Leftovers)
	}
	return r
}

// run is `agentrun exec` from start to end.
func run(t testing.TB, o opts, argv ...string) result {
	t.Helper()
	c := prepare(t, o, argv...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t)
	if r.wall >= hang() {
		t.Fatalf("agentrun hung for %v\nstdout: %s\nstderr: %s", r.wall, r.stdout, r.stderr)
	}
	return r
}

// tool calls another subcommand.
func tool(t testing.TB, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	cmd := command(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	start := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("agentrun %v: %v", args, err)
	}
	return result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String(), wall: time.Since(start)}
}

// try runs tries of the probe in one sandbox, each given as its words, and
// returns its answers by those words.
func try(t testing.TB, o opts, tries ...string) (map[string]string, result) {
	t.Helper()
	r := run(t, o, probeArgs(tries...)...)
	return answers(r.stdout), r
}

func probeArgs(tries ...string) []string {
	argv := []string{"/probe"}
	for i, words := range tries {
		if i > 0 {
			argv = append(argv, ",")
		}
		argv = append(argv, strings.Fields(words)...)
	}
	return argv
}

// answers splits the probe's lines: "mount tmpfs: errno=EPERM".
func answers(stdout string) map[string]string {
	m := map[string]string{}
	for _, line := range strings.Split(strings.ReplaceAll(stdout, "\r", ""), "\n") {
		for _, kind := range []string{": errno=", ": value=", ": ok"} {
			if i := strings.Index(line, kind); i >= 0 {
				m[line[:i]] = strings.TrimPrefix(line[i+2:], "errno=")
				break
			}
		}
	}
	return m
}

// value is the answer of an observation; it fails the test if there is none.
func value(t testing.TB, r result, words string) string {
	t.Helper()
	v, ok := strings.CutPrefix(answers(r.stdout)[words], "value=")
	if !ok {
		t.Fatalf("probe %s gave no value\nexit %d, state %s (%s)\nstdout: %s\nstderr: %s", words, r.exit, r.status.State, r.status.Reason, r.stdout, r.stderr)
	}
	return v
}

// observe is one observation from one sandbox.
func observe(t testing.TB, o opts, words string) string {
	t.Helper()
	_, r := try(t, o, words)
	return value(t, r, words)
}

// wantExit checks the end of a run in one place, with everything one needs to
// see why it was another.
func (r result) want(t testing.TB, exit int, state string) {
	t.Helper()
	if r.exit != exit || r.hasStatus && (r.status.ExitCode != exit || r.status.State != state) || !r.hasStatus && state != "" {
		t.Errorf("got exit %d, status %s/%d (%s), want exit %d, status %s\nfailed step: %s\nerror: %s\nstdout: %.2000s\nstderr: %.2000s",
			r.exit, r.status.State, r.status.ExitCode, r.status.Reason, exit, state, r.status.FailedStep, r.status.Error, r.stdout, r.stderr)
	}
}

// eventually polls for what the kernel does in its own time.
func eventually(t testing.TB, limit time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > time.Duration(slow*float64(limit)) {
			t.Errorf("%s: not within %v", what, time.Duration(slow*float64(limit)))
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(start)
}

// write makes a file for a test.
func write(t testing.TB, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// workspace is a folder of somebody who is neither root nor a sandbox.
func workspace(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	return dir
}

const owner = 4321
