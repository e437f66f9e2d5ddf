// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"agentrun/governance"
	"agentrun/internal/shown"
	"agentrun/runtime"
)

// sumUp adds to the account what went by the way out, and beside each refusal the flags that would allow it.
func (s *run) sumUp(status *runtime.Status) {
	if s.broker == nil || s.parent != nil { // a child's calls are its parent's
		return
	}
	s.broker.Account(status)
	for i := range status.GatewayRefused {
		r := &status.GatewayRefused[i]
		r.Hint = allowing(*r, s.plan.Ring)
	}
}

// keepAccount keeps how the run ended for those who ask when it is gone (docs/logs.md). One without an end
// says that the run has begun. What can't be kept is no reason to end a run otherwise: its end is in the
// audit.
func (s *run) keepAccount(status runtime.Status) {
	if s.parent != nil { // its parent's account is the one that is asked for
		return
	}
	text, err := json.Marshal(status)
	if err == nil {
		err = s.node.Outputs().KeepAccount(status.ID, text, s.file.Logs)
	}
	if err != nil {
		s.node.Log.Warn("account of the run", "run", status.ID, "err", err)
	}
}

// tellClosing says what a person wants to know of a run that is over: what it took where somebody watches,
// and what it was refused also where it failed, since that may be why. With --json all of it stands there.
func (s *run) tellClosing(status runtime.Status) {
	watched := s.by.Watched && !s.want.Detach
	failed := status.State != runtime.Exited || status.ExitCode != 0
	if s.want.JSON || s.parent != nil || status.StartedAt.IsZero() || !watched && !failed {
		return
	}
	if watched {
		Tell(s.by.Stderr, usedWords(status), "")
		if words := riskyWords(status); words != "" {
			Tell(s.by.Stderr, words, "look at them before anything on the host runs them (docs/protected-paths.md)")
		}
	}
	if status.ScratchFull {
		Tell(s.by.Stderr, "its scratch was full when it ended", status.Hint)
	}
	if n := len(status.FileConflicts); n > 0 {
		names := make([]string, n)
		for i, name := range status.FileConflicts {
			names[i] = shown.Line(name)
		}
		Tell(s.by.Stderr, "written by another run of the session at the same time: "+listed(names), "")
	}
	if words := refusedWords(status); words != "" {
		Tell(s.by.Stderr, words, spawnHint(status))
	}
	if words, hint := connectionWords(status.GatewayRefused); words != "" {
		Tell(s.by.Stderr, words, hint)
	}
}

func usedWords(s runtime.Status) string {
	words := []string{
		"ran " + took(s.WallTime),
		"cpu " + took(s.CPUTime),
		fmt.Sprintf("memory at most %d MiB", (s.PeakMemory+1<<20-1)>>20),
	}
	if s.FilesChanged > 0 {
		words = append(words, counted(int64(s.FilesChanged), "file")+" changed")
	}
	if s.ToolCalls > 0 {
		words = append(words, counted(s.ToolCalls, "call"))
	}
	if s.Tokens > 0 {
		words = append(words, counted(s.Tokens, "token"))
	}
	if s.Cost > 0 {
		words = append(words, "cost "+governance.FormatAmount(s.Cost))
	}
	return strings.Join(words, ", ")
}

// riskyWords tells which files that the host runs later the run has left changed. The names are the agent's.
func riskyWords(s runtime.Status) string {
	if len(s.RiskyFiles) == 0 {
		if s.RiskyMore {
			return "not all of the workspace was looked at for what the host runs"
		}
		return ""
	}
	names := make([]string, len(s.RiskyFiles))
	for i, name := range s.RiskyFiles {
		names[i] = shown.Line(name)
	}
	words := "changed in the workspace, and run by the host: " + listed(names)
	if s.RiskyMore {
		words += "; more weren't looked at"
	}
	return words
}

func took(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// maxNamed is how many of a kind a line names.
const maxNamed = 5

// refusedWords tells which system calls and tools were refused.
func refusedWords(s runtime.Status) string {
	var names []string
	most := slices.SortedFunc(maps.Keys(s.Refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Refused[b], s.Refused[a]), strings.Compare(a, b))
	})
	for _, call := range most {
		names = append(names, fmt.Sprintf("%s %d", call, s.Refused[call]))
	}
	var parts []string
	if len(names) > 0 {
		parts = append(parts, "system calls "+listed(names))
	}
	names = nil
	for _, r := range s.GatewayRefused {
		if !isConnection(r) {
			names = append(names, fmt.Sprintf("%s (%s) %d", r.Name, r.Code, r.Count))
		}
	}
	if len(names) > 0 {
		parts = append(parts, "tools and models "+listed(names))
	}
	if len(parts) == 0 {
		return ""
	}
	return "refused: " + strings.Join(parts, "; ")
}

// spawnHint is the way out of the most frequent refusal: ring 3 starts no programs (H-11).
func spawnHint(s runtime.Status) string {
	for _, call := range []string{"clone", "clone3", "fork", "vfork", "execve", "execveat"} {
		if s.Ring == 3 && s.Refused[call] > 0 {
			return "--ring 2 lets it start programs"
		}
	}
	return ""
}

// connectionWords tells which connections were refused, and the flags that would have allowed them. The
// programs themselves say little: npm nothing, git "could not resolve host".
func connectionWords(all []runtime.GatewayRefusal) (words, hint string) {
	var n int64
	var names []string
	flags := &flagList{}
	for _, r := range all {
		// A name that doesn't resolve, and is then asked for by the proxy, is one thing to a person.
		known := func(o runtime.GatewayRefusal) bool { return o.Kind == "egress" && hostOf(o.Name) == r.Name }
		if !isConnection(r) || r.Kind == "dns" && slices.ContainsFunc(all, known) {
			continue
		}
		n += r.Count
		names = append(names, fmt.Sprintf("%s (%s)", r.Name, r.Code))
		if len(names) <= maxNamed {
			flags.add(r.Hint)
		}
	}
	if n == 0 {
		return "", ""
	}
	return counted(n, "connection") + " refused: " + listed(names), flags.String()
}

func isConnection(r runtime.GatewayRefusal) bool { return r.Kind == "egress" || r.Kind == "dns" }

func counted(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func listed(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// flagList has each flag with its value once, in the order in which they came.
type flagList struct{ flags []string }

func (l *flagList) add(hint string) {
	words := strings.Fields(hint)
	for i := 0; i+1 < len(words); i += 2 {
		if f := words[i] + " " + words[i+1]; !slices.Contains(l.flags, f) {
			l.flags = append(l.flags, f)
		}
	}
}

func (l *flagList) String() string { return strings.Join(l.flags, " ") }

// allowing returns the flags that would allow what was refused; empty: no flag does, or what was asked for
// is no name that could stand on a command line. The name is the agent's: whoever follows the hint decides
// about it.
func allowing(r runtime.GatewayRefusal, ring int) string {
	host, port := hostOf(r.Name), ""
	if isConnection(r) && host != r.Name {
		_, port, _ = net.SplitHostPort(r.Name)
	}
	flag := allowFlag(host, port)
	if !isConnection(r) || flag == "" {
		return ""
	}
	switch r.Code {
	case "not_listed", "port_not_listed", "name_not_allowed", "special_name", "ring_has_no_egress":
	case "private_address", "own_address": // the name, and the address that it leads to (M-8)
		second := allowFlag(r.Address, port)
		if second == "" {
			return ""
		}
		if second != flag {
			flag += " " + second
		}
	default:
		return ""
	}
	if ring > 2 {
		flag = "--ring 2 " + flag
	}
	return flag
}

// allowFlag lets out to a host or an address. Without a port 80 and 443 are meant.
func allowFlag(host, port string) string {
	addr, err := netip.ParseAddr(host)
	named := strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") == "" && !strings.HasPrefix(host, "-")
	switch {
	case host == "" || strings.Trim(port, "0123456789") != "" || err != nil && !named:
		return ""
	case addr.Zone() != "": // which may be any text
		return ""
	case port == "" || port == "80" || port == "443":
		return "--allow " + host
	case err == nil && addr.Is6():
		return "--allow '[" + host + "]:" + port + "'"
	}
	return "--allow " + host + ":" + port
}

func hostOf(name string) string {
	if host, _, err := net.SplitHostPort(name); err == nil {
		return host
	}
	return name
}
