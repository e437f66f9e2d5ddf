// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// What containerd's CRI writes about pods: the kind of a container, and its pod's uid, by which kubelet names the pod's folder.
const (
	kindAnnotation = "io.kubernetes.cri.container-type"
	podAnnotation  = "io.kubernetes.cri.sandbox-uid"
)

// holdsPod tells whether a container is the one that holds a pod's place ("pause"). Its image is the node's and its program does nothing; so
// nothing of the bundle's is run, and this program waits in its place. Whoever writes the annotation without being entitled to gets no more
// than that. What the pod demands beyond a ring is refused here already, before it has any other container.
func holdsPod(c *specs.Spec) bool { return c.Annotations[kindAnnotation] == "sandbox" }

var errPod = errors.New("it holds a pod's place, and runs nothing: name a container of the pod")

const holdCommand = "hold-pod"

// makePod starts what waits in the place of a pod's first container, in its network namespace.
func (r *runtime) makePod(c *cli.Context, k *container, spec *specs.Spec) (err error) {
	cmd := exec.Command("/proc/self/exe", holdCommand)
	cmd.SysProcAttr, cmd.Dir, cmd.Env = &syscall.SysProcAttr{Setsid: true}, "/", []string{"GOMAXPROCS=1"}
	knows, err := k.begin(cmd, spec)
	if err != nil {
		return err
	}
	defer knows.Close()
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
		}
	}()
	return k.made(c, spec, cmd.Process.Pid, knows)
}

// hold waits for a signal that ends it.
func hold(*cli.Context) error {
	known := os.NewFile(3, "who makes the pod")
	if n, _ := known.Read(make([]byte, 1)); n == 0 {
		return errors.New("whoever made the pod has ended")
	}
	known.Close()
	for {
		_ = unix.Pause()
	}
}

// uidName is a pod's uid, which becomes part of a path.
var uidName = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// ofPod puts a pod's uid where an operator's line has {pod}; false: the line is for pods, and this container is in none.
func ofPod(line, uid string) (string, bool) {
	if !strings.Contains(line, "{pod}") {
		return line, true
	}
	return strings.ReplaceAll(line, "{pod}", uid), uidName.MatchString(uid)
}

// loadRun is load, of a container that is a run.
func (r *runtime) loadRun(id string) (*container, error) {
	k, err := r.load(id)
	if err == nil && k.Pod {
		err = errPod
	}
	return k, err
}
