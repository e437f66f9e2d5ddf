// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strings"

	"agentrun/internal/rootless"
)

// Result is one probe's answer, the row of `agentrun doctor`.
// The JSON names are stable.
type Result struct {
	Name   string `json:"name"`
	Status string `json:"status"` // found, missing, unknown
	Weight string `json:"weight"` // required, degrades, info
	Since  string `json:"since,omitempty"`
	Why    string `json:"why,omitempty"`   // what the probe saw, when not found
	Loses  string `json:"loses,omitempty"` // when not found
	Get    string `json:"get,omitempty"`   // when not found; for info rows when found
}

// Report is everything `agentrun doctor` says.
type Report struct {
	Kernel      string   `json:"kernel"`
	Arch        string   `json:"arch"`
	UID         int      `json:"uid"`
	Cgroups     string   `json:"cgroups"`
	LandlockABI int      `json:"landlock_abi"`
	Usable      bool     `json:"usable"` // no required row is missing or unknown
	Results     []Result `json:"results"`
}

// Probes lists what agentrun uses, most needed first. dir is where workspaces
// live; its file system decides about idmapped mounts.
func Probes(dir string) []*Probe {
	if os.Geteuid() != 0 || rootless.Is() {
		return append([]*Probe{Account, SubordinateIDs, IDMapTools, CgroupDelegation}, kernelProbes(dir)...)
	}
	return append([]*Probe{Root}, kernelProbes(dir)...)
}

func kernelProbes(dir string) []*Probe {
	return []*Probe{
		UserNS, CgroupNS, Seccomp, SeccompNotify, NewMountAPI, Pidfd, Openat2,
		Cgroup("cpu"), Cgroup("memory"), Cgroup("pids"), Cgroup("freezer"), Cgroup("devices"),
		SocketMemory, SocketBuffers, SocketLookup, CgroupKill, TimeNS, ProcSubset, IDMappedMounts(dir), Overlay, OverlayIDMapped,
		Landlock(1), Landlock(3), Landlock(6), SeccompWaitKillable, SeccompSyncWakeUp, CloneIntoCgroup, MemfdNoexec, CapSysResource, InotifyInstances,
		AppArmor, IOUring, IA32, LegacyTIOCSTI, EpollWatches,
	}
}

// All asks every probe.
func All(dir string) []Result {
	probes := Probes(dir)
	results := make([]Result, 0, len(probes))
	for _, p := range probes {
		results = append(results, p.Result())
	}
	return results
}

// Result asks the probe and puts the answer into words.
func (p *Probe) Result() Result {
	r := Result{Name: p.Name, Weight: p.Weight.String(), Since: p.Since, Status: "found"}
	err := p.Check()
	if err == nil {
		if p.Weight == Info {
			r.Get = p.Get
		}
		return r
	}
	r.Status, r.Loses, r.Get = "missing", p.Loses, p.Get
	if errors.Is(err, ErrInconclusive) {
		r.Status = "unknown"
	}
	if p.Weight == Info {
		r.Loses, r.Get = "", ""
	}
	var e *Error
	if errors.As(err, &e) {
		r.Why = e.Why
		if e.Cause != nil {
			r.Why += ": " + e.Cause.Error()
		}
	}
	return r
}

// NewReport probes the host.
func NewReport(dir string) Report {
	abi, _ := LandlockABI()
	r := Report{
		Kernel: Release(), Arch: goruntime.GOARCH, UID: os.Geteuid(),
		Cgroups: Cgroups().String(), LandlockABI: abi, Usable: true, Results: All(dir),
	}
	if ids, err := rootless.Inside(); err == nil && ids != nil {
		r.UID = ids.Own
	}
	for _, row := range r.Results {
		if row.Weight == Required.String() && row.Status != "found" {
			r.Usable = false
		}
	}
	return r
}

// WriteText prints for people: one line per probe, and below each one that is
// not there what is lost and how to get it.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(label, text string) {
		if text != "" {
			fmt.Fprintf(&b, "           %-10s %s\n", label+":", text)
		}
	}
	fmt.Fprintf(&b, "kernel %s %s, cgroups %s, landlock ABI %d, uid %d\n\n", r.Kernel, r.Arch, r.Cgroups, r.LandlockABI, r.UID)
	for _, row := range r.Results {
		since := ""
		if row.Since != "" {
			since = "since Linux " + row.Since
		}
		fmt.Fprintf(&b, "  %-8s %-9s %-28s %s\n", row.Status, row.Weight, row.Name, since)
		if row.Status == "found" {
			continue
		}
		line("saw", row.Why)
		line("without it", row.Loses)
		line("to get it", row.Get)
	}
	if r.Usable {
		b.WriteString("\nagentrun can run here.\n")
	} else {
		b.WriteString("\nagentrun cannot run here: a required row above is not found.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON prints for programs.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
