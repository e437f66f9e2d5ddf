// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// enter times a further command in a sandbox that lives: the way of whoever works in one.
func (b *bench) enter() (_ []Row, err error) {
	const run = "bench-enter"
	group := "/" + filepath.Base(b.dir)
	if _, _, err := b.output([]string{b.agentrun, "exec", "-d", "--no-daemon", "--no-gateway", "--name", run, "--ring", "2", "--", "sleep", "600"}); err != nil {
		return nil, err
	}
	defer func() {
		_, _, _ = b.output([]string{b.agentrun, "kill", run})
		_, _, _ = b.output([]string{b.agentrun, "wait", run}) // its supervisor would still write to a folder that is gone
	}()

	bundle, err := b.bundle([]string{"/bin/sleep", "600"})
	if err != nil {
		return nil, err
	}
	runc := b.oci("runc", bundle)
	id := runc.argv[len(runc.argv)-1]
	oci := func(verb ...string) []string { return with(runc.argv[:3], verb...) }
	if err := b.quietly(oci("run", "--detach", "--bundle", bundle, id)); err != nil {
		return nil, err
	}
	defer runc.undo()

	image, err := b.busybox()
	if err != nil {
		return nil, err
	}
	podman := b.podman
	defer func() { _ = b.quietly(podman("rm", "-f", "-a")) }()
	const engineNote = "busybox from an import, no network, its own defaults otherwise; no ring"
	if err = b.quietly(podman("import", image, "bench")); err == nil {
		err = b.quietly(podman("run", "-d", "--name", run, "--network", "none", "--cgroup-parent", group,
			"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "localhost/bench", "sleep", "600"))
	}
	podmans := contender{name: "podman exec", argv: podman("exec", run, "true"), note: engineNote, optional: true}
	if err != nil {
		podmans.run = func(contender) ([]byte, error) { return nil, err }
	}

	docker, down, derr := b.docker(group)
	defer down()
	if derr == nil {
		derr = b.quietly(docker("import", image, "bench"))
	}
	if derr == nil {
		derr = b.quietly(docker("run", "-d", "--name", run, "--network", "none", "bench", "sleep", "600"))
	}
	dockers := contender{name: "docker exec", argv: docker("exec", run, "true"), note: engineNote, optional: true}
	if derr != nil {
		dockers.run = func(contender) ([]byte, error) { return nil, derr }
	}
	return b.race([]contender{
		{name: "agentrun exec --in", argv: []string{b.agentrun, "exec", "--in", run, "--", "/bin/true"}, note: "ring 2: confined and probed as the first, on record"},
		{name: "runc exec", argv: oci("exec", id, "/bin/true"), note: "as runc run above"},
		podmans, dockers,
	}, []reference{{name: "runc exec", label: "runc"}, {name: "podman exec", label: "podman"}, {name: "docker exec", label: "docker"}})
}

// podman has folders of its own.
func (b *bench) podman(verb ...string) []string {
	return with([]string{
		"podman", "--root", filepath.Join(b.disk, "podman"), "--runroot", filepath.Join(b.dir, "podman"),
		"--cgroup-manager", "cgroupfs", "--runtime", "runc",
	}, verb...)
}

// quietly runs what may leave a process behind that keeps its streams.
func (b *bench) quietly(argv []string) error {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	said, err := os.CreateTemp(b.dir, "said-")
	if err != nil {
		return err
	}
	defer os.Remove(said.Name())
	defer said.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stderr = b.dir, b.env, said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("%s: %w: %.300s", argv[0], err, bytes.TrimSpace(text))
	}
	return nil
}

// busybox is a root file system that engines import.
func (b *bench) busybox() (string, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	add := func(h tar.Header, content []byte) {
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	add(tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}, program)
	for _, name := range []string{"true", "sleep"} {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	if err == nil {
		err = w.Close()
	}
	file := filepath.Join(b.dir, "busybox.tar")
	if err == nil {
		err = os.WriteFile(file, text.Bytes(), 0o600)
	}
	return file, err
}

// docker starts a daemon of its own, without networks, that leaves the host's alone.
func (b *bench) docker(group string) (command func(...string) []string, down func(), err error) {
	dir := filepath.Join(b.dir, "docker")
	socket := filepath.Join(dir, "s")
	command = func(verb ...string) []string { return with([]string{"docker", "-H", "unix://" + socket}, verb...) }
	down = func() {}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return command, down, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return command, down, err
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--net", "dockerd", "--data-root", filepath.Join(b.disk, "docker"), "--exec-root", filepath.Join(dir, "exec"),
		"-H", "unix://"+socket, "--pidfile", filepath.Join(dir, "pid"), "--iptables=false", "--ip6tables=false", "--bridge=none", "--cgroup-parent", group)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, b.env, log, log
	if err := cmd.Start(); err != nil {
		return command, down, err
	}
	b.dockerd = cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	down = func() {
		_ = b.quietly(command("rm", "-f", "bench-enter"))
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, _, err = b.output(command("version")); err == nil {
			return command, down, nil
		}
		select {
		case err := <-ended:
			ended <- err
			return command, down, fmt.Errorf("dockerd ended: %w", err)
		default:
		}
		if time.Now().After(end) {
			return command, down, err
		}
	}
}
