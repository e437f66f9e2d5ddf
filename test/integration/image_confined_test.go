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

	v1 "github.com/google/go-containerregistry/pkg/v1"

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

// M-2: where the kernel can't hold the program to its folder, nothing that strangers have packed is asked for, read or kept.
func TestM2ImageProgramNeedsLandlock(t *testing.T) {
	need(t, hostcaps.Root, hostcaps.Seccomp)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	var asked atomic.Int32
	registry := aRegistry(t, func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false })
	for _, args := range [][]string{
		{"import", dockerSaved(t, map[string]v1.Image{"here:1": probePicture(t, "here")})}, {"pull", registry + "/team/probe:1"},
	} {
		cmd := exec.Command(self, append([]string{"without-landlock", agentrun, "--state-dir", p.state, "--run-dir", p.run, "image"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the kernel has no Landlock") {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
	}
	if n, kept := asked.Load(), p.stored(); n > 0 || len(kept) > 0 {
		t.Errorf("the registry was asked %d times, kept %v", n, kept)
	}
}
