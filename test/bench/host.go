// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const unknown = "unknown"

// Machine is where a run took place.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Memory     string `json:"memory"`
	Kernel     string `json:"kernel"`
	OS         string `json:"os"`
	Cgroups    string `json:"cgroups"`
	LoadBefore string `json:"load_before"` // the three averages of /proc/loadavg
	LoadAfter  string `json:"load_after"`
}

func machine() Machine {
	m := Machine{
		CPU: valueOf("/proc/cpuinfo", "model name", ":"), Cores: goruntime.NumCPU(),
		Memory: valueOf("/proc/meminfo", "MemTotal", ":"), OS: strings.Trim(valueOf("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Cgroups: "v1", LoadBefore: load(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	if kb, err := strconv.Atoi(strings.TrimSuffix(m.Memory, " kB")); err == nil {
		m.Memory = strconv.FormatFloat(float64(kb)/(1<<20), 'f', 1, 64) + " GiB"
	}
	var fs unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		m.Cgroups = "v2"
	} else if unix.Statfs("/sys/fs/cgroup/unified", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		m.Cgroups = "v1, v2 beside it (hybrid)"
	}
	return m
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); len(f) > 3 {
		return strings.Join(f[:3], " ")
	}
	return unknown
}

// valueOf is the first "key sep value" of a file.
func valueOf(file, key, sep string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, sep); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return unknown
}

// Version is one program that took part.
type Version struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// versions says what exactly was measured. The sum tells whether two runs had the same binary, which a
// commit does not while there are changes on top of it.
func versions(agentrun string) []Version {
	commit := firstLine("git", "rev-parse", "HEAD")
	if commit != unknown && firstLine("git", "status", "--porcelain") != "" {
		commit += ", and changes not committed"
	}
	sum := unknown
	if b, err := os.ReadFile(agentrun); err == nil {
		s := sha256.Sum256(b)
		sum = hex.EncodeToString(s[:])
	}
	return []Version{
		{"commit", commit},
		{"agentrun", firstLine(agentrun, "--version") + ", sha256 " + sum},
		{"bwrap", firstLine("bwrap", "--version")},
		{"runc", firstLine("runc", "--version")},
		{"crun", firstLine("crun", "--version")},
		{"squid", firstLine("/usr/sbin/squid", "-v")},
		{"tinyproxy", firstLine("/usr/bin/tinyproxy", "-v")},
		{"go", goruntime.Version()},
		{"gcc", firstLine("gcc", "--version")},
	}
}

func firstLine(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return unknown
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
