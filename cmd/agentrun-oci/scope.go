// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// With --systemd-cgroup the cgroups are systemd's, which takes away what others make in its own: it is asked for a scope in the slice that
// the engine names, delegated, for the run's supervisor, and the run's group lies in that. On v2 a group with groups below has no processes
// ("No Internal Process Constraint"), so the supervisor moves to a group of its own in the scope before it begins.

const (
	inScope = "in-scope"
	leaf    = "supervisor"
	groups  = "/sys/fs/cgroup"
)

// bootedBySystemd is sd_booted(3).
func bootedBySystemd() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// unitPart is what of a unit's name needs no escape.
var unitPart = regexp.MustCompile(`^[A-Za-z0-9:_.][A-Za-z0-9:_.\\-]{0,127}$`)

// scoped is a command in the scope that cgroupsPath asks for, "SLICE:PREFIX:NAME" as runc takes it.
func scoped(cgroupsPath string, words []string) ([]string, error) {
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("cgroupsPath %.200q: with --systemd-cgroup want SLICE:PREFIX:NAME", cgroupsPath)
	}
	slice, unit := cmp.Or(parts[0], "system.slice"), parts[2]
	if parts[1] != "" {
		unit = parts[1] + "-" + unit
	}
	if !strings.HasSuffix(slice, ".slice") || !unitPart.MatchString(slice) || !unitPart.MatchString(unit) || strings.HasSuffix(unit, ".slice") {
		return nil, fmt.Errorf("cgroupsPath %.200q: want the names of a slice and of a scope", cgroupsPath)
	}
	program, err := exec.LookPath("systemd-run")
	if err != nil {
		return nil, fmt.Errorf("--systemd-cgroup: %w", err)
	}
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return slices.Concat([]string{
		program, "--quiet", "--scope", "--collect", "--slice=" + slice, "--unit=" + unit + ".scope", "--property=Delegate=yes", "--", own, inScope,
	}, words), nil
}

// enterScope executes agentrun exec, whose run has its cgroup in the scope that this process is in.
func enterScope(c *cli.Context) error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(groups, "cgroup.controllers"))
	v2 := err == nil
	hierarchy := ":name=systemd:"
	if v2 {
		hierarchy = "0::"
	}
	_, at, ok := strings.Cut("\n"+string(text), hierarchy)
	at, _, _ = strings.Cut(at, "\n")
	if !ok || !strings.HasSuffix(at, ".scope") {
		return errors.New("--systemd-cgroup: systemd has made no scope")
	}
	if v2 {
		dir := filepath.Join(groups, at, leaf)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	words := slices.Insert(c.Args().Slice(), 2, "--cgroup-above", at) // after agentrun exec
	return os.NewSyscallError("execve", unix.Exec(words[0], words, os.Environ()))
}
