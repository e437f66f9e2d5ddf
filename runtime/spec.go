// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"crypto/rand"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"agentrun/fsjail"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
)

// BindMount is a host path that the sandbox is to see.
type BindMount struct {
	Source   string // host path
	Target   string // path inside; empty: as on the host
	Writable bool
	// Sealed are layers over Source, and what the agent changes stays in Changes, both as fsjail.Entry has them; then Source isn't changed.
	Sealed  []string
	Changes string
}

// Tmpfs is an empty folder of the run's memory, beside the scratch and confined as that is: programs may be executed in both or in neither.
type Tmpfs struct {
	Target string // path inside
	Size   int64  // in bytes; 0: the scratch's
}

const maxTmpfs = 16 // each is a mount, which the kernel has for every run of the host's

// Spec is what the operator asked for: plain data, nothing of the host looked at. Paths are as the caller
// means them, and not yet resolved; limits are the profile's unless a flag said otherwise. Check tells all
// that is wrong with it without asking the host, so a caller without privilege hears of it too; NewPlan asks
// the host.
type Spec struct {
	Name, Agent, Session string     // identifiers (H-29); may be empty
	Ahead                *HostAhead // looks at the host that were begun before; nil: none were
	Parent               Parent     // the run whose tool this one is; the zero value: none
	Profile              profiles.Profile
	Limits               profiles.Limits // effective: the profile's, with flags applied
	Command              []string
	Env                  []string // K=V of --env, in order, the last wins
	EnvPass              []string // names taken from Environ
	Environ              []string // the caller's environment
	Cwd                  string   // inside; empty: the workspace, or the scratch without one
	Workspace            string   // host folder; empty: none, or the caller's folder if the command is a file there
	Overlay              bool     // the workspace's changes go to a layer of their own (--workspace-mode overlay)
	OverlayDir           string   // with Overlay: that layer is in this folder, of a kept sandbox; empty: it is the run's (Options.Changes)
	WorkDir              string   // the caller's working directory
	Rootfs               string   // host folder used as root; empty: the host's /usr and friends
	Image                Image    // whose root Rootfs is; the zero value: nobody's
	Binds                []BindMount
	Tmpfs                []Tmpfs
	CgroupAbove          string              // another's cgroup whose limits are to hold for the run, too, as a path from the root of the hierarchies; empty: none
	Seccomp              *specs.LinuxSeccomp // of a container's bundle: it holds beside the ring's filter; nil: there is none
	Rlimits              []specs.POSIXRlimit // of a container's bundle: they hold where they are less than the profile's
	Hostname             string              // of a container's bundle; empty: sandbox
	OOMScore             int                 // of a container's bundle: it holds where it is more than the ring's
	NoLinks              bool                // refuse a bind whose source has a link in its path: whoever named it has looked where it leads
	Keep                 string              // ring 1: write what changed in the root to this file (OCI layer, tar)
	RootDir              string              // ring 1: keep what changes in the root in this folder, of a kept sandbox (fsjail.Options.UpperDir)
	RootSealed           []string            // ring 1: folders as RootDir, whose changes nobody changes any more; the uppermost first
	TTY                  bool
	Wayout               bool     // with a way out: the tool proxy (M-7)
	CapturePorts         []uint16 // captured beside 80 and 443
	Dialects             []string // of models that the way out has, beside OpenAI's chat: their clients find it by variables
	WayoutCA             bool     // the way out signs for hosts: the root view trusts the run's own CA (M-8)
	BestEffort           bool     // go on without protections the host can't give, and say which
	Ranges               profiles.NodeRanges
	MostTime             profiles.Duration // that the plan of the run's agent gives it (M-19); 0: as its range
}

// Image is what an image says of its runs. What the profile, the way out and the caller say comes before it.
type Image struct {
	Ref      string   // as it was asked for
	ID       string   // digest of its configuration, and so of all that is in it; empty: there is no image
	Manifest string   // digest of the manifest it came by; empty: it has none
	Env      []string // K=V
	Workdir  string
	Owner    *fsjail.Owner // its user, if that isn't root: the agent is shown as the owner of this user's files
}

// Parent is the live run that a child belongs to: the child's cgroup lies in its parent's, whose limits hold for both (H-15, M-3).
type Parent struct{ ID, Cgroup string }

// InvalidSpec is a Spec that was refused. It lists everything wrong with it, by the flag, as --memory, or the
// path into the profile.
type InvalidSpec struct{ Problems read.Problems }

func (e *InvalidSpec) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.Error()
	}
	return strings.Join(texts, "; ")
}

func invalid(flag, format string, args ...any) error {
	e := &InvalidSpec{}
	e.Problems.Add(flag, format, args...)
	return e
}

// Check reports every field that can't be right whatever the host is.
func (s *Spec) Check() error {
	var ps read.Problems
	bad := ps.Add
	if len(s.Command) == 0 || s.Command[0] == "" {
		bad("command", "missing; put it after --, as in agentrun exec -- agent.py")
	}
	for field, v := range map[string]string{"--name": s.Name, "--agent": s.Agent} {
		if v != "" && rings.CheckAgentID(v) != nil {
			bad(field, "%q is no identifier: letters and digits, with . _ : - between them, at most 256 (H-29)", v)
		}
	}
	if s.Session != "" && rings.CheckSessionID(s.Session) != nil {
		bad("--session", "%q is no session id: letters, digits, _ and -, at most 256 (H-29)", s.Session)
	}
	for _, p := range s.Limits.Check(s.Ranges.Of(s.Profile.Ring)) {
		bad(limitFlag(p.Path), "%s", p.Message)
	}
	checkEnv(&ps, s.Env)
	for _, k := range s.EnvPass {
		if !validEnvName(k) {
			bad("--env-pass", "%q is no variable name", k)
		}
	}
	checkCwd(&ps, s.Cwd)
	s.checkBundle(bad)
	if s.Keep != "" && s.Profile.Files.Root != profiles.RootOverlay {
		bad("--keep", "only a profile with a writable root has changes to keep: ring 1")
	}
	if s.Overlay && s.Profile.Files.Workspace != profiles.WorkspaceRW {
		bad("--workspace-mode", "overlay: profile %s doesn't write its workspace; use a ring that does", s.Profile.Name)
	}
	if s.Overlay && s.Workspace == "" {
		bad("--workspace-mode", "overlay: of which folder? name it with --workspace")
	}
	for _, b := range s.Binds {
		if b.Writable && s.Profile.Files.Workspace != profiles.WorkspaceRW {
			bad("--bind", "profile %s may write nothing of the host's; use --ro-bind %s, or a ring that may write its workspace", s.Profile.Name, b.Source)
		}
	}
	if len(s.Tmpfs) > maxTmpfs {
		bad("--tmpfs", "%d of them, at most %d", len(s.Tmpfs), maxTmpfs)
	}
	for _, t := range s.Tmpfs {
		r := s.Ranges.Of(s.Profile.Ring)
		if why := profiles.Outside(r, "scratch_size", profiles.Size(t.Size), r.ScratchSize); t.Size != 0 && why != "" {
			bad("--tmpfs", "%.200q: %s", t.Target, why)
		} else if t.Size > int64(s.Limits.Memory) { //nolint:gosec // Limits.Check bounds it
			bad("--tmpfs", "%.200q: %v is more than --memory (%v), whose pages it uses", t.Target, profiles.Size(t.Size), s.Limits.Memory) //nolint:gosec // it is positive
		}
	}
	if len(ps) > 0 {
		return &InvalidSpec{ps}
	}
	return nil
}

func checkEnv(ps *read.Problems, env []string) {
	for _, kv := range env {
		if k, _, ok := strings.Cut(kv, "="); !ok || !validEnvName(k) {
			ps.Add("--env", "%q is not NAME=VALUE", kv)
		}
	}
}

func checkCwd(ps *read.Problems, cwd string) {
	if cwd != "" && !strings.HasPrefix(cwd, "/") {
		ps.Add("--cwd", "%q is not an absolute path inside the sandbox", cwd)
	}
}

// limitFlag is the flag that sets a limit, by the limit's path in a profile.
func limitFlag(path string) string {
	if path == "limits.cpu" {
		return "--cpus"
	}
	return "--" + strings.ReplaceAll(strings.TrimPrefix(path, "limits."), "_", "-")
}

func validEnvName(k string) bool {
	return k != "" && strings.IndexFunc(k, func(r rune) bool { return r == '=' || r == 0 || r < ' ' }) < 0
}

// newID is 80 random bits as 16 letters and digits. Ids are never reused, so a stale one can't come to
// mean somebody else's run.
func newID() string {
	return strings.ToLower(rand.Text()[:16])
}
