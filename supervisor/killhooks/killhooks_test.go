// SPDX-License-Identifier: Apache-2.0

package killhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/rings"
	"agentrun/runtime"
)

func hookScript(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "hook.sh")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755), os.Chmod(name, 0o755)); err != nil {
		t.Fatal(err)
	}
	return name
}

// configured is a configuration file with this in it, as the command line reads it.
func configured(t *testing.T, text string) (Config, error) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "config.yaml")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	var c struct{ Kill Config }
	err := d.Decode(&c)
	c.Kill.File = name
	return c.Kill, err
}

// hintOf is the way out that an error tells.
func hintOf(err error) string {
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		return h.Hint
	}
	return ""
}

func TestH21HookConfiguration(t *testing.T) {
	script := hookScript(t, "exit 0")
	k, err := configured(t, "kill:\n  handlers:\n  - {name: tell.oncall, command: ["+script+", a, b], timeout: 1500ms}\n  - {name: log, command: ["+script+"]}\n  compensations:\n  - {name: log, command: [/bin/sh, -c, ':']}\n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Hooks()
	want := Hooks{
		handlers:      []hook{{"kill.handlers[0]", "tell.oncall", []string{script, "a", "b"}, 1500 * time.Millisecond}, {"kill.handlers[1]", "log", []string{script}, 5 * time.Second}},
		compensations: []hook{{"kill.compensations[0]", "log", []string{"/bin/sh", "-c", ":"}, 5 * time.Second}},
	}
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Hooks{}, hook{})); d != "" {
		t.Error(d)
	}
	if h, err := (Config{}).Hooks(); err != nil || len(h.handlers) > 0 {
		t.Errorf("no section: got %v, %v", h, err)
	}
}

// Each mistake names its field and the way out, before anything starts.
func TestH21HookConfigurationRefused(t *testing.T) {
	script, open, plain := hookScript(t, ""), hookScript(t, ""), hookScript(t, "")
	if err := errors.Join(os.Chmod(open, 0o757), os.Chmod(plain, 0o644)); err != nil {
		t.Fatal(err)
	}
	one := func(text string) string { return "kill:\n  handlers:\n  - {" + text + "}\n" }
	many := "kill:\n  compensations:\n" + strings.Repeat("  - {name: x, command: [/bin/sh]}\n", maxHooks+1)
	for text, want := range map[string]string{
		one("command: [/bin/sh]"):                                        "kill.handlers[0].name",
		one(`name: "a b", command: [/bin/sh]`):                           "kill.handlers[0].name",
		one("name: " + strings.Repeat("x", 65) + ", command: [/bin/sh]"): "kill.handlers[0].name",
		one("name: x"):                                                        "kill.handlers[0].command",
		one("name: x, command: []"):                                           "kill.handlers[0].command",
		one("name: x, command: [sh]"):                                         "kill.handlers[0].command",
		one("name: x, command: [./hook.sh]"):                                  "kill.handlers[0].command",
		one(`name: x, command: ["/bin/sh", "a\0b"]`):                          "kill.handlers[0].command",
		one("name: x, command: [/nonexistent/hook]"):                          "kill.handlers[0].command",
		one("name: x, command: [" + filepath.Dir(script) + "]"):               "kill.handlers[0].command",
		one("name: x, command: [" + open + "]"):                               "kill.handlers[0].command",
		one("name: x, command: [" + plain + "]"):                              "kill.handlers[0].command",
		one("name: x, command: [/bin/sh], timeout: 5"):                        "kill.handlers[0].timeout",
		one("name: x, command: [/bin/sh], timeout: 5001ms"):                   "kill.handlers[0].timeout",
		one("name: x, command: [/bin/sh], timeout: 0s"):                       "kill.handlers[0].timeout",
		one("name: x, command: [/bin/sh], timeout: -1s"):                      "kill.handlers[0].timeout",
		one("name: x, command: [/bin/sh]}\n  - {name: x, command: [/bin/sh]"): "kill.handlers[1].name",
		many: "kill.compensations",
	} {
		k, err := configured(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = k.Hooks()
		if err == nil || !strings.Contains(err.Error(), k.File+": "+want+": ") || hintOf(err) == "" {
			t.Errorf("%s: got %v (hint %q), want %s and a hint", text, err, hintOf(err), want)
		}
	}
	for _, text := range []string{one("name: x, command: [/bin/sh], dir: /"), "kill: {handler: []}\n", one("name: x, command: /bin/sh")} {
		if _, err := configured(t, text); err == nil {
			t.Errorf("%s: taken", text)
		}
	}
	k, err := configured(t, one("name: x, command: [/bin/sh]"))
	if err := errors.Join(err, os.Chmod(k.File, 0o622)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Hooks(); err == nil || !strings.Contains(err.Error(), "kill: ") {
		t.Errorf("a configuration that others write: got %v", err)
	}
}

// THREATS "what the host runs later": what an agent writes in root's folder is root's. It would pass as the operator's own.
func TestThreatTakeoverHookInTheWorkspace(t *testing.T) {
	script := hookScript(t, "")
	workspace := filepath.Dir(script)
	beside := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(script, beside); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{script, beside, "/bin/sh, " + script, "/bin/sh, " + workspace + "/notyet", "/bin/sh, " + workspace} {
		k, err := configured(t, "kill:\n  compensations:\n  - {name: x, command: ["+command+"]}\n")
		if err != nil {
			t.Fatal(err)
		}
		h, err := k.Hooks()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.apart(h, []string{"/srv", workspace}); err == nil || !strings.Contains(err.Error(), "kill.compensations[0].command[") || !strings.Contains(err.Error(), workspace) || hintOf(err) == "" {
			t.Errorf("%s: got %v", command, err)
		}
		if err := k.apart(h, []string{workspace + "-other", "/srv"}); err != nil {
			t.Errorf("%s: got %v", command, err)
		}
		if err := k.apart(h, []string{filepath.Dir(k.File)}); err == nil {
			t.Errorf("the configuration itself is the run's to write")
		}
	}
}

func TestH21HookRuns(t *testing.T) {
	plan := &runtime.Plan{ID: "r1", Name: "n", Agent: "a", Session: "s", Ring: 2}
	run := func(limit time.Duration, text string) (string, error) {
		h := hook{name: "x", command: []string{hookScript(t, text), "one arg"}, limit: limit}
		return h.run(t.Context(), plan, true)
	}
	t.Setenv("SECRET", "of the caller")
	inherited, err := unix.Dup(0) // one that doesn't close on exec, as whoever started us may have left
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	said, err := run(5*time.Second, `cat; env; pwd; echo "$#,$1"; exec ls -l /proc/self/fd`)
	if err != nil {
		t.Fatal(err)
	}
	object, rest, _ := strings.Cut(said, "\n")
	var about map[string]any
	if err := json.Unmarshal([]byte(object), &about); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if d := cmp.Diff(map[string]any{"id": "r1", "name": "n", "agent": "a", "session": "s", "reason": "manual", "action": "", "by": "", "detail": "", "ring": 2.0}, about); d != "" {
		t.Error(d)
	}
	for _, want := range []string{"\n/\n", "\n1,one arg\n", "PATH=/usr/local/sbin"} {
		if !strings.Contains("\n"+rest, want) {
			t.Errorf("got %q, want %q in it", rest, want)
		}
	}
	if strings.Contains(rest, "SECRET") {
		t.Errorf("the caller's environment: %s", rest)
	}
	for line := range strings.Lines(rest) {
		where, to, ok := strings.Cut(line, " -> ")
		if f := strings.Fields(where); ok && !slices.Contains([]string{"0", "1", "2"}, f[len(f)-1]) && !strings.HasPrefix(to, "/proc/") { // what ls reads
			t.Errorf("a descriptor of ours: %s", line)
		}
	}
	for text, want := range map[string]string{"exit 3": "exit code 3", "kill -TERM $$": "ended by SIGTERM"} {
		if _, err := run(5*time.Second, text); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	// What it leaves running has its output, and holds nobody up.
	if said, err := run(5*time.Second, "echo bye; sleep 1000 & echo $!"); err != nil {
		t.Errorf("got %v", err)
	} else if pid, e := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(said, "bye\n"))); e == nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	said, err = run(5*time.Second, "exec head -c 1000000 /dev/zero")
	if err != nil || len(said) != maxSaid {
		t.Errorf("a megabyte: kept %d bytes, %v", len(said), err)
	}
	gone := hook{name: "x", command: []string{hookScript(t, "")}, limit: time.Second}
	if err := os.Chmod(gone.command[0], 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := gone.run(t.Context(), plan, false); !errors.Is(err, os.ErrPermission) {
		t.Errorf("others can write it by now: got %v", err)
	}
}

// It ends with its time, and so does what it started.
func TestH21HookHangs(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	h := hook{name: "x", command: []string{hookScript(t, fmt.Sprintf("trap '' TERM; sleep 1000 & echo $$ $! >%s; wait", pids))}, limit: 500 * time.Millisecond}
	_, err := h.run(context.Background(), &runtime.Plan{}, true)
	if !errors.Is(err, rings.ErrHung) {
		t.Errorf("got %v", err)
	}
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil || strings.Contains(string(stat), ") Z ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d lives: %s", pid, stat)
			}
		}
	}
}
