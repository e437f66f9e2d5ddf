// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const benchImage = "127.0.0.1:5000/bench:1"

// images times an image's way from a registry to where it can be run, and a start of it. The registry, dockerd and all that pulls are in
// one network namespace, which has but a loopback.
func (b *bench) images() (_ []Row, err error) {
	group := "/" + filepath.Base(b.dir)
	for _, needed := range []string{"dockerd", "docker-registry", "podman"} {
		if _, err := exec.LookPath(needed); err != nil {
			return []Row{{Name: "pulls and starts", NotRun: err.Error(), Optional: true}}, nil
		}
	}
	docker, down, err := b.docker(group)
	defer down()
	if err != nil {
		return nil, err
	}
	within := func(argv ...string) []string {
		return with([]string{"nsenter", "--net=/proc/" + strconv.Itoa(b.dockerd) + "/ns/net"}, argv...)
	}
	podman := func(verb ...string) []string { return within(b.podman(verb...)...) }
	agentrun := func(verb ...string) []string { return within(with([]string{b.agentrun}, verb...)...) }
	defer func() { _ = b.quietly(podman("rm", "-f", "-a")) }()
	ended, err := b.registry(within)
	if err != nil {
		return nil, err
	}
	defer ended()
	file, err := b.imageFile()
	if err != nil {
		return nil, err
	}
	for _, argv := range [][]string{docker("import", file, benchImage), docker("push", benchImage)} {
		if err := b.quietly(argv); err != nil {
			return nil, err
		}
	}
	remove := map[string][]string{
		"agentrun image pull": agentrun("image", "rm", benchImage),
		"podman pull":         podman("rmi", "-f", benchImage),
		"docker pull":         docker("rmi", "-f", benchImage),
	}
	pulls, err := b.raceAfter([]contender{
		{name: "agentrun image pull", argv: agentrun("image", "pull", benchImage), note: "by a confined program; each file's name and content held to limits and digests, on record, on disk"},
		{name: "podman pull", argv: podman("pull", "-q", "--tls-verify=false", benchImage), note: "as it comes", optional: true},
		{name: "docker pull", argv: docker("pull", "-q", benchImage), note: "the command; the work is the daemon's", optional: true},
	}, []reference{{name: "podman pull", label: "podman"}, {name: "docker pull", label: "docker"}}, b.size.pulls, func(c contender) error {
		_ = b.quietly(remove[c.name]) // in the first round there is none, but docker's
		return nil
	})
	if err != nil {
		return pulls, err
	}
	starts, err := b.race([]contender{
		{name: "agentrun exec --image", argv: agentrun("exec", "--no-daemon", "--no-gateway", "--ring", "3", "--image", benchImage, "--", "/bin/true"), note: "ring 3: probed, on record"},
		{
			name: "podman run", note: "no network, its own defaults otherwise; no ring", optional: true,
			argv: podman("run", "--rm", "--network", "none", "--cgroup-parent", group, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", benchImage, "/bin/true"),
		},
		{name: "docker run", argv: docker("run", "--rm", "--network", "none", benchImage, "/bin/true"), note: "the same", optional: true},
	}, []reference{{name: "podman run", label: "podman"}, {name: "docker run", label: "docker"}})
	return append(pulls, starts...), errors.Join(err, b.quietly(agentrun("image", "rm", benchImage)))
}

// registry is Debian's, with a folder of the bench's.
func (b *bench) registry(within func(...string) []string) (ended func(), err error) {
	if err := b.quietly(within("ip", "link", "set", "lo", "up")); err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: \"127.0.0.1:5000\"}\n", filepath.Join(b.disk, "registry"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	argv := within("docker-registry", "serve", file)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for end := time.Now().Add(patience); b.quietly(within("bash", "-c", ": </dev/tcp/127.0.0.1/5000")) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			ended()
			return nil, errors.New("docker-registry doesn't answer")
		}
	}
	return ended, nil
}

// imageFile is a busybox and the host's Python library: some 20 MB in one layer.
func (b *bench) imageFile() (string, error) {
	file, err := b.busybox()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob("/usr/lib/python3.*")
	if err != nil || len(found) == 0 {
		return "", errors.Join(errors.New("no /usr/lib/python3.*"), err)
	}
	return file, b.quietly([]string{"tar", "-C", "/", "-rf", file, found[0][1:]})
}
