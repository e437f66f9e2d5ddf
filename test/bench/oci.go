// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// oci is `runc run` or `crun run` of the bundle, in the foreground as agentrun is.
func (b *bench) oci(tool, bundle string) contender {
	id := filepath.Base(b.dir) + "-" + tool
	state := filepath.Join(b.dir, tool)
	return contender{
		name: tool + " run", optional: tool == "crun",
		argv: []string{tool, "--root", state, "run", "--bundle", bundle, id},
		note: "the same namespaces, limits and allow list; smaller view of /etc, no Landlock, no probe",
		undo: func() { _ = exec.Command(tool, "--root", state, "delete", "--force", id).Run() },
	}
}

type object = map[string]any

// bundle writes the nearest thing to ring 3 that an OCI runtime can be told. Where the two can't be the
// same, the bundle asks for less: /etc is an empty folder instead of a dozen mounts, system calls that
// ring 3 allows by argument are allowed whole, and nothing is notified. extra are mounts besides the view.
func (b *bench) bundle(command []string, extra ...object) (string, error) {
	return b.bundleWith(command, nil, extra...)
}

// bundleWith changes the configuration before it is written.
func (b *bench) bundleWith(command []string, change func(config object), extra ...object) (string, error) {
	dir, err := os.MkdirTemp(b.dir, "bundle-")
	if err != nil {
		return "", err
	}
	// Mapped root walks through it to the root folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	// Mount points must be there: root of a user namespace may not make them in a folder of ours.
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"usr", "proc", "dev", "tmp", "etc", "opt"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	for _, m := range extra {
		if err := os.WriteFile(filepath.Join(root, m["destination"].(string)), nil, 0o755); err != nil {
			return "", err
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
			return "", err
		}
	}
	allowed, err := b.allowed()
	if err != nil {
		return "", err
	}
	c := b.ociConfig(command, allowed, extra)
	if change != nil {
		change(c)
	}
	config, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// allowed is the allow list of ring 3, from the program itself, so that it can't go stale.
func (b *bench) allowed() ([]string, error) {
	out, _, err := b.output([]string{b.agentrun, "profile", "show", "--json", "ring3"})
	if err != nil {
		return nil, fmt.Errorf("agentrun profile show ring3: %w", err)
	}
	var p struct {
		Syscalls []struct {
			Names  []string
			Action string
		}
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return nil, fmt.Errorf("agentrun profile show ring3: %w", err)
	}
	names := []string{"execve"} // notified in ring 3; here the runtime's own exec needs it
	for _, r := range p.Syscalls {
		if r.Action == "allow" {
			names = append(names, r.Names...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (b *bench) ociConfig(command, allowed []string, extra []object) object {
	var namespaces []object
	for _, t := range []string{"user", "pid", "mount", "network", "ipc", "uts", "cgroup"} {
		namespaces = append(namespaces, object{"type": t})
	}
	ids := []object{{"containerID": 0, "hostID": 100000, "size": 65536}}
	const memory = 256 << 20
	return object{
		"ociVersion": "1.0.2",
		"hostname":   "sandbox",
		"root":       object{"path": "rootfs", "readonly": true},
		"process": object{
			"user": object{"uid": 1000, "gid": 1000}, "args": command, "cwd": "/tmp",
			"env":          []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
			"capabilities": object{}, "noNewPrivileges": true,
			"rlimits": []object{{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}, {"type": "RLIMIT_CORE", "hard": 0, "soft": 0}},
		},
		"mounts": append([]object{
			{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"bind", "ro", "nosuid", "nodev"}},
			{"destination": "/proc", "type": "proc", "source": "proc", "options": []string{"nosuid", "noexec", "nodev", "subset=pid"}},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "noexec", "mode=1777", "size=64m"}},
		}, extra...),
		"linux": object{
			"namespaces": namespaces, "uidMappings": ids, "gidMappings": ids,
			"cgroupsPath": "/" + filepath.Base(b.dir) + "/oci",
			"resources": object{
				"cpu":    object{"quota": 50000, "period": 100000},
				"memory": object{"limit": memory, "swap": memory},
				"pids":   object{"limit": 64},
			},
			"seccomp": object{
				"defaultAction": "SCMP_ACT_ERRNO",
				"syscalls":      []object{{"names": allowed, "action": "SCMP_ACT_ALLOW"}},
			},
		},
	}
}

// removeCgroups removes the groups called name, and what is below, in every hierarchy.
func removeCgroups(name string) error {
	if !strings.HasPrefix(name, "agentrun-bench-") {
		return fmt.Errorf("cgroup %q is not ours", name)
	}
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, err := filepath.Glob(pattern + name)
		errs = append(errs, err)
		for _, top := range groups {
			var at unix.Statfs_t
			if unix.Statfs(top, &at) == nil && at.Type == unix.TMPFS_MAGIC { // podman's, of a controller that this machine doesn't have
				errs = append(errs, os.RemoveAll(top))
				continue
			}
			var dirs []string
			errs = append(errs, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return err
			}))
			for _, d := range slices.Backward(dirs) {
				errs = append(errs, os.Remove(d))
			}
		}
	}
	return errors.Join(errs...)
}
