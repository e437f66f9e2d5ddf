// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"agentrun/internal/hostcaps"
)

// The program that reads what strangers have packed has, by the time that it asks a registry for anything, no way to start others, three
// capabilities for files, and one folder that it can write.
func TestThreatTakeoverImageProgramIsConfined(t *testing.T) {
	need(t, hostcaps.Root, hostcaps.Seccomp)
	p := newPlace(t)
	asked, answer := make(chan string, 64), make(chan struct{})
	var holding atomic.Bool
	registry := aRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if holding.Load() {
			asked <- r.URL.Path
			<-answer
		}
		return false
	})
	ref := registry + "/team/probe:1"
	push(t, ref, probePicture(t, "one"))
	holding.Store(true)
	done := make(chan result)
	go func() { done <- p.do("image", "pull", "-q", ref) }()
	select {
	case <-asked:
	case r := <-done:
		t.Fatalf("pull: exit %d %s", r.exit, r.stderr)
	}
	pid := ""
	statuses, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, s := range statuses {
		dir := filepath.Dir(s)
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if strings.Contains(string(line), "agentrun-image") && strings.Contains(string(mounts), p.state) {
			pid = filepath.Base(dir)
		}
	}
	if pid == "" {
		t.Fatal("no agentrun-image with a folder of its own is running")
	}
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	if err != nil || len(threads) == 0 {
		t.Fatalf("%v %v", threads, err)
	}
	const files = "000000000000000b" // CHOWN, DAC_OVERRIDE, FOWNER
	for _, at := range threads {
		status := readFile(t, at)
		for name, want := range map[string]string{
			"CapEff": files, "CapPrm": files, "CapBnd": "0000000000000000", "CapInh": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		} {
			if !strings.Contains(status, fmt.Sprintf("\n%s:\t%s\n", name, want)) {
				t.Errorf("%s: want %s %s in\n%s", at, name, want, status)
			}
		}
	}
	writable := []string{}
	for line := range strings.Lines(readFile(t, "/proc/"+pid+"/mountinfo")) {
		if f := strings.Fields(line); !strings.HasPrefix(f[5], "ro") {
			writable = append(writable, f[4])
		}
	}
	if len(writable) != 1 || !strings.HasPrefix(writable[0], filepath.Join(p.state, "images", ".new-")) {
		t.Errorf("it can write %v", writable)
	}
	close(answer)
	if r := <-done; r.exit != 0 {
		t.Errorf("pull: exit %d %s", r.exit, r.stderr)
	}
	if got := p.does([]string{"--image", ref}); got["cat /etc/mark"] != "value=one" {
		t.Errorf("what it brought: %v", got)
	}
	// Started by hand, it touches nothing: what it makes read-only would be the host's.
	r := p.byHand("agentrun-image", `{"into":"`+t.TempDir()+`","pull":"`+ref+`","platform":"linux/`+goarch()+`","owners":true,"progress":false,"bar":false,"agent":"x"}`)
	if r.exit != 125 || !strings.Contains(r.stderr, "mount namespace of this process's own") {
		t.Errorf("by hand: exit %d %s", r.exit, r.stderr)
	}
}

// byHand runs a program beside agentrun with an input.
func (p place) byHand(name, input string) result {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(filepath.Dir(agentrun), name))
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errOut
	_ = cmd.Run() // its exit code says it
	return result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String()}
}
