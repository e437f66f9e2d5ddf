// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// Shape is what of a plan has to be known when a sandbox is built, and is the same for many runs: the root view without the
// workspace, the namespaces, the places of the exit. Command, arguments, environment, limits, filter, Landlock rules, workspace,
// terminal and whose run it is are not in it: a prepared sandbox gets them when it is handed out.
//
// Two plans with equal keys can be given the same prepared sandbox. What a root view shows of the host counts too, by inode and by
// the host's mounts there, so that a sandbox that waited shows what one built now would.
type Shape struct {
	key       string
	workspace bool
	plan      *Plan // what it was taken from, without anything of the run
	of        *Plan // whose it is; nil: nobody's
}

// Key identifies the shape on this node while it runs.
func (s Shape) Key() string { return s.key }

// ErrOwnShape says that a plan asks for something that can only be built for its run alone.
var ErrOwnShape = errors.New("the run brings what only a sandbox built for it can show")

// Shape of a plan; ErrOwnShape for one that no prepared sandbox suits: roots and binds of the operator's, a kept root, a CA of the
// run's own, a single file as workspace.
func (p *Plan) Shape() (Shape, error) {
	if p.custom || p.Keep != "" || p.Exit != nil && p.Exit.CA {
		return Shape{}, ErrOwnShape
	}
	early, late := p.split()
	if len(late) > 0 && (late[0].Target != workspaceDir || late[0].IsFile) {
		return Shape{}, ErrOwnShape
	}
	s, err := shapeOf(p, early, len(late) > 0)
	s.of = p
	return s, err
}

// Kept is the shape without the plan it was taken from, for who keeps it.
func (s Shape) Kept() Shape {
	s.of = nil
	return s
}

// WithWorkspace is the same shape with a place for a workspace, or without.
func (s Shape) WithWorkspace(yes bool) (Shape, error) {
	if s.plan == nil {
		return Shape{}, errors.New("no shape")
	}
	early, _ := s.plan.split()
	early = slices.DeleteFunc(early, func(e fsjail.Entry) bool { return e.Target == workspaceDir })
	return shapeOf(s.plan, early, yes)
}

// split tells the entries that come when the run is known from those before.
func (p *Plan) split() (early, late []fsjail.Entry) {
	for _, e := range p.Entries {
		if e.Kind == fsjail.Bind && (e.Target == workspaceDir || strings.HasPrefix(e.Target, workspaceDir+"/")) {
			late = append(late, e)
		} else {
			early = append(early, e)
		}
	}
	return early, late
}

func shapeOf(p *Plan, early []fsjail.Entry, workspace bool) (Shape, error) {
	if workspace {
		early = append(slices.Clip(early), fsjail.Entry{Kind: fsjail.Dir, Target: workspaceDir, Mode: 0o755, Why: "where the workspace goes when the sandbox is handed out"})
	}
	t := &Plan{
		Ring: p.Ring, UID: p.UID, Hostname: p.Hostname, Namespaces: p.Namespaces, WritableRoot: p.WritableRoot, Entries: early,
		ProcOptions: p.ProcOptions, CgroupMode: p.CgroupMode, Limits: p.Limits, Exit: p.Exit,
	}
	s := Shape{workspace: workspace, plan: t}
	var err error
	s.key, err = t.shapeKey()
	return s, err
}

// shapeKey digests a stripped plan with what its entries are on the host now.
func (p *Plan) shapeKey() (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	c := *p
	c.Limits = PlanLimits{ScratchSize: p.Limits.ScratchSize} // the others are set when it is handed out
	if err := enc.Encode(&c); err != nil {
		return "", fmt.Errorf("digest the shape: %w", err)
	}
	var shown []string
	for _, e := range p.Entries {
		fmt.Fprintf(h, "%q %q\n", e.Target, e.Content) // not part of an entry's JSON
		if e.Kind != fsjail.Bind && e.Kind != fsjail.Overlay {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(e.Source, &st); err != nil {
			return "", fmt.Errorf("stat %s: %w", e.Source, err)
		}
		fmt.Fprintf(h, "%d %d\n", st.Dev, st.Ino)
		shown = append(shown, e.Source)
	}
	mounts, err := mountsBelow(shown)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%q\n", mounts)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// mountsBelow are the host's mounts that a clone of these paths brings along, as mountinfo lists them (proc(5)).
func mountsBelow(paths []string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo") // the main thread's, which is in the host's namespace whatever ours do
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			return lines, s.Err()
		}
		field := strings.Fields(s.Text())
		if len(field) < 5 {
			return nil, fmt.Errorf("mountinfo line %q", s.Text())
		}
		at := unescape(field[4])
		if slices.ContainsFunc(paths, func(p string) bool { return at == p || strings.HasPrefix(at, p+"/") }) {
			lines = append(lines, s.Text())
		}
	}
}
