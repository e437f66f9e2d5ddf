// SPDX-License-Identifier: Apache-2.0

package rings

import "strconv"

// Scope says which files are an agent's to work in (H-11); what is shown beside them is only read. The zero value: none.
type Scope string

const (
	ScopeNone   Scope = "none"   // none: the system, the run's folder and its session's are shown read-only, the scratch is memory
	ScopeScoped Scope = "scoped" // the workspace that the operator or the session gave
	ScopeFull   Scope = "full"   // the whole writable root of the sandbox, never the host's
)

// AnyNetwork, as an entry of a network allowlist, stands for every public destination.
const AnyNetwork = "*"

// Constraints is what a ring may use (H-11). This package only says so; the runtime enforces each of them on the
// live process. The zero value allows nothing.
type Constraints struct {
	NetworkAllowed     bool     `json:"network_allowed"`
	NetworkAllowlist   []string `json:"network_allowlist"` // AnyNetwork or the operator's names; an empty one allows nothing
	FilesystemWritable bool     `json:"filesystem_writable"`
	FilesystemScope    Scope    `json:"filesystem_scope"`
	SubprocessAllowed  bool     `json:"subprocess_allowed"`
	MaxConcurrentTools int      `json:"max_concurrent_tools"`
}

// ConstraintsOf returns the ring's row of H-11; Sandbox's for what is no ring. The allowlist of Standard is empty: the
// operator fills it. The original text lets an empty list mean "everything"; here it means nothing, because a list that was
// forgotten, or lost on the way, must not open the network. The slice is the caller's own.
func ConstraintsOf(ring Ring) Constraints {
	switch ring {
	case Root:
		return Constraints{true, []string{AnyNetwork}, true, ScopeFull, true, 32}
	case Privileged:
		return Constraints{true, []string{AnyNetwork}, true, ScopeFull, true, 16}
	case Standard:
		return Constraints{true, []string{}, true, ScopeScoped, true, 8}
	default:
		return Constraints{false, []string{}, false, ScopeNone, false, 4}
	}
}

// Resource is a kind of thing that a ring may be without.
type Resource string

const (
	Network         Resource = "network"          // some destination; which one, the allowlist says
	Filesystem      Resource = "filesystem"       // files of its own to work in, see Scope; to read what is shown takes no resource
	FilesystemWrite Resource = "filesystem_write" // changing them
	Subprocess      Resource = "subprocess"
	ToolExecution   Resource = "tool_execution" // calling a tool, as many at once as MaxConcurrentTools
	Tool            Resource = "tool"           // the same
)

// Known tells whether r is one of the above.
func (r Resource) Known() bool {
	switch r {
	case Network, Filesystem, FilesystemWrite, Subprocess, ToolExecution, Tool:
		return true
	}
	return false
}

// Allows tells whether the constraints leave the resource at all; false for an unknown one.
func (c Constraints) Allows(r Resource) bool {
	switch r {
	case Network:
		return c.NetworkAllowed
	case Filesystem:
		return c.FilesystemScope == ScopeScoped || c.FilesystemScope == ScopeFull
	case FilesystemWrite:
		return c.FilesystemWritable && c.Allows(Filesystem)
	case Subprocess:
		return c.SubprocessAllowed
	case ToolExecution, Tool:
		return c.MaxConcurrentTools > 0
	default:
		return false
	}
}

// ResourceAllowed decides whether the ring has the resource at all (H-11). What is no ring has what Sandbox has; an
// unknown resource is denied to everyone.
func ResourceAllowed(ring Ring, resource Resource) Decision {
	switch {
	case !resource.Known():
		return deny("H-11", CodeUnknownResource, "unknown resource "+strconv.QuoteToASCII(string(resource[:min(len(resource), 32)])))
	case !ConstraintsOf(ring).Allows(resource):
		return deny("H-11", CodeResourceForbidden, ring.OrSandbox().String()+" has no "+string(resource))
	default:
		return allow("H-11", "within the ring's constraints")
	}
}

// lacking lists, of the kinds of resource that actions use, those that required has and ring has not.
func lacking(ring, required Ring) []Resource {
	var missing []Resource
	has, needs := ConstraintsOf(ring), ConstraintsOf(required)
	for _, r := range [...]Resource{Network, Filesystem, Subprocess} {
		if needs.Allows(r) && !has.Allows(r) {
			missing = append(missing, r)
		}
	}
	return missing
}
