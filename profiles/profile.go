// SPDX-License-Identifier: Apache-2.0

package profiles

import "slices"

// Profile is one ring's policy, resolved: what `extends` brought in is already merged. Plain data.
// The json tag is also the key in YAML; the schema and these tags are held in step by a test.
type Profile struct {
	Name        string        `json:"name"`        // as the file's name without .yaml
	Description string        `json:"description"` // one sentence for people
	Abstract    bool          `json:"abstract,omitempty"`
	Extends     string        `json:"extends,omitempty"` // the parent it was merged onto, for display
	Ring        int           `json:"ring,omitempty"`    // 1–3; 0 is "not set", and never a ring for agents (H-12)
	Network     Network       `json:"network,omitzero"`
	Files       Files         `json:"files,omitzero"`
	Subprocess  Subprocess    `json:"subprocess,omitzero"`
	Limits      Limits        `json:"limits,omitzero"`
	Environment Environment   `json:"environment,omitzero"`
	Safety      Safety        `json:"safety,omitzero"`
	OnBreach    OnBreach      `json:"on_breach,omitempty"` // not set: BreachQuarantine
	Syscalls    []SyscallRule `json:"syscalls,omitempty"`  // first match decides
}

// Network says where the proxy may take the agent. The network namespace has only loopback whatever stands here.
type Network struct {
	Mode NetworkMode `json:"mode"`
	Why  string      `json:"why" read:"say why, for whoever reviews this"`
}

// NetworkMode is a closed choice; the zero value is invalid.
type NetworkMode string

// The network modes.
const (
	NetworkNone      NetworkMode = "none"      // the tool proxy's own routes only
	NetworkAllowlist NetworkMode = "allowlist" // and hosts named by the operator
	NetworkPublic    NetworkMode = "public"    // and every public address
)

// Choices implements read.Choice.
func (NetworkMode) Choices() []string { return []string{"none", "allowlist", "public"} }

// Files is the shape of the root view.
type Files struct {
	Root          RootMode      `json:"root,omitempty"`
	Workspace     WorkspaceMode `json:"workspace,omitempty"`
	WorkspaceExec bool          `json:"workspace_exec,omitempty"` // false: noexec, the command itself excepted
	Etc           []EtcEntry    `json:"etc,omitempty"`            // shown read-only where the host has them
	Guard         []GuardEntry  `json:"guard,omitempty"`          // what the host runs later, in a workspace that may be written
	Why           string        `json:"why" read:"say why, for whoever reviews this"`
}

// RootMode is a closed choice; the zero value is invalid.
type RootMode string

// The root modes.
const (
	RootReadonly RootMode = "readonly"
	RootOverlay  RootMode = "overlay" // private upper layer, thrown away unless kept on request
)

// Choices implements read.Choice.
func (RootMode) Choices() []string { return []string{"readonly", "overlay"} }

// WorkspaceMode is a closed choice; the zero value is invalid.
type WorkspaceMode string

// The workspace modes.
const (
	WorkspaceNone WorkspaceMode = "none"
	WorkspaceRO   WorkspaceMode = "ro"
	WorkspaceRW   WorkspaceMode = "rw"
)

// Choices implements read.Choice.
func (WorkspaceMode) Choices() []string { return []string{"none", "ro", "rw"} }

// EtcEntry is a file or folder of the host's /etc that the sandbox sees.
type EtcEntry struct {
	Path string `json:"path"`
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// GuardEntry is a file or folder of a workspace that the host runs later, or that says what is run. See docs/protected-paths.md.
type GuardEntry struct {
	// Path is relative to the workspace. A component * stands for each folder that is there; with GuardTell the
	// last component may be a pattern of path.Match.
	Path string    `json:"path"`
	Mode GuardMode `json:"mode"`
	Why  string    `json:"why" read:"say why, for whoever reviews this"`
}

// GuardMode is a closed choice; the zero value is invalid.
type GuardMode string

// What becomes of a path that the host runs later.
const (
	GuardReadonly GuardMode = "readonly" // what is there can't be changed, what isn't can't be made
	GuardTell     GuardMode = "tell"     // the agent may change it, and that it did is told when the run ends
	GuardOpen     GuardMode = "open"     // neither: how a profile takes an entry of its parent's back
)

// Choices implements read.Choice.
func (GuardMode) Choices() []string { return []string{"readonly", "tell", "open"} }

// Subprocess says whether the agent may have more than one process.
type Subprocess struct {
	Mode  SubprocessMode `json:"mode"`
	Tools []Tool         `json:"tools,omitempty"` // with tools: programs that may be executed besides the command itself
	// OnDemotion says what becomes of the agent's other processes when it loses the right to have them while it lives (M-22).
	// Not set: DemotionKill.
	OnDemotion OnDemotion `json:"on_demotion,omitempty"`
	Why        string     `json:"why" read:"say why, for whoever reviews this"`
}

// OnDemotion is a closed choice. The zero value is DemotionKill.
type OnDemotion string

// What becomes of processes that an agent may no longer have.
const (
	DemotionKill OnDemotion = "kill" // all but the agent's first process end
	DemotionKeep OnDemotion = "keep" // they live on under the new ring's rules, and can make no more
)

// Choices implements read.Choice.
func (OnDemotion) Choices() []string { return []string{"kill", "keep"} }

// OnBreach is a closed choice: what becomes of a run whose refused calls amount to a breach (H-24). Not set: BreachQuarantine.
type OnBreach string

// What follows from a breach. It is on record and told to operators in any case.
const (
	// BreachQuarantine holds the agent, which takes the run into ring 3 and shuts its way out. A run that belongs to no agent, whom an
	// operator could release, ends as policy. Severity critical kills.
	BreachQuarantine OnBreach = "quarantine"
	// BreachFreeze does the same, and the processes stand still until an operator thaws or kills them; a run without an agent is frozen
	// in place of being ended.
	BreachFreeze OnBreach = "freeze"
	// BreachKill holds the agent and kills the run.
	BreachKill OnBreach = "kill"
	// BreachRecord lets the run go on: for those who test what a sandbox refuses.
	BreachRecord OnBreach = "record"
)

// Choices implements read.Choice.
func (OnBreach) Choices() []string { return []string{"quarantine", "freeze", "kill", "record"} }

// SubprocessMode is a closed choice; the zero value is invalid.
type SubprocessMode string

// The subprocess modes.
const (
	SubprocessDeny  SubprocessMode = "deny"  // one process; it may replace itself at its start (wrappers, interpreters)
	SubprocessTools SubprocessMode = "tools" // one process, and nothing but its command and the tools can be executed: held by Landlock
	SubprocessAllow SubprocessMode = "allow"
)

// Choices implements read.Choice.
func (SubprocessMode) Choices() []string { return []string{"deny", "tools", "allow"} }

// Tool is a program inside the sandbox that may replace the agent's process (execve), enforced by path.
type Tool struct {
	Path string `json:"path"`
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// Limits bound one run (M-3). Zero means not set and is refused. The core size is not among them: it is always 0, a core
// dump would leave the sandbox's memory behind on the host.
type Limits struct {
	CPU          float64  `json:"cpu,omitempty"`           // processors, as quota
	Memory       Size     `json:"memory,omitempty"`        // bytes, swap excluded, scratch included
	PIDs         int      `json:"pids,omitempty"`          // processes and threads, pid 1 of the sandbox included
	OpenFiles    int      `json:"open_files,omitempty"`    // RLIMIT_NOFILE, per process
	ScratchSize  Size     `json:"scratch_size,omitempty"`  // bytes of the scratch tmpfs
	MaxOutput    Size     `json:"max_output,omitempty"`    // bytes of stdout and stderr together
	Timeout      Duration `json:"timeout,omitempty"`       // wall clock
	CPUTime      Duration `json:"cpu_time,omitempty"`      // processor time of all processes together ("max compute")
	FileSize     Size     `json:"file_size,omitempty"`     // RLIMIT_FSIZE, bytes of any one file
	LockedMemory Size     `json:"locked_memory,omitempty"` // RLIMIT_MEMLOCK, bytes
	MaxSteps     int      `json:"max_steps,omitempty"`     // tool calls
	Why          string   `json:"why" read:"say why, for whoever reviews this"`
}

// Environment is the agent's environment: nothing of the caller's unless named.
type Environment struct {
	Set  []EnvSet  `json:"set,omitempty"`
	Pass []EnvPass `json:"pass,omitempty"` // taken from the caller where it has them; over Set
}

// EnvSet is a variable with a fixed value.
type EnvSet struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why" read:"say why, for whoever reviews this"`
}

// EnvPass is a variable whose value comes from the caller.
type EnvPass struct {
	Name string `json:"name"`
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// SyscallRule decides calls by name and register values.
type SyscallRule struct {
	Names   []string  `json:"names"`
	Action  Action    `json:"action"`
	Errno   string    `json:"errno,omitempty"`    // a name such as ENOSYS; with ActionNotify it says that the call is no attempt at another ring
	Args    []ArgCond `json:"args,omitempty"`     // all must hold; none: every call
	IfKnown bool      `json:"if_known,omitempty"` // names that the filter library doesn't know are left out: they are unknown numbers then
	Floor   bool      `json:"floor,omitempty"`    // before all others; no profile can loosen it; never allows
	Why     string    `json:"why" read:"say why, for whoever reviews this"`
}

// Action is a closed choice; the zero value is invalid.
type Action string

// The actions.
const (
	ActionAllow  Action = "allow"
	ActionNotify Action = "notify" // the supervisor sees it and decides
	ActionErrno  Action = "errno"  // refused unseen: for what programs ask all the time, and go on without
	ActionKill   Action = "kill"   // the supervisor sees it and kills the process
)

// Choices implements read.Choice.
func (Action) Choices() []string { return []string{"allow", "notify", "errno", "kill"} }

// ArgCond compares one register. Registers are 64 bits wide; where the kernel reads an int, only a masked comparison sees
// what the kernel sees.
type ArgCond struct {
	Index int   `json:"index"` // 0–5
	Op    Op    `json:"op"`
	Value Value `json:"value"`
	Mask  Value `json:"mask,omitzero"` // with OpMaskedEq: the bits compared
}

// Op is a closed choice; the zero value is invalid.
type Op string

// The comparisons.
const (
	OpEq       Op = "eq"
	OpNe       Op = "ne"
	OpMaskedEq Op = "masked_eq" // register & Mask == Value
)

// Choices implements read.Choice.
func (Op) Choices() []string { return []string{"eq", "ne", "masked_eq"} }

// Holds reports whether the condition is true of the registers. An invalid condition holds never.
func (c ArgCond) Holds(args [6]uint64) bool {
	if c.Index < 0 || c.Index >= len(args) {
		return false
	}
	a := args[c.Index]
	switch c.Op {
	case OpEq:
		return a == c.Value.N
	case OpNe:
		return a != c.Value.N
	case OpMaskedEq:
		return a&c.Mask.N == c.Value.N
	}
	return false
}

// Match returns the index of the rule that decides the call, or -1 when none does. It is the meaning of the rules in ten
// lines: the compiled filter is compared against it.
func (p Profile) Match(name string, args [6]uint64) int {
	return slices.IndexFunc(p.Syscalls, func(r SyscallRule) bool {
		return slices.Contains(r.Names, name) &&
			!slices.ContainsFunc(r.Args, func(c ArgCond) bool { return !c.Holds(args) })
	})
}

// Clone returns a copy that shares no memory with p.
func (p Profile) Clone() Profile {
	p.Files.Etc = slices.Clone(p.Files.Etc)
	p.Files.Guard = slices.Clone(p.Files.Guard)
	p.Subprocess.Tools = slices.Clone(p.Subprocess.Tools)
	p.Environment.Set = slices.Clone(p.Environment.Set)
	p.Environment.Pass = slices.Clone(p.Environment.Pass)
	p.Syscalls = slices.Clone(p.Syscalls)
	detachRules(p.Syscalls)
	return p
}

// detachRules copies all names and all conditions into one array each: a copy per rule is 300 allocations in the launch.
func detachRules(rules []SyscallRule) {
	nNames, nArgs := 0, 0
	for _, r := range rules {
		nNames += len(r.Names)
		nArgs += len(r.Args)
	}
	names, args := make([]string, 0, nNames), make([]ArgCond, 0, nArgs)
	for i := range rules {
		r := &rules[i]
		names = append(names, r.Names...)
		r.Names = names[len(names)-len(r.Names) : len(names) : len(names)]
		if len(r.Args) > 0 {
			args = append(args, r.Args...)
			r.Args = args[len(args)-len(r.Args) : len(args) : len(args)]
		}
	}
}
