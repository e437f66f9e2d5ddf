// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

var (
	agentrun string // the program under test
	base     string // everything this run of the tests writes
	slow     = 1.0
	counter  atomic.Int64
)

// owner owns the workspaces on the host, and runs the host's half of the comparison: nobody.
const owner = 65534

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	agentrun = os.Getenv("AGENTRUN_BIN")
	if agentrun == "" {
		agentrun = filepath.Join("..", "..", "bin", "agentrun")
	}
	var err error
	if agentrun, err = filepath.Abs(agentrun); err == nil {
		err = unix.Access(agentrun, unix.X_OK)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "compat: %s: %v (make build, or set AGENTRUN_BIN)\n", agentrun, err)
		return 1
	}
	if v := os.Getenv("AGENTRUN_TEST_SLOW"); v != "" {
		if slow, err = strconv.ParseFloat(v, 64); err != nil || slow < 1 {
			fmt.Fprintf(os.Stderr, "compat: AGENTRUN_TEST_SLOW=%q: want a number from 1\n", v)
			return 1
		}
	}
	unix.Umask(0o022)
	// A shell that starts a job in the background has it ignore SIGINT, which every
	// program down to CPython's tests of it would inherit; a handled signal is reset at exec.
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, unix.SIGINT)
	if base, err = os.MkdirTemp("", "agentrun-test-compat-"); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		return 1
	}
	defer os.RemoveAll(base)
	go func() {
		<-interrupt
		os.RemoveAll(base)
		os.Exit(130)
	}()
	// Programs of the sandbox and nobody's tests have to get through it.
	if err := os.Chmod(base, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		return 1
	}
	return m.Run()
}

// need skips a test whose probes the host does not satisfy; the text of every
// skip starts with "need: ", as the table of skipped tests expects.
func need(t testing.TB, probes ...*hostcaps.Probe) {
	t.Helper()
	for _, p := range probes {
		if err := p.Check(); err != nil {
			unmet(t, err.Error())
		}
	}
}

// needFile is need for a file that the sandbox's root shows too.
func needFile(t testing.TB, path, whence string) {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	switch {
	case err != nil:
		unmet(t, fmt.Sprintf("%s (%s): %v", path, whence, err))
	case !strings.HasPrefix(real, "/usr/"):
		unmet(t, fmt.Sprintf("%s (%s): is %s, which no ring shows", path, whence, real))
	}
}

func unmet(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("AGENTRUN_TEST_MUST_RUN") == "1" && os.Getenv("AGENTRUN_TEST_ELSEWHERE") != "1" {
		t.Fatalf("need: %s (AGENTRUN_TEST_MUST_RUN=1 makes this a failure)", why)
	}
	t.Skipf("need: %s", why)
}

func needSandbox(t testing.TB) {
	t.Helper()
	need(t, hostcaps.Root, hostcaps.UserNS, hostcaps.SeccompNotify, hostcaps.NewMountAPI,
		hostcaps.Cgroup("cpu", "memory", "pids", "freezer"), hostcaps.IDMappedMounts(base))
}

// folder makes a directory of the tests that nobody may write to.
func folder(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(base, fmt.Sprint(counter.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// status is the part of the status file that these tests look at.
type status struct {
	State   string            `json:"state"`
	Reason  string            `json:"reason"`
	Error   string            `json:"error"`
	Exit    int               `json:"exit_code"`
	Refused map[string]uint64 `json:"refused"`
	Events  []struct {
		Syscall string `json:"syscall"`
		Args    string `json:"args_class"`
		Verdict string `json:"verdict"`
		Count   uint64 `json:"count"`
	} `json:"events"`
}

// refusals is what the supervisor saw and refused, for a message.
func (s status) refusals() string {
	var b strings.Builder
	for _, e := range s.Events {
		fmt.Fprintf(&b, "  %s(%s) = %s, %d times\n", e.Syscall, e.Args, e.Verdict, e.Count)
	}
	return b.String()
}

type result struct {
	exit           int
	stdout, stderr string
	status         status
}

// sandbox is `agentrun exec` from start to end. Limits outside the spec's ranges
// are needed for CPython's tests alone, which run longer than any agent may.
func sandbox(t testing.TB, limit time.Duration, flags, argv []string) result {
	t.Helper()
	limit = time.Duration(float64(limit) * slow)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dir := folder(t)
	statusFile := filepath.Join(dir, "status.json")
	args := []string{"--state-dir", filepath.Join(base, "state"), "--run-dir", filepath.Join(base, "run"), "exec", "--status-file", statusFile}
	args = append(append(append(args, flags...), "--"), argv...)
	cmd := exec.CommandContext(ctx, agentrun, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "AGENTRUN_TESTONLY_UNSAFE_LIMITS=1")
	// The supervisor ends its sandbox on SIGTERM; SIGKILL would leave that to the next start.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("agentrun %s: no end after %v\nstdout: %s\nstderr: %s", strings.Join(args, " "), limit, tail(out.String()), tail(errOut.String()))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("agentrun %s: %v", strings.Join(args, " "), err)
	}
	r := result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String()}
	b, err := os.ReadFile(statusFile)
	if err == nil {
		err = json.Unmarshal(b, &r.status)
	}
	if err != nil {
		t.Fatalf("status file: %v\nstderr: %s", err, tail(r.stderr))
	}
	return r
}

// tail keeps messages readable: CPython's tests print hundreds of lines.
func tail(s string) string {
	const most = 4000
	if len(s) <= most {
		return s
	}
	return "… " + s[len(s)-most:]
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		t.Fatal(err)
	}
	// A file of another user has no owner that the sandbox could name, so cp -a would complain.
	if err := os.Chown(to, owner, owner); err != nil {
		t.Fatal(err)
	}
}
