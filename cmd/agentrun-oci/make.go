// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
)

// keep writes what of a bundle is asked again: what is changed in it after its creation doesn't count, as the specification has it.
func keep(at string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(at, text, 0o600)
}

// make starts the run's supervisor in the container's network namespace, and waits until it is held.
func (r *runtime) make(c *cli.Context, k *container, spec *specs.Spec, words []string) (err error) {
	words = slices.Concat([]string{"exec", "--no-daemon", "--name", k.name(), "--hold", k.socket(), "--hold-for", "3", "--env-fd", "4", "--status-file", k.account()}, words, []string{"--"}, spec.Process.Args)
	words = append([]string{r.program}, words...)
	if r.systemd {
		if words, err = scoped(spec.Linux.CgroupsPath, words); err != nil {
			return err
		}
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = k.Bundle
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if spec.Process.Terminal {
		slave, master, err := terminal(c.String("console-socket"), spec.Process.ConsoleSize)
		if err != nil {
			return err
		}
		defer slave.Close()
		k.master = master
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setctty = true
	}
	tell, err := passed(cmd, spec.Process.Env)
	if err != nil {
		return err
	}
	knows, err := k.begin(cmd, spec)
	go tell()
	if err != nil {
		return err
	}
	defer knows.Close()
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
		}
	}()
	for end := time.Now().Add(createTime); ; time.Sleep(2 * time.Millisecond) {
		if conn, err := k.dial(); err == nil { // and says nothing
			conn.Close()
			break
		}
		select {
		case err := <-k.ended:
			if e, ok := errors.AsType[*exec.ExitError](err); ok && r.systemd && e.ExitCode() == 1 { // none of agentrun's
				return hinted.New(errors.New("--systemd-cgroup: systemd has made no scope"), "journalctl -n 20 tells why")
			}
			return k.refusal(err)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("the run was not ready after %v", createTime)
		}
	}
	return k.made(c, spec, cmd.Process.Pid, knows)
}

// begin starts what waits in a container's place, in its network namespace. It ends by itself if this process does before knows is written
// to: what nobody knows of must not wait for its start for ever.
func (k *container) begin(cmd *exec.Cmd, spec *specs.Spec) (knows *os.File, err error) {
	known, knows, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer known.Close()
	cmd.ExtraFiles = append([]*os.File{known}, cmd.ExtraFiles...)
	if err := inNetwork(spec, cmd.Start); err != nil {
		knows.Close()
		return nil, err
	}
	ended := make(chan error, 1)
	k.ended = ended
	go func() { ended <- cmd.Wait() }()
	return knows, nil
}

// passed adds a descriptor by which a command is told a process' variables, and the function that tells them when it has been started. In a
// command line each user of the host may read them (proc_pid_cmdline(5)), and that of a scope is in systemd's journal.
func passed(cmd *exec.Cmd, env []string) (tell func(), err error) {
	if slices.ContainsFunc(env, func(kv string) bool { return strings.Contains(kv, "\x00") }) {
		return nil, errors.New("process.env: a variable has a zero byte")
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, from)
	return func() {
		from.Close()
		_, _ = io.WriteString(to, strings.Join(variables(env), "\x00")) // one that doesn't listen says why itself
		to.Close()
	}, nil
}

// variables are those of a process that count.
func variables(env []string) (list []string) {
	for _, kv := range env {
		if name, _, ok := strings.Cut(kv, "="); ok && !slices.Contains([]string{"HOME", "TERM"}, name) {
			list = append(list, kv)
		}
	}
	return list
}

// made tells what has been made: the hooks, the folder, the engine, and last the process itself, which ends if nobody comes so far.
func (k *container) made(c *cli.Context, spec *specs.Spec, pid int, knows io.Writer) error {
	k.PID = pid
	k.Start = startOf(k.PID)
	if err := k.hooks(spec, "prestart", "createRuntime"); err != nil {
		return err
	}
	if err := k.save(); err != nil {
		return err
	}
	if err := tellPID(c.String("pid-file"), k.PID); err != nil {
		return err
	}
	_, err := knows.Write([]byte{1})
	return err
}

// tellPID writes an engine's file. It is there whole or not at all, and a link in its place, which whoever owns the folder may have put
// there, is replaced and not followed.
func tellPID(at string, pid int) (err error) {
	if at == "" {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(at), ".agentrun-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	err = errors.Join(err, f.Chmod(0o644), f.Close()) // other users of the engine read it
	if err == nil {
		err = os.Rename(f.Name(), at)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// refusal is why a run was refused, as its account has it.
func (k *container) refusal(ended error) error {
	var s struct {
		Error, Hint string
		ExitCode    int `json:"exit_code"`
	}
	text, err := os.ReadFile(k.account())
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || s.Error == "" {
		return fmt.Errorf("the run was refused: %w", ended)
	}
	// The words by which engines tell 127 and 126 from other failures.
	switch {
	case s.ExitCode == 127 && strings.HasPrefix(s.Error, "command /"):
		s.Error += ": no such file or directory"
	case s.ExitCode == 127:
		s.Error += ": executable file not found in $PATH"
	case s.ExitCode == 126:
		s.Error += ": permission denied"
	}
	return hinted.New(errors.New(s.Error), s.Hint)
}

// inNetwork starts a process in the network namespace that the bundle names, or in a new one, and in ipc and uts namespaces of its own, since
// engines put other containers into this process's (docker run --ipc container:X); this process and the hooks stay in theirs.
func inNetwork(spec *specs.Spec, start func() error) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // ends with its goroutine
		err := enterNetwork(spec)
		if err == nil {
			err = os.NewSyscallError("unshare CLONE_NEWIPC|CLONE_NEWUTS", unix.Unshare(unix.CLONE_NEWIPC|unix.CLONE_NEWUTS))
		}
		if err == nil {
			err = start()
		}
		done <- err
	}()
	return <-done
}

func enterNetwork(spec *specs.Spec) error {
	i := slices.IndexFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
	at := spec.Linux.Namespaces[i].Path // request has looked: there is one
	if at == "" {
		return os.NewSyscallError("unshare CLONE_NEWNET", unix.Unshare(unix.CLONE_NEWNET))
	}
	ns, err := os.Open(at)
	if err != nil {
		return err
	}
	defer ns.Close()
	var own, of unix.Stat_t
	if err := errors.Join(unix.Fstat(int(ns.Fd()), &of), unix.Stat("/proc/self/ns/net", &own)); err != nil {
		return err
	}
	if own.Ino == of.Ino && own.Dev == of.Dev {
		return fmt.Errorf("%w: the host's network namespace", ErrBeyond)
	}
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}

// hooks are run by the host, and are told of the container as the specification has it.
func (k *container) hooks(spec *specs.Spec, kinds ...string) error {
	if spec.Hooks == nil {
		return nil
	}
	of := map[string][]specs.Hook{
		"prestart": spec.Hooks.Prestart, "createRuntime": spec.Hooks.CreateRuntime, "poststart": spec.Hooks.Poststart, "poststop": spec.Hooks.Poststop, //nolint:staticcheck // engines use it
	}
	status := map[string]string{"poststart": "running", "poststop": "stopped"}
	for _, kind := range kinds {
		state, err := json.Marshal(specs.State{
			Version: k.Version, ID: k.ID, Status: specs.ContainerState(cmp.Or(status[kind], "created")), Pid: k.PID, Bundle: k.Bundle, Annotations: k.Annotations,
		})
		if err != nil {
			return err
		}
		for _, h := range of[kind] {
			ctx, cancel := context.WithCancel(context.Background())
			if h.Timeout != nil {
				ctx, cancel = context.WithTimeout(context.Background(), time.Duration(*h.Timeout)*time.Second)
			}
			cmd := exec.CommandContext(ctx, h.Path)
			cmd.Args, cmd.Env, cmd.Dir = h.Args, h.Env, k.Bundle
			if len(h.Args) == 0 {
				cmd.Args = []string{h.Path}
			}
			var said bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(state), &said, &said
			err := cmd.Run()
			cancel()
			if err != nil {
				return fmt.Errorf("%s hook %s: %w: %.300q", kind, h.Path, err, said.String())
			}
		}
	}
	return nil
}
