// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	maxRules = 1000 // base has about 140; a filter holds 4096 instructions per program (BPF_MAXINSNS)
	maxName  = 64
)

// report takes what a check finds; the loader adds file and line.
type report func(path, format string, args ...any)

// checkDocument checks what one file says by itself. p holds the file's own lists, not yet merged.
func checkDocument(p Profile, rep report) {
	for i, r := range p.Syscalls {
		checkRule(fmt.Sprintf("syscalls[%d]", i), r, rep)
	}
	if len(p.Syscalls) > maxRules {
		rep("syscalls", "%d rules, at most %d", len(p.Syscalls), maxRules)
	}
	for i, e := range p.Files.Etc {
		checkEtc(fmt.Sprintf("files.etc[%d].path", i), e.Path, rep)
	}
	for i, e := range p.Files.Guard {
		checkGuard(fmt.Sprintf("files.guard[%d]", i), e, rep)
	}
	for i, t := range p.Subprocess.Tools {
		if !cleanAbs(t.Path) {
			rep(fmt.Sprintf("subprocess.tools[%d].path", i), "%q is not a clean absolute path", t.Path)
		}
	}
	for i, e := range p.Environment.Set {
		checkEnvName(fmt.Sprintf("environment.set[%d].name", i), e.Name, rep)
	}
	for i, e := range p.Environment.Pass {
		checkEnvName(fmt.Sprintf("environment.pass[%d].name", i), e.Name, rep)
	}
	unique(p.Files.Etc, "files.etc", func(e EtcEntry) string { return e.Path }, rep)
	unique(p.Files.Guard, "files.guard", func(e GuardEntry) string { return e.Path }, rep)
	unique(p.Subprocess.Tools, "subprocess.tools", func(t Tool) string { return t.Path }, rep)
	unique(p.Environment.Set, "environment.set", func(e EnvSet) string { return e.Name }, rep)
	unique(p.Environment.Pass, "environment.pass", func(e EnvPass) string { return e.Name }, rep)
}

// checkResolved checks the merged profile. An abstract one may leave out anything.
func checkResolved(p Profile, r Ranges, rep report) {
	if p.Description == "" {
		rep("description", "missing")
	}
	if p.Abstract {
		return
	}
	checkRing(p, rep)
	if p.Network.Mode == "" {
		rep("network.mode", "missing")
	}
	if p.Files.Root == "" {
		rep("files.root", "missing")
	}
	if p.Files.Workspace == "" {
		rep("files.workspace", "missing")
	}
	if p.Subprocess.Mode == "" {
		rep("subprocess.mode", "missing")
	}
	if p.Subprocess.Mode != SubprocessTools && len(p.Subprocess.Tools) > 0 {
		rep("subprocess.tools", "only with mode tools: no other mode looks at them")
	}
	if len(p.Syscalls) == 0 {
		rep("syscalls", "missing")
	}
	checkSafety(p.Safety, rep)
	for _, problem := range p.Limits.Check(r) {
		rep(problem.Path, "%s", problem.Message)
	}
}

// checkRing holds a profile to its ring: it may be stricter than the ring, never looser, or "ring 3" in a log would no
// longer mean anything.
func checkRing(p Profile, rep report) {
	switch p.Ring {
	case 0:
		rep("ring", "not set or 0; want 1, 2 or 3: ring 0 is the operator's, no agent runs in it (H-12)")
		return
	case 1, 2, 3:
	default:
		rep("ring", "%d is none of 1, 2, 3", p.Ring)
		return
	}
	if p.Ring >= 2 && p.Network.Mode == NetworkPublic {
		rep("network.mode", "public is for ring 1; this is ring %d", p.Ring)
	}
	if p.Ring >= 2 && p.Files.Root == RootOverlay {
		rep("files.root", "overlay is for ring 1; this is ring %d", p.Ring)
	}
	if p.Ring < 3 {
		return
	}
	if p.Network.Mode == NetworkAllowlist {
		rep("network.mode", "ring 3 has no network but the tool proxy: want none")
	}
	if p.Files.Workspace == WorkspaceRW {
		rep("files.workspace", "rw is for rings 2 and 1; this is ring 3")
	}
	if p.Subprocess.Mode == SubprocessAllow {
		rep("subprocess.mode", "ring 3 has no subprocesses: want deny or tools")
	}
	for _, name := range []string{"execve", "execveat"} {
		if slices.ContainsFunc(p.Syscalls, func(r SyscallRule) bool {
			return r.Action == ActionAllow && slices.Contains(r.Names, name)
		}) {
			rep("syscalls", "a rule allows %s; in ring 3 the supervisor decides it: want notify, and subprocess.tools", name)
			return
		}
	}
	if name := reachesSocketFiles(p); name != "" {
		rep("syscalls", "a rule allows %s for AF_UNIX; ring 3 has stream pairs only: any other unix socket leads to whoever listens in a folder that is shown", name)
	}
}

// reachesSocketFiles names a call by which a profile lets a program get a unix socket that isn't connected for good: all but an end
// of a stream pair (unix(7)). Types and flags are few, so they are tried rather than reasoned about.
func reachesSocketFiles(p Profile) string {
	const stream, packets, cloexec, nonblock = 1, 5, 0o2000000, 0o4000
	for kind := uint64(stream); kind <= packets; kind++ {
		for _, flags := range []uint64{0, cloexec, nonblock, cloexec | nonblock} {
			for _, name := range []string{"socket", "socketpair"} {
				i := p.Match(name, [6]uint64{1, kind | flags})
				if i >= 0 && p.Syscalls[i].Action == ActionAllow && (name == "socket" || kind != stream) {
					return name
				}
			}
		}
	}
	return ""
}

func checkRule(at string, r SyscallRule, rep report) {
	if len(r.Names) == 0 {
		rep(at+".names", "missing")
	}
	for i, name := range r.Names {
		if !KnownSyscall(name) {
			rep(fmt.Sprintf("%s.names[%d]", at, i), "no system call is named %q", name)
		}
		if slices.Contains(r.Names[:i], name) {
			rep(fmt.Sprintf("%s.names[%d]", at, i), "%s is named twice", name)
		}
	}
	_, known := ErrnoValue(r.Errno)
	switch {
	case r.Action == "":
		rep(at+".action", "missing")
	case r.Action == ActionErrno && r.Errno == "":
		rep(at+".errno", "missing: action errno needs one")
	case r.Errno != "" && r.Action != ActionErrno && r.Action != ActionNotify:
		rep(at+".errno", "only with action errno or notify")
	case r.Errno != "" && !known:
		rep(at+".errno", "%q is none of %s", r.Errno, errnoNames())
	case r.Floor && r.Action == ActionAllow:
		rep(at+".floor", "a floor rule can only refuse: want notify, errno or kill")
	}
	for i, c := range r.Args {
		argAt := fmt.Sprintf("%s.args[%d]", at, i)
		checkArg(argAt, c, r.Action, rep)
		if slices.ContainsFunc(r.Args[:i], func(o ArgCond) bool { return o.Index == c.Index }) {
			rep(argAt+".index", "argument %d is compared twice in a rule; one masked_eq can hold both", c.Index)
		}
	}
}

func checkArg(at string, c ArgCond, action Action, rep report) {
	if c.Index < 0 || c.Index > 5 {
		rep(at+".index", "%d is not from 0 to 5", c.Index)
	}
	refuses := action != ActionAllow
	switch {
	case c.Op == "":
		rep(at+".op", "missing")
	case c.Op != OpMaskedEq && c.Mask != Value{}:
		rep(at+".mask", "only with op masked_eq")
	case c.Op == OpMaskedEq && c.Mask.N == 0:
		rep(at+".mask", "missing or zero, which compares nothing")
	case c.Op == OpMaskedEq && c.Value.N&^c.Mask.N != 0:
		rep(at+".value", "%v has bits outside the mask %v: can never match", c.Value, c.Mask)
	// The kernel cuts int arguments to 32 bits after the filter has seen 64 (CVE-2019-10063): a refusal that compares
	// all 64 is passed by setting an upper bit, and so is a permission by "not equal".
	case c.Op == OpEq && refuses:
		rep(at+".op", "eq in a rule that refuses is passed by setting upper bits: want masked_eq with a mask such as 0xffffffff")
	case c.Op == OpNe && !refuses:
		rep(at+".op", "ne in a rule that allows is passed by setting upper bits: refuse the value with masked_eq before")
	}
}

// Never shown, whatever a profile says: users, secrets, addresses, or made up by the sandbox itself (M-2).
var etcForbidden = [...]string{
	"/etc/passwd", "/etc/passwd-", "/etc/group", "/etc/group-", "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-",
	"/etc/subuid", "/etc/subgid", "/etc/sudoers", "/etc/sudoers.d", "/etc/security", "/etc/pam.d", "/etc/ssh", "/etc/ssl/private",
	"/etc/pki/tls/private", "/etc/krb5.keytab", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/nsswitch.conf",
	"/etc/machine-id", "/etc/fstab", "/etc/mtab", "/etc/environment", "/etc/agentrun", "/etc/cron.d", "/etc/gitconfig", "/etc/npmrc",
	"/etc/pip.conf", "/etc/docker", "/etc/kubernetes", "/etc/wireguard", "/etc/NetworkManager", "/etc/netplan", "/etc/apt",
}

func checkEtc(at, p string, rep report) {
	if !cleanAbs(p) || !strings.HasPrefix(p, "/etc/") {
		rep(at, "%q is not a clean path below /etc", p)
		return
	}
	for _, f := range etcForbidden {
		if p == f || strings.HasPrefix(p, f+"/") || strings.HasPrefix(f, p+"/") {
			rep(at, "%s would show %s, which no sandbox sees (M-2)", p, f)
			return
		}
	}
}

// checkGuard wants a path within the workspace: one that leads out of it, or is the whole of it, guards nothing that a profile can mean.
func checkGuard(at string, e GuardEntry, rep report) {
	if e.Mode == "" {
		rep(at+".mode", "missing")
	}
	if e.Path == "" || path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || e.Path == "." || e.Path == ".." || strings.HasPrefix(e.Path, "../") ||
		strings.ContainsRune(e.Path, 0) {
		rep(at+".path", "%q is not a clean path below the workspace, as .git/hooks", e.Path)
		return
	}
	for _, part := range strings.Split(e.Path, "/") {
		if e.Mode == GuardReadonly && part != "*" && strings.ContainsAny(part, `*?[\`) {
			rep(at+".path", "%q: a pattern within a name is for mode tell; what can't be made must be named", e.Path)
		}
		if _, err := path.Match(part, ""); err != nil {
			rep(at+".path", "%q is no pattern: %v", e.Path, err)
		}
	}
}

func checkEnvName(at, name string, rep report) {
	ok := name != "" && len(name) <= maxName && (name[0] < '0' || name[0] > '9')
	for _, c := range []byte(name) {
		ok = ok && (c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !ok {
		rep(at, "%q is not the name of a variable", name)
	}
}

// validName keeps a name from being a path: it comes from the command line and ends up in one.
func validName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '-' || name[0] == '_' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

func cleanAbs(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/"
}

func unique[T any](list []T, at string, key func(T) string, rep report) {
	seen := map[string]bool{}
	for i, e := range list {
		if seen[key(e)] {
			rep(fmt.Sprintf("%s[%d]", at, i), "%s is listed twice", key(e))
		}
		seen[key(e)] = true
	}
}

func errnoNames() string {
	names := make([]string, len(errnos))
	for i, e := range errnos {
		names[i] = e.name
	}
	return strings.Join(names, ", ")
}
