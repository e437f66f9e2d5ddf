// SPDX-License-Identifier: Apache-2.0

package main

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

// killConfig is "kill:" of the configuration file: what is run on the host when a run is killed (H-21).
type killConfig struct {
	Handlers      []hookConfig `yaml:"handlers"`
	Compensations []hookConfig `yaml:"compensations"`

	file string // the configuration's
}

type hookConfig struct {
	Name    string   `yaml:"name"`    // in results and in the audit
	Command []string `yaml:"command"` // the program by absolute path, and its arguments
	Timeout string   `yaml:"timeout"` // empty: 5s, which is also the most
}

const (
	// maxHookTime is H-21's.
	maxHookTime = 5 * time.Second
	// maxHooks of each kind, all of them hanging, leave half of killTime to the kill itself.
	maxHooks = 16
	// maxHookName keeps names readable where they stand.
	maxHookName = 64
)

// killHooks are what a run registers with its kill switch.
type killHooks struct{ handlers, compensations []killHook }

type killHook struct {
	field   string // where it stands
	name    string
	command []string
	limit   time.Duration
}

// hooks checks every value, and that nobody but the operator can choose what is run: the commands, and the file that names them.
func (k killConfig) hooks() (killHooks, error) {
	var h killHooks
	for _, kind := range []struct {
		name string
		from []hookConfig
		to   *[]killHook
	}{{"kill.handlers", k.Handlers, &h.handlers}, {"kill.compensations", k.Compensations, &h.compensations}} {
		if len(kind.from) > maxHooks {
			return h, k.bad(kind.name, fmt.Errorf("%d, at most %d are allowed", len(kind.from), maxHooks), "one program may do several things")
		}
		for i, c := range kind.from {
			hook, err := k.hook(fmt.Sprintf("%s[%d]", kind.name, i), c)
			if err != nil {
				return h, err
			}
			if slices.ContainsFunc(*kind.to, func(other killHook) bool { return other.name == hook.name }) {
				return h, k.bad(hook.field+".name", fmt.Errorf("a second %q", hook.name), "the result of a kill tells them apart by their names")
			}
			*kind.to = append(*kind.to, hook)
		}
	}
	if len(h.handlers)+len(h.compensations) == 0 {
		return h, nil
	}
	if err := sibling.TrustFile(k.file); err != nil {
		return h, k.bad("kill", fmt.Errorf("a file that names programs must be its operator's alone: %w", err), trustHint(err))
	}
	return h, nil
}

func (k killConfig) hook(field string, c hookConfig) (killHook, error) {
	h := killHook{field: field, name: c.Name, command: c.Command, limit: maxHookTime}
	// The spelling of all identifiers; the words of its error are about agents.
	if rings.CheckActionID(c.Name) != nil || len(c.Name) > maxHookName {
		return h, k.bad(field+".name", fmt.Errorf("%.64q is no name", c.Name), fmt.Sprintf("1 to %d letters and digits, between them also . _ : -", maxHookName))
	}
	if c.Timeout != "" {
		d, err := profiles.ParseDuration(c.Timeout)
		if err != nil {
			return h, k.bad(field+".timeout", err, "leave it out for "+shown.Duration(maxHookTime))
		}
		if h.limit = time.Duration(d); h.limit <= 0 || h.limit > maxHookTime {
			return h, k.bad(field+".timeout", fmt.Errorf("%s is not above 0 and at most %s", c.Timeout, shown.Duration(maxHookTime)), "what takes longer belongs into a service of its own, which the command tells; the run is frozen meanwhile")
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

func (k killConfig) bad(field string, err error, hint string) error {
	return hinted.New(fmt.Errorf("configuration %s: %s: %w", k.file, field, err), hint)
}

func trustHint(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "it must be an executable file (the configuration: a file); chown it to root or to yourself, and chmod go-w it and every folder above it"
	}
	return "give the path of a file that is there"
}

// forRun gives the hooks of a run, unless it could change what they are: what it writes in a workspace of root's is root's, so a
// program there would pass every check of owners and modes, and be run on the host.
func (k killConfig) forRun(plan *runtime.Plan) (killHooks, error) {
	h, err := k.hooks()
	if err != nil || len(h.handlers)+len(h.compensations) == 0 {
		return h, err
	}
	return h, k.apart(h, plan.WritableHostPaths())
}

func (k killConfig) apart(h killHooks, writable []string) error {
	at, err := inAny(k.file, writable)
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
	table, err := mounts.Read()
	if err != nil {
		return "", err
	}
	for _, at := range sibling.Through(path) {
		own, _, err := table.Places(at)
		if err != nil {
			return "", err
		}
		for _, in := range list {
			writable, along, err := table.Places(in)
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
