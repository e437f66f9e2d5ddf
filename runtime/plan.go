// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/internal/mounts"
	"agentrun/internal/thread"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime/internal/stub"
	"agentrun/seccomp"
)

// Places inside a sandbox.
const (
	workspaceDir = "/workspace"
	scratchDir   = "/tmp/sandbox"
	stubPath     = "/.agentrun-init"
	defaultPath  = "/usr/local/bin:/usr/bin:/bin"
)

// What programs inside begin with, unless somebody says otherwise.
const (
	HomeDir     = scratchDir + "/home"
	DefaultPath = defaultPath
)

// PlanLimits are the limits as the mechanisms take them.
type PlanLimits struct {
	CPU         float64           `json:"cpu"`
	Memory      int64             `json:"memory_bytes"`
	PIDs        int64             `json:"pids"`
	Timeout     profiles.Duration `json:"timeout"`
	CPUTime     profiles.Duration `json:"cpu_time"`
	MaxOutput   int64             `json:"max_output_bytes"`
	ScratchSize int64             `json:"scratch_bytes"`
	MaxSteps    int               `json:"max_steps"`
}

// Plan is what will really be applied on this host: a Spec with every host-dependent decision made.
// It is printed by `agentrun plan` and compared with the live process before the agent runs.
//
// From NewPlan on it is read by many at once and doesn't change, but for two things that come before the
// launch: a shape that is given a prepared sandbox sets ID, Cgroup and in (Shape.Use), and taking a shape
// empties what was seen. A ring that changes later changes the run's rights and not its plan.
type Plan struct {
	ID           string                `json:"id,omitempty"` // of this run; not part of the digest
	Name         string                `json:"name,omitempty"`
	Agent        string                `json:"agent,omitempty"`
	Session      string                `json:"session,omitempty"`
	Parent       string                `json:"parent_run_id,omitempty"` // the run whose tool this one is; empty: none (H-15)
	Ring         int                   `json:"ring"`
	Profile      string                `json:"profile"`
	ProfileSum   string                `json:"profile_digest"`
	Command      Command               `json:"command"`
	Cwd          string                `json:"cwd"`
	Env          []string              `json:"env"`
	TTY          bool                  `json:"tty,omitempty"`
	Hostname     string                `json:"hostname"`
	OOMScore     int                   `json:"oom_score_adj,omitempty"` // of a container's bundle; the ring's holds where it is higher
	Namespaces   []string              `json:"namespaces"`
	UID          int                   `json:"uid"` // inside; outside it is one of a range that no other live run has
	Network      string                `json:"network"`
	Wayout       *PlanWayout           `json:"exit,omitempty"`
	Subprocess   bool                  `json:"subprocess"`
	OnDemotion   string                `json:"on_demotion"`      // kill or keep: subprocesses when the run loses the right to have them
	OnBreach     profiles.OnBreach     `json:"on_breach"`        // H-24
	Safety       *profiles.Safety      `json:"safety,omitempty"` // the run's safety loop; nil: none
	Limits       PlanLimits            `json:"limits"`
	Rlimits      []PlanRlimit          `json:"rlimits"`
	WritableRoot bool                  `json:"writable_root,omitempty"`
	Keep         string                `json:"keep,omitempty"`
	RootDir      string                `json:"root_dir,omitempty"`          // what changes in the root stays there
	Overlay      bool                  `json:"workspace_overlay,omitempty"` // changes of the workspace wait for somebody to look at them
	Image        *PlanImage            `json:"image,omitempty"`
	Entries      []fsjail.Entry        `json:"root_view"`
	ProcOptions  string                `json:"proc_options"`
	Landlock     fsjail.LandlockDomain `json:"landlock"`
	LandlockABI  int                   `json:"landlock_abi"`
	Seccomp      PlanSeccomp           `json:"seccomp"`
	Cgroup       string                `json:"cgroup,omitempty"`
	CgroupMode   string                `json:"cgroup_mode"`
	Rootless     bool                  `json:"rootless,omitempty"`     // started by an ordinary user, inside a user namespace of agentrun's
	Missing      []Missing             `json:"missing,omitempty"`      // protections this host can't give; only with --best-effort
	Wider        []string              `json:"wider_ranges,omitempty"` // what the operator's configuration gives above the specification's ranges (M-3)
	Steps        []PlanStep            `json:"steps"`
	Digest       string                `json:"digest"`

	within      string // the parent's cgroup, or the common one in a cgroup of another's; empty: neither
	lookedAtIDs bool   // for set-ID files, and what there is was told; else at the start, and when a folder is opened for writing
	bare        bool   // rootless without a delegated cgroup: the pid namespace is all that holds the run
	shared      bool   // rootless with a writable host folder: the agent has the user's own id
	operator    Limits // chosen for this run; they stay whatever the ring is
	ranges      profiles.NodeRanges
	mostTime    profiles.Duration // of the plan of the run's agent
	profile     profiles.Profile
	filter      seccomp.Filter
	filterSum   [32]byte        // its digest
	bundle      seccomp.Program // of a container's bundle: what the filter lets pass it must let pass, too; empty: there is none
	programs    map[string]bool // mode tools: all that may be executed, by path inside
	layered     bool            // an overlay's changes last, without the root's
	overlayDir  string          // Spec.OverlayDir
	custom      bool            // the root view holds what the operator brought: see Shape
	in          *Prepared       // where it will run; nil: in a sandbox built for it
	seen        mounts.View     // of the host, while it was planned; empty when a shape was taken
}

// PlanImage is the image whose root the run has.
type PlanImage struct {
	Ref      string `json:"reference"`
	ID       string `json:"id"`
	Manifest string `json:"manifest,omitempty"`
}

// PlanSeccomp sums up the filter; `agentrun profile show` lists its rules.
type PlanSeccomp struct {
	Rules        int    `json:"rules"`
	Unlisted     string `json:"unlisted"`
	WaitKillable bool   `json:"wait_killable"`
	Bundle       string `json:"bundle,omitempty"` // digest of the bundle's own filter, which holds beside
}

// PlanStep is one step of the launch, for people.
type PlanStep struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// NewPlan checks the spec against this host. Nothing is started or created. The error is an *InvalidSpec, a
// *CommandError, a *MissingError, or what looking at the host gave.
//
// The parts stand on each other: the view is what the command is looked for in; the host's abilities decide
// what of Landlock there is, whose rules are about the view; the filter comes from the profile alone; the
// digest is last, of all of it. What the plan shows may change until it is mounted: what is mounted is opened
// without following a link, and what was there when it was planned is no promise.
func NewPlan(s Spec) (*Plan, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	p := &Plan{
		ID: newID(), Name: s.Name, Agent: s.Agent, Session: s.Session, Parent: s.Parent.ID, within: s.Parent.Cgroup,
		Ring: s.Profile.Ring, Profile: s.Profile.Name,
		TTY: s.TTY, Hostname: cmp.Or(s.Hostname, "sandbox"), OOMScore: s.OOMScore, UID: agentID,
		Network: string(s.Profile.Network.Mode), Subprocess: s.Profile.Subprocess.Mode == profiles.SubprocessAllow,
		WritableRoot: s.Profile.Files.Root == profiles.RootOverlay, Keep: s.Keep, RootDir: s.RootDir, Overlay: s.Overlay,
		Limits: PlanLimits{
			CPU: s.Limits.CPU, Memory: int64(s.Limits.Memory), PIDs: int64(s.Limits.PIDs),
			Timeout: s.Limits.Timeout, CPUTime: s.Limits.CPUTime,
			MaxOutput: int64(s.Limits.MaxOutput), ScratchSize: int64(s.Limits.ScratchSize), MaxSteps: s.Limits.MaxSteps,
		},
		OnDemotion: cmp.Or(string(s.Profile.Subprocess.OnDemotion), string(profiles.DemotionKill)),
		OnBreach:   cmp.Or(s.Profile.OnBreach, profiles.BreachQuarantine),
		profile:    s.Profile, ranges: s.Ranges, mostTime: cmp.Or(s.MostTime, profiles.NoLimit), operator: operatorLimits(&s),
		Wider: s.Ranges.Of(s.Profile.Ring).Wider(),
	}
	if s.Image.ID != "" {
		p.Image = &PlanImage{s.Image.Ref, s.Image.ID, s.Image.Manifest}
	}
	if s.Profile.Safety.On() {
		p.Safety = &s.Profile.Safety
	}
	if s.CgroupAbove != "" {
		var err error
		if p.within, err = cgroups.Within(s.CgroupAbove, cgroupParent); err != nil {
			return nil, err
		}
	}
	p.Cgroup = p.cgroupOf()
	for _, st := range steps {
		p.Steps = append(p.Steps, PlanStep{st.name, st.why})
	}
	p.ProfileSum = s.Profile.Digest()
	// The command comes before the host's abilities: "not found" is the error people meet, and needs no
	// privilege to be told.
	p.planWayout(&s)
	ahead := s.Ahead
	if ahead == nil {
		ahead = LookAhead()
		if s.Rootfs == "" {
			thread.Beside(func() { _, _ = ahead.root() })
		}
		thread.Beside(func() { _ = ahead.host() })
	}
	if err := p.planView(&s, ahead.root); err != nil {
		return nil, err
	}
	if err := p.planHost(ahead.host, s.BestEffort); err != nil {
		return nil, err
	}
	if err := p.planRlimits(s.Limits, s.Rlimits); err != nil {
		return nil, err
	}
	p.planEnv(&s)
	if err := filters.plan(p); err != nil {
		return nil, err
	}
	if err := p.planBundle(s.Seccomp); err != nil {
		return nil, err
	}
	p.Digest = p.sum()
	return p, nil
}

// sum digests the plan without what differs between two runs of the same thing, and without what its files hold.
func (p *Plan) sum() string {
	c := *p
	c.ID, c.Parent, c.Cgroup, c.Digest = "", "", "", ""
	return digestOf(c, false)
}

// ElevatableNow is Elevatable for one ring, with a look at what would be opened for writing. A private writable root can't be given to a
// live process: it would have to be mounted over folders that are in use, and the process's Landlock domain, which the kernel never
// widens, allows no write there. So ring 1 is for runs that were started with that root: half of a ring would be none (H-11).
func (p *Plan) ElevatableNow(to rings.Ring) error {
	if err := p.Elevatable(); err != nil {
		return err
	}
	if to == rings.Privileged && !p.WritableRoot {
		return errors.New("ring 1 has a private writable root, which is made when a run starts, and this run was started without")
	}
	return p.setIDFiles(true)
}

// MostTime is what the plan that its agent or the operator has gives the run (M-19).
func (p *Plan) MostTime() profiles.Duration { return p.mostTime }

// WithoutValues is the plan for whoever may look at a run and isn't its caller: of the environment the names
// only. Values are the caller's secrets as a rule, and readers of the control API are not the caller.
func (p *Plan) WithoutValues() *Plan {
	c := *p
	c.Env = nil
	for _, kv := range p.Env {
		name, _, _ := strings.Cut(kv, "=")
		c.Env = append(c.Env, name)
	}
	return &c
}

// explain gives a failure inside the sandbox its object: which directory, which rule, which command.
func (p *Plan) explain(err error) error {
	var f *stub.Failure
	if !errors.As(err, &f) {
		return err
	}
	switch f.Step {
	case stub.StepExec:
		e := &CommandError{Name: p.Command.Exe, Reason: f.Errno.Error(), NotFound: f.Errno == unix.ENOENT}
		if f.Errno == unix.ENOEXEC {
			e.Hint = "it has no shebang line and is no program this machine runs"
		}
		return e
	case stub.StepCwd:
		return fmt.Errorf("%w: --cwd %s", err, p.Cwd)
	case stub.StepLandlockPath:
		if f.Index < len(p.Landlock.Rules) {
			return fmt.Errorf("%w: %s", err, p.Landlock.Rules[f.Index].Path)
		}
	}
	return err
}

// Seen is what was seen of the host while the run was planned. Whoever decides about HostPaths decides about
// that.
func (p *Plan) Seen() *mounts.View { return &p.seen }

// WorkspaceOf is the host's folder behind /workspace, and its owner; nil: there is none.
func (p *Plan) WorkspaceOf() (folder string, owner *fsjail.Owner) {
	for _, e := range p.Entries {
		if e.Target == workspaceDir {
			return e.Source, e.Owner
		}
	}
	return "", nil
}

// OverlayChanges is the upper folder of an overlaid workspace in Spec.OverlayDir.
func OverlayChanges(dir string) string { return fsjail.ChangesIn(dir, workspaceDir) }

// Guard is the profile's table of what the host runs later, and of an overlaid workspace, in which nothing is guarded by a mount, also what
// is named there by now: by git's configuration, and by links. What can't be looked at makes all of it risky.
func (p *Plan) Guard() []profiles.GuardEntry {
	table := p.profile.Files.Guard
	folder, _ := p.WorkspaceOf()
	if !p.Overlay || folder == "" {
		return table
	}
	g, err := p.guarding(fsjail.Entry{Target: workspaceDir, Source: folder, Writable: true})
	if err != nil {
		return append(slices.Clip(table), profiles.GuardEntry{Path: "*", Mode: profiles.GuardReadonly, Why: err.Error()})
	}
	for _, e := range g.asked {
		_, _, known := Risky(table, e.Path)
		if !known || strings.HasPrefix(e.Path, gitModules+"/") { // the folders above a submodule's are in no table
			table = append(slices.Clip(table), e)
		}
	}
	return table
}

// HostPaths are the host's files and folders that the root view shows, as they are opened: without symlinks.
func (p *Plan) HostPaths() []string {
	var names []string
	for _, e := range p.Entries {
		if e.Source != "" && !e.Guard && strings.HasPrefix(e.Source, "/") && e.Kind != fsjail.Link && e.Kind != fsjail.Again {
			names = append(names, e.Source)
		}
	}
	return names
}

// WritableHostPaths are those of HostPaths that the agent may write, in the ring it begins in or in one that
// it is elevated to.
func (p *Plan) WritableHostPaths() []string {
	var names []string
	for _, e := range p.Entries {
		switch {
		case e.Changes != "":
			names = append(names, e.Changes)
		case e.Kind == fsjail.Bind && !e.Device && !e.Guard && (e.Writable || e.Live):
			names = append(names, e.Source)
		}
	}
	return names
}
