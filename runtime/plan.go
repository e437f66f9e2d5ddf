// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/internal/hostcaps"
	"agentrun/internal/mounts"
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

// PlanRlimit is one resource limit of setrlimit(2).
type PlanRlimit struct {
	Name    string  `json:"name"`
	Value   uint64  `json:"value"`
	Soft    *uint64 `json:"soft,omitempty"`    // of a container's bundle; nil: as Value
	Clamped bool    `json:"clamped,omitempty"` // the host's hard limit is lower than what the profile gives

	resource int
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

// Missing is a protection that was asked for and that this host can't give.
type Missing struct {
	Name  string `json:"name"`
	Loses string `json:"loses"`
	Why   string `json:"why"`
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
	go learnPlan()
	p.ProfileSum = s.Profile.Digest()
	// The command comes before the host's abilities: "not found" is the error people meet, and needs no
	// privilege to be told.
	p.planWayout(&s)
	if err := p.planView(&s); err != nil {
		return nil, err
	}
	if err := p.planHost(s.BestEffort); err != nil {
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
	return p, p.sum()
}

// learnPlan has the types of a plan looked at for sum, which takes a process' first half a millisecond.
var learnPlan = sync.OnceFunc(func() { _ = new(Plan).sum() })

// sum digests the plan without what differs between two runs of the same thing.
func (p *Plan) sum() error {
	c := *p
	c.ID, c.Parent, c.Cgroup, c.Digest = "", "", "", ""
	b, err := json.Marshal(&c)
	if err != nil {
		return fmt.Errorf("digest the plan: %w", err)
	}
	h := sha256.Sum256(b)
	p.Digest = hex.EncodeToString(h[:])
	return nil
}

// setIDFiles looks for them where the agent may write in the ring it begins in or, with live, in one that it
// is elevated to. What fsjail.LookForSetID says of its bounds holds.
func (p *Plan) setIDFiles(live bool) error {
	for _, e := range p.Entries {
		if p.lookedAtIDs || e.Guard || e.Kind != fsjail.Bind || e.Device || !e.Writable && !(live && e.Live) {
			continue
		}
		if err := fsjail.LookForSetID(e.Source, e.Owner); err != nil {
			return err
		}
	}
	return nil
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

// MissingError names the host's missing abilities that stopped a plan.
type MissingError struct {
	Missing []Missing
	Needed  bool // cannot go on without, whatever is asked for
}

func (e *MissingError) Error() string {
	var names []string
	for _, m := range e.Missing {
		names = append(names, fmt.Sprintf("%s (%s)", m.Name, m.Why))
	}
	return "this host lacks " + strings.Join(names, ", ")
}

// planHost asks what this host can. Without what is needed no run is possible, whatever is asked for; without
// the second kind a run is weaker, which takes the caller's word (best effort), and is told before the run
// and in its status.
func (p *Plan) planHost(bestEffort bool) error {
	needed := []*hostcaps.Probe{
		hostcaps.Root, hostcaps.UserNS, hostcaps.CgroupNS, hostcaps.NewMountAPI, hostcaps.Openat2, hostcaps.Pidfd,
		hostcaps.Seccomp, hostcaps.SeccompNotify,
	}
	weaker, mode := p.planRootless(), hostcaps.Cgroups()
	second := []*hostcaps.Probe{hostcaps.Landlock(1), hostcaps.ProcSubset, hostcaps.SocketBuffers}
	if !p.bare {
		needed = append(needed, hostcaps.CgroupIn(mode, "cpu", "memory", "pids", "freezer", "devices"))
		second = append(second, hostcaps.SocketMemory)
	}
	if p.WritableRoot || p.Overlay || p.layered {
		needed = append(needed, hostcaps.OverlayIDMapped)
	}
	if ms := missing(needed); len(ms) > 0 {
		return &MissingError{ms, true}
	}
	// Walls that have another one behind them: without these a run is weaker, not open.
	p.Missing = append(weaker, missing(second)...)
	if bestEffort {
		if err := p.setIDFiles(true); err != nil {
			p.Missing = append(p.Missing, Missing{"set-id-files", "the run can rewrite programs that the host executes with other rights than their caller's, and the bit stays", err.Error()})
		}
		p.lookedAtIDs = true
	}
	if len(p.Missing) > 0 && !bestEffort {
		return &MissingError{p.Missing, false}
	}
	p.Namespaces = []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}
	if hostcaps.TimeNS.Check() == nil {
		p.Namespaces = append(p.Namespaces, "time")
	}
	if hostcaps.ProcSubset.Check() == nil {
		p.ProcOptions = "subset=pid"
		p.Entries = append(p.Entries, planFacts()...)
	}
	p.CgroupMode = mode.String()
	if abi, err := hostcaps.LandlockABI(); err == nil {
		p.LandlockABI = abi
		p.Landlock = fsjail.Landlock(abi, p.Entries, p.WritableRoot)
		if p.onlyTools() {
			if err := p.narrowExec(); err != nil {
				return err
			}
		}
	} else if p.onlyTools() {
		return &MissingError{[]Missing{{"landlock", "profile " + p.Profile + " allows named programs only, and nothing else can hold execve to them", err.Error()}}, true}
	}
	p.Seccomp.WaitKillable = hostcaps.SeccompWaitKillable.Check() == nil
	return nil
}

func (p *Plan) keeps() bool { return p.OnDemotion == string(profiles.DemotionKeep) }

func (p *Plan) onlyTools() bool { return p.profile.Subprocess.Mode == profiles.SubprocessTools }

// missing asks each probe now: what a kernel or an operator took away since the last run counts.
func missing(probes []*hostcaps.Probe) []Missing {
	var ms []Missing
	for _, probe := range probes {
		if err := probe.Check(); err != nil {
			ms = append(ms, Missing{probe.Name, probe.Loses, err.Error()})
		}
	}
	return ms
}

// planView lists the root view and finds the command in it. The order of entries is that of mounting: of two
// with the same target, or one within the other, the later one is what the agent sees. So the operator's
// binds come after everything of ours and after the workspace, and can't cover what CheckTarget keeps for us.
func (p *Plan) planView(s *Spec) error {
	var err error
	var root []fsjail.Entry
	if s.Rootfs == "" {
		root, err = fsjail.HostRoot()
	} else {
		root, err = p.suppliedRoot(s.Rootfs, s.Image)
	}
	if err != nil {
		return err
	}
	p.Entries = make([]fsjail.Entry, 0, 64) // as many as a view has, as a rule
	for _, e := range root {
		if e.Kind == fsjail.Bind && p.WritableRoot && !e.IsFile {
			e.Kind, e.Why = fsjail.Overlay, "private and writable, changes are thrown away unless kept (ring 1)"
			for _, dir := range s.RootSealed {
				if at := fsjail.ChangesIn(dir, e.Target); isFolder(at) {
					e.Sealed = append(e.Sealed, at)
				}
			}
		}
		p.Entries = append(p.Entries, e)
	}
	if s.Rootfs == "" {
		p.Entries = append(p.Entries, p.etc()...)
	}
	p.Entries = append(p.Entries, devEntries()...)
	p.Entries = append(p.Entries, p.scratch()...)
	binds := len(p.Entries)
	if err := p.planBinds(s); err != nil {
		return err
	}
	p.custom = s.Rootfs != "" || len(s.Binds) > 0 || s.Overlay
	if err := p.planWorkspace(s, binds); err != nil {
		return err
	}
	if err := p.mountPoints(binds); err != nil {
		return err
	}
	pathVar := defaultPath
	for _, kv := range slices.Concat(s.Image.Env, s.Env) {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			pathVar = v
		}
	}
	p.Command, err = p.looks().resolve(s.Command, pathVar)
	view(p.Entries).suggest(err, s.WorkDir)
	if err != nil {
		return err
	}
	if err := p.exceptCommand(); err != nil {
		return err
	}
	switch p.Cwd = s.Cwd; {
	case p.Cwd != "":
		p.Cwd = path.Clean(p.Cwd)
	case p.hasWorkspace():
		p.Cwd = workspaceDir
	case path.Clean("/"+s.Image.Workdir) != "/":
		p.Cwd = path.Clean("/" + s.Image.Workdir)
		if _, info, err := view(p.Entries).host(p.Cwd); err != nil || !info.IsDir() {
			return invalid("--image", "its working directory %.200q is no folder of it; --cwd names another", p.Cwd)
		}
	default:
		p.Cwd = scratchDir
	}
	return nil
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

func (p *Plan) suppliedRoot(dir string, of Image) ([]fsjail.Entry, error) {
	if of.ID != "" {
		entries, err := fsjail.SuppliedRoot(dir)
		if err != nil {
			return nil, invalid("--image", "%v", err)
		}
		for i := range entries {
			entries[i].Why = "the image, read-only"
			if entries[i].Kind == fsjail.Bind && !p.WritableRoot {
				entries[i].Owner = of.Owner
			}
		}
		return entries, nil
	}
	at, err := p.seen.Canonical(dir)
	if err == nil && !at.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, invalid("--rootfs", "%v", err)
	}
	if at.Path == "/" {
		return nil, invalid("--rootfs", "the host's own / would show everything in it; leave the flag out for the default view")
	}
	entries, err := fsjail.SuppliedRoot(at.Path)
	if err != nil {
		return nil, invalid("--rootfs", "%v", err)
	}
	return entries, nil
}

// etc is the synthetic /etc: who the agent is, loopback, and what the profile shows of the host's.
func (p *Plan) etc() []fsjail.Entry {
	file := func(name, content, why string) fsjail.Entry {
		return fsjail.Entry{Kind: fsjail.File, Target: "/etc/" + name, Content: content, Mode: 0o444, Why: why}
	}
	list := []fsjail.Entry{
		{Kind: fsjail.Dir, Target: "/etc", Mode: 0o755, Agent: p.WritableRoot, Why: "synthetic: nothing of the host's users or services (M-2)"},
		file("passwd", fmt.Sprintf("root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:%d:%d:agent:/tmp/sandbox/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", agentID, agentID), "who the agent is"),
		file("group", fmt.Sprintf("root:x:0:\ntty:x:5:\nagent:x:%d:\nnogroup:x:65534:\n", agentID), "who the agent is"),
		file("hosts", "127.0.0.1 localhost "+p.Hostname+"\n::1 localhost\n", "loopback is all there is"),
		file("hostname", p.Hostname+"\n", "the UTS namespace's name"),
		file("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n", "no lookups through host services"),
		// Loopback, where nothing answers until the tool proxy does: a lookup fails at once instead of
		// after a time-out.
		file("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", "names are the proxy's to answer"),
	}
	for _, e := range p.profile.Files.Etc {
		at, err := p.seen.Canonical(e.Path)
		if err != nil {
			continue // optional by definition (docs/profiles.md): a host without it has nothing to show
		}
		list = append(list, fsjail.Entry{
			Kind: fsjail.Bind, Target: e.Path, Source: at.Path, IsFile: !at.IsDir(), Why: e.Why,
		})
	}
	return list
}

func devEntries() []fsjail.Entry {
	list := []fsjail.Entry{{Kind: fsjail.Dir, Target: "/dev", Mode: 0o755, Why: "a few nodes instead of the host's devices"}}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		list = append(list, fsjail.Entry{Kind: fsjail.Bind, Target: "/dev/" + name, Source: "/dev/" + name, Device: true, IsFile: true})
	}
	return append(list,
		fsjail.Entry{Kind: fsjail.Devpts, Target: "/dev/pts", Why: "terminals of its own; the caller's is never inside"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/ptmx", Source: "pts/ptmx"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/fd", Source: "/proc/self/fd"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stdin", Source: "/proc/self/fd/0"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stdout", Source: "/proc/self/fd/1"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stderr", Source: "/proc/self/fd/2"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/shm", Source: scratchDir + "/.shm", Why: "shared memory is scratch memory, with its size limit"},
	)
}

// scratch holds programs where the workspace does and may be written too: what the agent could put there and start, it may as well put
// into /tmp, where compilers, runtimes and installers do. Elsewhere (ring 3, strict) no place is both writable and executable, and none
// becomes so by an elevation: the flag is locked when the user namespace is made, and Landlock gives no execute.
func (p *Plan) scratch() []fsjail.Entry {
	exec := p.profile.Files.Workspace == profiles.WorkspaceRW && p.profile.Files.WorkspaceExec && !p.onlyTools()
	return []fsjail.Entry{
		{Kind: fsjail.Dir, Target: "/proc", Mode: 0o555},
		{Kind: fsjail.Dir, Target: "/tmp", Mode: 0o755},
		{Kind: fsjail.Tmpfs, Target: "/tmp", Size: p.Limits.ScratchSize, Mode: 0o700, Exec: exec, Why: "the scratch: the only writable place of ring 3 (M-2)"},
		{Kind: fsjail.Dir, Target: scratchDir, Mode: 0o700, Agent: true},
		{Kind: fsjail.Again, Target: scratchDir, Source: "/tmp", Exec: exec, Why: "the same tmpfs under its own name; programs that insist on /tmp land in it too"},
		{Kind: fsjail.Dir, Target: HomeDir, Mode: 0o700, Agent: true},
		{Kind: fsjail.Dir, Target: scratchDir + "/.shm", Mode: 0o700, Agent: true},
	}
}

func bindFlag(writable bool) string {
	if writable {
		return "--bind"
	}
	return "--ro-bind"
}

// planBinds takes the operator's folders and files. Of one that may be written, the host's owner stays the
// owner of what the agent makes there. A folder comes before what is shown within it, in whatever order they
// were named: mounted later, it would cover that without a word.
func (p *Plan) planBinds(s *Spec) error {
	var binds []fsjail.Entry
	for _, b := range s.Binds {
		flag := bindFlag(b.Writable)
		refuse := func(err error) error { return invalid(flag, "%v", err) }
		at, err := p.seen.Canonical(b.Source)
		if err != nil {
			return refuse(notThere(b.Source, err))
		}
		if at.Path == "/" {
			return refuse(errors.New("the host's / would show everything in it; name the folder the agent needs"))
		}
		if s.NoLinks && at.Path != b.Source {
			return refuse(fmt.Errorf("%s leads to %s: it was changed since somebody looked", b.Source, at.Path))
		}
		target := b.Target
		if target == "" {
			if target, err = filepath.Abs(b.Source); err != nil {
				return refuse(err)
			}
		}
		if err := fsjail.CheckTarget(target); err != nil {
			return refuse(err)
		}
		if target == workspaceDir && s.Workspace != "" {
			return refuse(errors.New("mount point /workspace is where --workspace goes; choose another, or leave --workspace out"))
		}
		e := fsjail.Entry{
			Kind: fsjail.Bind, Target: target, Source: at.Path, Writable: b.Writable, Exec: true, IsFile: !at.IsDir(),
			Why: "asked for by " + flag,
		}
		if b.Writable {
			e.Owner = &fsjail.Owner{UID: at.UID, GID: at.GID}
		}
		if b.Changes != "" {
			e.Kind, e.Sealed, e.Changes, p.layered = fsjail.Overlay, b.Sealed, b.Changes, true
		}
		i := slices.IndexFunc(binds, func(o fsjail.Entry) bool { return o.Target == target })
		if i >= 0 && (binds[i].Source != e.Source || binds[i].Writable != e.Writable) {
			return refuse(fmt.Errorf("mount point %s is where %s goes already", target, binds[i].Source))
		}
		if i < 0 {
			binds = append(binds, e)
		}
	}
	slices.SortFunc(binds, func(a, b fsjail.Entry) int { return strings.Compare(a.Target, b.Target) })
	p.Entries = append(p.Entries, binds...)
	return nil
}

// mountPoints looks whether the operator's binds, which are the entries from first on and may have the
// workspace before them, have a place: one within a folder of the host's must be there already.
func (p *Plan) mountPoints(first int) error {
	for i := first; i < len(p.Entries); i++ {
		e := p.Entries[i]
		host, within := view(p.Entries[:i]).source(e.Target)
		if _, err := os.Lstat(host); within && !e.Guard && errors.Is(err, fs.ErrNotExist) {
			return invalid(bindFlag(e.Writable), "mount point %s: %s isn't there, and agentrun makes nothing in the host's folders; "+
				"make it first (mkdir, or touch for a file)", e.Target, host)
		}
	}
	return nil
}

func (p *Plan) hasWorkspace() bool {
	return slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Target == workspaceDir || strings.HasPrefix(e.Target, workspaceDir+"/")
	})
}

// planWorkspace puts the workspace, if there is one, among the entries before those from at on.
func (p *Plan) planWorkspace(s *Spec, at int) error {
	mode := p.profile.Files.Workspace
	p.overlayDir = s.OverlayDir
	dir := s.Workspace
	if dir != "" && mode == profiles.WorkspaceNone {
		return invalid("--workspace", "profile %s has none", p.Profile)
	}
	if dir == "" {
		var only string
		var err error
		if dir, only, err = p.implicitWorkspace(s); dir == "" {
			return err
		}
		mode = profiles.WorkspaceRO // nobody offered this folder for writing
		if only != "" {
			return p.addWorkspace(at, only, workspaceDir+"/"+filepath.Base(only), mode, false, s.Environ)
		}
	}
	return p.addWorkspace(at, dir, workspaceDir, mode, s.Workspace != "", s.Environ)
}

// implicitWorkspace is the caller's folder when the command is a file in it and no workspace was
// given, nor a bind that takes its place. Where the folder is somebody's home or the system's, only the file
// itself is shown: a shorthand must not expose keys and mail (M-2).
func (p *Plan) implicitWorkspace(s *Spec) (dir, only string, err error) {
	name := s.Command[0]
	_, bound := view(p.Entries).at(workspaceDir)
	if bound || filepath.IsAbs(name) || p.profile.Files.Workspace == profiles.WorkspaceNone {
		return "", "", nil
	}
	if !strings.Contains(name, "/") {
		if _, found := p.looks().lookPath(name, defaultPath); found {
			return "", "", nil
		}
	}
	file := filepath.Join(s.WorkDir, name)
	info, err := os.Stat(file)
	if err != nil || !strings.HasPrefix(file, s.WorkDir+"/") && s.WorkDir != "/" {
		return "", "", nil // resolve says what is not found
	}
	if !info.Mode().IsRegular() {
		return "", "", &CommandError{Name: name, Reason: file + " is not a regular file"}
	}
	if Private(s.WorkDir, s.Environ) {
		if filepath.Dir(file) != filepath.Clean(s.WorkDir) {
			return "", "", nil
		}
		return s.WorkDir, file, nil
	}
	return s.WorkDir, "", nil
}

// Private says that a folder holds more than one program's files.
func Private(dir string, environ []string) bool {
	dir = filepath.Clean(dir)
	if slices.Contains([]string{"/", "/root", "/home", "/etc", "/var", "/usr", "/tmp", "/run", "/srv", "/opt", "/proc", "/sys", "/dev", "/boot", "/mnt", "/media"}, dir) ||
		filepath.Dir(dir) == "/home" {
		return true
	}
	for _, kv := range environ {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok && filepath.Clean(home) == dir {
			return true
		}
	}
	return false
}

// holdsTheHost says that whoever writes in a folder writes what the host, or its user, runs.
func holdsTheHost(dir string, environ []string) bool {
	return Private(dir, environ) && !slices.Contains([]string{"/tmp", "/srv", "/opt", "/mnt", "/media"}, dir)
}

// notThere says what to do about a host path that isn't there.
func notThere(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s isn't there on this host; make it, or look at its spelling", name)
	}
	return err
}

func (p *Plan) addWorkspace(
	index int, source, target string, mode profiles.WorkspaceMode, offered bool, environ []string,
) error {
	refuse := func(err error) error { return invalid("--workspace", "%v", err) }
	at, err := p.seen.Canonical(source)
	if err != nil {
		return refuse(notThere(source, err))
	}
	own := holdsTheHost(at.Path, environ)
	if own && offered && mode == profiles.WorkspaceRW {
		return refuse(fmt.Errorf("%s is a home or one of the system's folders: the agent could write what others run, and read their keys; "+
			"name the project's folder in it, or show all of it with --bind %s:%s", at.Path, at.Path, target))
	}
	// An elevation opens what was offered by name, and nothing else.
	live := offered && !own && mode == profiles.WorkspaceRO && p.Elevatable() == nil
	if at.Path == "/" {
		return refuse(errors.New("the host's / would show everything in it; name the folder the agent works in"))
	}
	if target == workspaceDir && !at.IsDir() {
		return refuse(fmt.Errorf("%s is not a directory", at.Path))
	}
	e := fsjail.Entry{
		Kind: fsjail.Bind, Target: target, Source: at.Path, Writable: mode == profiles.WorkspaceRW,
		Live: live, Exec: p.profile.Files.WorkspaceExec, IsFile: !at.IsDir(), Owner: &fsjail.Owner{UID: at.UID, GID: at.GID},
		Why: "the workspace; what the agent writes belongs to its owner on the host",
	}
	if p.Overlay {
		e.Kind, e.Why = fsjail.Overlay, "the workspace as it is, under a layer of the run's own, which waits for agentrun apply"
		if p.overlayDir != "" {
			e.Changes, e.Shifting, e.Why = p.overlayDir, true, "the workspace as it is, under a layer of the sandbox's own, which waits for agentrun apply"
		}
	}
	entries := []fsjail.Entry{e}
	if e.Writable && !e.IsFile && !p.Overlay { // one that an elevation may open is guarded when it does
		guards, err := p.guards(e)
		if err != nil {
			return refuse(err)
		}
		entries = append(entries, guards...)
	}
	p.Entries = slices.Insert(p.Entries, index, entries...)
	return nil
}

// exceptCommand lets the command itself be executed from a workspace that is otherwise noexec. In a folder
// that the operator shows within it, it can be anyhow.
func (p *Plan) exceptCommand() error {
	exe := p.Command.Exe
	if p.profile.Files.WorkspaceExec || !strings.HasPrefix(exe, workspaceDir+"/") ||
		slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return e.Exec && strings.HasPrefix(exe+"/", e.Target+"/") }) {
		return nil
	}
	e, ok := view(p.Entries).at(workspaceDir)
	if !ok {
		if i := slices.IndexFunc(p.Entries, func(e fsjail.Entry) bool { return e.Target == p.Command.Exe }); i >= 0 {
			p.Entries[i].Exec = true
		}
		return nil
	}
	source, info, err := view(p.Entries).host(p.Command.Exe)
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("command %s: %w", p.Command.Exe, err)
	}
	p.Entries = append(p.Entries, fsjail.Entry{
		Kind: fsjail.Bind, Target: p.Command.Exe, Source: source, Exec: true, IsFile: true, Owner: e.Owner,
		Why: "the command itself; the rest of the workspace can't be executed",
	})
	return nil
}

// upperSize is the size of the tmpfs behind a writable root and an overlay: the scratch's, as both are the run's memory.
func (p *Plan) upperSize() int64 {
	if !p.WritableRoot && (!p.Overlay || p.overlayDir != "") {
		return 0
	}
	return p.Limits.ScratchSize
}

// planEnv puts the environment together, and what comes later wins: the profile's, ours, the way out's, what
// is passed on from the caller, and last what was said for this run.
func (p *Plan) planEnv(s *Spec) {
	env := map[string]string{}
	for _, kv := range s.Image.Env {
		if k, v, _ := strings.Cut(kv, "="); k != "HOME" && k != "TMPDIR" { // in the image they can't be written
			env[k] = v
		}
	}
	path, ofImage := env["PATH"]
	for _, e := range p.profile.Environment.Set {
		env[e.Name] = e.Value
	}
	if ofImage {
		env["PATH"] = path // where programs are is the root's to say
	}
	env["PATH"] = cmp.Or(env["PATH"], defaultPath)
	env["HOME"] = cmp.Or(env["HOME"], HomeDir)
	env["TMPDIR"] = cmp.Or(env["TMPDIR"], scratchDir)
	env["USER"], env["LOGNAME"] = "agent", "agent"
	env["PWD"] = p.Cwd
	p.wayoutEnv(env)
	pass := func(name string) {
		named := name + "="
		for _, kv := range s.Environ {
			if v, ok := strings.CutPrefix(kv, named); ok {
				env[name] = v
			}
		}
	}
	for _, e := range p.profile.Environment.Pass {
		pass(e.Name)
	}
	for _, name := range s.EnvPass {
		pass(name)
	}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	p.gitConfig(env)
	for k, v := range env {
		p.Env = append(p.Env, k+"="+v)
	}
	slices.Sort(p.Env)
}

// gitConfig has git compare files by time and size. Its index knows the host's uid for each, and the agent is
// shown another: git would read every file of the repository at the first status, and again on the host
// afterwards. Git takes settings from its environment (git-config(1)), so no file is changed; where somebody
// else gives it some that way, theirs alone count.
func (p *Plan) gitConfig(env map[string]string) {
	_, given := env["GIT_CONFIG_COUNT"]
	if given || !slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return e.Owner != nil }) {
		return
	}
	env["GIT_CONFIG_COUNT"], env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"] = "1", "core.checkStat", "minimal"
}

// Pending signals and POSIX timers are counted by user, up through the owners of the namespaces (asOwner): as
// an ordinary user's the counter of all their programs. A single process has no use for many: with 4096 for
// each, 24 runs were all that one user may have.
func pendingSignals(ring int) uint64 {
	if ring >= 3 {
		return 256
	}
	return 1024
}

func (p *Plan) planRlimits(l profiles.Limits, bundle []specs.POSIXRlimit) error {
	want := []PlanRlimit{
		{Name: "core", resource: unix.RLIMIT_CORE}, // 0: a dump would carry the sandbox's memory to the host
		{Name: "nofile", resource: unix.RLIMIT_NOFILE, Value: uint64(l.OpenFiles)},
		{Name: "fsize", resource: unix.RLIMIT_FSIZE, Value: uint64(l.FileSize)},
		{Name: "memlock", resource: unix.RLIMIT_MEMLOCK, Value: uint64(l.LockedMemory)},
		{Name: "stack", resource: unix.RLIMIT_STACK, Value: 8 << 20},
		{Name: "nice", resource: unix.RLIMIT_NICE},
		{Name: "rtprio", resource: unix.RLIMIT_RTPRIO},
		{Name: "msgqueue", resource: unix.RLIMIT_MSGQUEUE, Value: 819200},
		{Name: "sigpending", resource: unix.RLIMIT_SIGPENDING, Value: pendingSignals(p.Ring)},
	}
	want, err := narrowed(want, bundle)
	if err != nil {
		return err
	}
	for _, r := range want {
		var host unix.Rlimit
		if err := unix.Getrlimit(r.resource, &host); err != nil {
			return fmt.Errorf("getrlimit %s: %w", r.Name, err)
		}
		// Raising a hard limit takes CAP_SYS_RESOURCE, which even root may lack; the lower one is the
		// stricter one.
		if host.Max < r.Value {
			r.Value, r.Clamped = host.Max, true
		}
		if r.Soft != nil && *r.Soft >= r.Value {
			r.Soft = nil
		}
		p.Rlimits = append(p.Rlimits, r)
	}
	return nil
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

// Guard is the profile's table of what the host runs later.
func (p *Plan) Guard() []profiles.GuardEntry { return p.profile.Files.Guard }

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
