// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentrun/internal/early"
)

// The second of two ways this program is started anew with: the helper that stays outside and has the ids mapped.
const helperName = "agentrun-idmap"

// linkVariable names the helper's two pipes to the process that entered, and the helper: "READ,WRITE,PID".
const linkVariable = "_AGENTRUN_IDMAP"

// Enter starts this very process anew, by exec(2), in a user and a mount namespace of its own, where Arrived goes on. Its process id,
// terminal, parent, and the descriptors named stay what they are. It comes back only with an error; then nothing has changed.
//
// With a delegated cgroup it gets a cgroup namespace too, and takes the cgroup it is in as its tree. More of extra is in the environment then:
// what could be found out outside only.
func Enter(keep []int, extra ...string) error {
	if os.Geteuid() == 0 {
		return errors.New("enter a user namespace: this is root already")
	}
	m, missing := thisHost().mapping()
	if len(missing) > 0 {
		return join(missing)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	toHelper, entered, err := os.Pipe()
	if err != nil {
		return err
	}
	answer, fromHelper, err := os.Pipe()
	if err != nil {
		return err
	}
	helper := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{helperName}, m.args(os.Getpid())...), Env: []string{},
		Stderr: os.Stderr, ExtraFiles: []*os.File{toHelper, fromHelper},
	}
	if err := helper.Start(); err != nil {
		return fmt.Errorf("start the helper that maps ids: %w", err)
	}
	toHelper.Close()
	fromHelper.Close()
	wish := "u"
	if Delegated() == nil {
		wish = "c"
	}
	env := append(append(os.Environ(), extra...), unshareVariable+"="+wish, fmt.Sprintf("%s=%d,%d,%d", linkVariable, answer.Fd(), entered.Fd(), helper.Process.Pid))
	for _, fd := range append([]int{int(answer.Fd()), int(entered.Fd())}, keep...) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return os.NewSyscallError("fcntl F_SETFD", err)
		}
	}
	err = syscall.Exec("/proc/self/exe", os.Args, env)
	entered.Close() // the helper ends at the hang-up
	_ = helper.Wait()
	return os.NewSyscallError("execve /proc/self/exe", err)
}

// args are the helper's: the process, then the two commands without their first argument.
func (m mapping) args(pid int) []string {
	n := min(m.uids.Count, m.gids.Count, maxIDs)
	line := func(program string, own int, first uint32) []string {
		return []string{program, "0", strconv.Itoa(own), "1", "1", strconv.FormatUint(uint64(first), 10), strconv.FormatUint(uint64(n), 10)}
	}
	return append(append([]string{strconv.Itoa(pid)}, line(m.uidmap, os.Getuid(), m.uids.First)...), line(m.gmap, os.Getgid(), m.gids.First)...)
}

// maxIDs are as many as the run's own numbering can use.
const maxIDs = 1 << 24

// help is the helper's life. It is the user's process with the user's rights; newuidmap decides what may be mapped.
func help(args []string) int {
	in, out := os.NewFile(3, "entered"), os.NewFile(4, "answer")
	const each = 7
	if len(args) != 1+2*each || in == nil || out == nil {
		return 2
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return 1 // whoever wanted to enter is gone
	}
	for _, line := range [][]string{args[1 : 1+each], args[1+each:]} {
		cmd := exec.Command(line[0], append([]string{args[0]}, line[1:]...)...) //nolint:gosec // found in folders of root's
		cmd.Env = []string{}
		text, err := cmd.CombinedOutput()
		if err != nil {
			fmt.Fprintf(out, "%s: %v: %.300s", line[0], err, strings.TrimSpace(string(text)))
			return 1
		}
	}
	_, _ = out.WriteString(mapped)
	return 0
}

const mapped = "mapped"

// unshareVariable is what package early looks for.
const unshareVariable = "_AGENTRUN_UNSHARE"

// hasCgroup tells whether this process has entered a cgroup namespace of its own.
func hasCgroup() bool {
	_, cgroup, _ := early.Unshared()
	return cgroup
}

// Arrived must be called first thing in main. Where this process is no stage of Enter's, it does nothing.
func Arrived() error {
	if len(os.Args) > 0 && os.Args[0] == helperName {
		os.Exit(help(os.Args[1:]))
	}
	asked, _, err := early.Unshared()
	_ = os.Unsetenv(unshareVariable)
	link := os.Getenv(linkVariable)
	if link != "" {
		_ = os.Unsetenv(linkVariable)
	}
	if !asked {
		if link != "" && os.Geteuid() != 0 {
			return errors.New("enter a user namespace: this program was linked without what runs before Go does: build it with make build")
		}
		return nil
	}
	if err != nil {
		return &MissingError{"userns", "unshare(2): " + err.Error(), "agentrun doctor names the switches that keep users from it; in a container its seccomp profile may"}
	}
	if err := await(link); err != nil {
		return fmt.Errorf("enter a user namespace: %w", err)
	}
	ids, err := Inside()
	if err == nil && (ids == nil || ids.Sub < MinIDs || os.Geteuid() != 0) {
		err = fmt.Errorf("uid %d with %+v", os.Geteuid(), ids)
	}
	if err != nil {
		return fmt.Errorf("look at the ids of the user namespace: %w", err)
	}
	limitCounts()
	return takeCgroup()
}

// await tells the helper that the namespace is there, and waits for its answer.
func await(link string) error {
	var fds [3]int
	parts := strings.Split(link, ",")
	if len(parts) != len(fds) {
		return fmt.Errorf("no helper is named in %s", linkVariable)
	}
	for i, s := range parts {
		n, err := strconv.Atoi(s)
		if err != nil || n <= 2 {
			return fmt.Errorf("no helper is named in %s", linkVariable)
		}
		fds[i] = n
	}
	answer, entered := os.NewFile(uintptr(fds[0]), "answer"), os.NewFile(uintptr(fds[1]), "entered")
	defer answer.Close()
	_, err := entered.Write([]byte{1})
	entered.Close()
	if err != nil {
		return fmt.Errorf("tell the helper: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(answer, 4096))
	if err != nil {
		return fmt.Errorf("hear the helper: %w", err)
	}
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(fds[2], &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break // it was our child before the exec, and still is
		}
	}
	if string(text) != mapped {
		return fmt.Errorf("map ids: %s", strings.TrimSpace(string(text)))
	}
	return nil
}
