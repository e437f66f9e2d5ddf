// SPDX-License-Identifier: Apache-2.0

// Package killhooks runs what an operator has configured to be run on the host when a run is killed (H-21): handlers while the run is
// frozen, compensations after. They are programs with the supervisor's rights, so nobody but the operator may choose them: their
// files, and the configuration that names them, must be the operator's alone, and lie where the run can't write.
//
// A hook gets what happened as one JSON object on its standard input, and nothing else of the supervisor's: no descriptor, no
// environment, no folder. It is killed with its process group at its limit.
package killhooks

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"agentrun/internal/hinted"
	"agentrun/internal/mounts"
	"agentrun/internal/shown"
	"agentrun/internal/sibling"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// Config is "kill:" of the configuration file: what is run on the host when a run is killed (H-21).
type Config struct {
	Handlers      []HookConfig `yaml:"handlers"`
	Compensations []HookConfig `yaml:"compensations"`

	File string `yaml:"-"` // the configuration's, by absolute path
}

// HookConfig is one program.
type HookConfig struct {
	Name    string   `yaml:"name"`    // in results and in the audit
	Command []string `yaml:"command"` // the program by absolute path, and its arguments
	Timeout string   `yaml:"timeout"` // empty: 5s, which is also the most
}

const (
	// maxTime is H-21's.
	maxTime = 5 * time.Second
	// maxHooks of each kind, all of them hanging, leave half of its time to the kill itself.
	maxHooks = 16
	// maxName keeps names readable where they stand.
	maxName = 64
)

// Hooks are what a run registers with its kill switch.
type Hooks struct{ handlers, compensations []hook }

type hook struct {
	field   string // where it stands
	name    string
	command []string
	limit   time.Duration
}

// Hooks checks every value, and that nobody but the operator can choose what is run: the commands, and the file that names them.
func (k Config) Hooks() (Hooks, error) {
	var h Hooks
	for _, kind := range []struct {
		name string
		from []HookConfig
		to   *[]hook
	}{{"kill.handlers", k.Handlers, &h.handlers}, {"kill.compensations", k.Compensations, &h.compensations}} {
		if len(kind.from) > maxHooks {
			return h, k.bad(kind.name, fmt.Errorf("%d, at most %d are allowed", len(kind.from), maxHooks), "one program may do several things")
		}
		for i, c := range kind.from {
			one, err := k.check(fmt.Sprintf("%s[%d]", kind.name, i), c)
			if err != nil {
				return h, err
			}
			if slices.ContainsFunc(*kind.to, func(other hook) bool { return other.name == one.name }) {
				return h, k.bad(one.field+".name", fmt.Errorf("a second %q", one.name), "the result of a kill tells them apart by their names")
			}
			*kind.to = append(*kind.to, one)
		}
	}
	if len(h.handlers)+len(h.compensations) == 0 {
		return h, nil
	}
	if err := sibling.TrustFile(k.File); err != nil {
		return h, k.bad("kill", fmt.Errorf("a file that names programs must be its operator's alone: %w", err), trustHint(err))
	}
	return h, nil
}

func (k Config) check(field string, c HookConfig) (hook, error) {
	h := hook{field: field, name: c.Name, command: c.Command, limit: maxTime}
	// The spelling of all identifiers; the words of its error are about agents.
	if rings.CheckActionID(c.Name) != nil || len(c.Name) > maxName {
		return h, k.bad(field+".name", fmt.Errorf("%.64q is no name", c.Name), fmt.Sprintf("1 to %d letters and digits, between them also . _ : -", maxName))
	}
	if c.Timeout != "" {
		d, err := profiles.ParseDuration(c.Timeout)
		if err != nil {
			return h, k.bad(field+".timeout", err, "leave it out for "+shown.Duration(maxTime))
		}
		if h.limit = time.Duration(d); h.limit <= 0 || h.limit > maxTime {
			return h, k.bad(field+".timeout", fmt.Errorf("%s is not above 0 and at most %s", c.Timeout, shown.Duration(maxTime)), "what takes longer belongs into a service of its own, which the command tells; the run is frozen meanwhile")
		}
	}
	if len(c.Command) == 0 || !strings.HasPrefix(c.Command[0], "/") {
		return h, k.bad(field+".command", errors.New("no program by its absolute path"), "command: [/usr/local/sbin/tell-oncall, --urgent]")
	}
	if slices.ContainsFunc(c.Command, func(arg string) bool { return strings.Contains(arg, "\x00") }) {
		return h, k.bad(field+".command", errors.New("a NUL byte can't be passed to a program"), "leave it out")
	}
	if _, err := sibling.Trust(c.Command[0]); err != nil {
		return h, k.bad(field+".command", err, trustHint(err))
	}
	return h, nil
}

func (k Config) bad(field string, err error, hint string) error {
	return hinted.New(fmt.Errorf("configuration %s: %s: %w", k.File, field, err), hint)
}

func trustHint(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "it must be an executable file (the configuration: a file); chown it to root or to yourself, and chmod go-w it and every folder above it"
	}
	return "give the path of a file that is there"
}

// ForRun gives the hooks of a run, unless it could change what they are: what it writes in a workspace of root's is root's, so a
// program there would pass every check of owners and modes, and be run on the host.
func (k Config) ForRun(plan *runtime.Plan) (Hooks, error) {
	h, err := k.Hooks()
	if err != nil || len(h.handlers)+len(h.compensations) == 0 {
		return h, err
	}
	return h, k.apart(h, plan.WritableHostPaths())
}

// apart refuses hooks of which the run could change a part: the file that names them, a program, or what
// stands in its arguments. It is asked for each run, since what a run may write is its plan's; and by the
// mount table, since the same files may be reached by other names.
func (k Config) apart(h Hooks, writable []string) error {
	at, err := inAny(k.File, writable)
	if err != nil {
		return k.bad("kill", err, "the mount table tells whether the run may write this file")
	}
	if at != "" {
		return k.bad("kill", fmt.Errorf("the run may write %s, and with it this file", at), "keep the configuration where no run may write")
	}
	for _, hook := range slices.Concat(h.handlers, h.compensations) {
		for i, arg := range hook.command { // arguments too: sh is trusted, its script may not be
			if !strings.HasPrefix(arg, "/") {
				continue
			}
			if at, err = inAny(arg, writable); err != nil {
				return k.bad(fmt.Sprintf("%s.command[%d]", hook.field, i), err, "the mount table tells whether the run may write it")
			}
			if at != "" {
				return k.bad(fmt.Sprintf("%s.command[%d]", hook.field, i), fmt.Errorf("the run may write %s, and with it %s", at, arg), "keep what is run on the host where no run may write, such as /usr/local/sbin")
			}
		}
	}
	return nil
}

// inAny gives the folder or file of a list that decides what path means, wherever the same files are mounted.
func inAny(path string, list []string) (string, error) {
	var host mounts.View
	places := func(path string) (own, under []mounts.Place, err error) {
		at, err := host.NearestAt(path)
		if err != nil {
			return nil, nil, err
		}
		return host.Places(at)
	}
	for _, at := range sibling.Through(path) {
		own, _, err := places(at)
		if err != nil {
			return "", err
		}
		for _, in := range list {
			writable, along, err := places(in)
			if err != nil {
				return "", err
			}
			for _, w := range append(writable, along...) {
				if slices.ContainsFunc(own, func(p mounts.Place) bool { return p.Within(w) }) {
					return in, nil
				}
			}
		}
	}
	return "", nil
}
