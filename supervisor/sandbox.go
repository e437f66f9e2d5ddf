// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor/homes"
	"agentrun/supervisor/sandboxes"
)

// Sandboxes is the folder of what outlives its runs.
func (n *Node) Sandboxes() sandboxes.Folder { return sandboxes.Folder{StateDir: n.StateDir} }

// showSandbox has the run keep its root where its profile has one of its own, and gives it the variables that a start has beside its command line.
func (s *run) showSandbox() []read.Problem {
	name := s.want.Sandbox
	if name == "" {
		return nil
	}
	if err := sandboxes.CheckName(name); err != nil {
		return []read.Problem{{Path: "sandbox", Message: err.Error()}}
	}
	if s.want.Home != "" {
		return []read.Problem{{Path: "--home", Message: "a kept sandbox has a home of its own"}}
	}
	if err := s.loadSandbox(); err != nil {
		return nil // told when it is taken, by which way out there is
	}
	if s.want.Draft == nil { // create has them in its request
		_, variables := s.kept.Exec()
		s.spec.Env = slices.Concat(variables, s.spec.Env)
	}
	s.asked.Again = s.kept.Restarts > 0
	if s.spec.Profile.Files.Root == profiles.RootOverlay {
		s.spec.RootDir, s.spec.RootSealed = s.keptIn.Root(s.kept), s.keptIn.SealedRoots(s.kept)
	}
	if s.spec.Overlay {
		s.spec.OverlayDir = s.keptIn.Workspace(s.kept)
	}
	return nil
}

// loadSandbox finds out what the run would have, of one that is about to be made too.
func (s *run) loadSandbox() (err error) {
	if s.want.Draft != nil {
		s.kept = *s.want.Draft
	} else {
		s.kept, err = s.node.Sandboxes().Load(s.want.Sandbox)
	}
	if err == nil {
		s.keptIn.StateDir, err = filepath.EvalSymlinks(s.node.StateDir) // nothing that is mounted has a link in its path
	}
	return err
}

// takeSandbox keeps every other run from it.
func (s *run) takeSandbox() (err error) {
	name := s.want.Sandbox
	if name == "" {
		return nil
	}
	// Nobody of a run whose supervisor was killed may still write what this one mounts.
	if err = s.node.settle(s.ctx); err == nil {
		s.sandbox, err = s.node.Sandboxes().Take(name)
	}
	if err == nil && (!s.sandbox.Wanted || s.sandbox.Frozen) {
		err = errNotWanted
	}
	if err == nil && s.sandbox.Layer != s.kept.Layer {
		err = errors.New("it was changed meanwhile; start it again")
	}
	for _, dir := range []string{s.spec.RootDir, s.spec.OverlayDir} {
		if err == nil && dir != "" {
			err = os.MkdirAll(dir, 0o700)
		}
	}
	_, over := errors.AsType[*homes.OverQuotaError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandboxes.ErrBusy):
		err = hinted.New(err, "agentrun exec --in "+name+" runs a further command in it")
	case errors.Is(err, sandboxes.ErrNone):
		err = hinted.New(err, "agentrun ps --all lists those there are; agentrun create makes one")
	case over, errors.Is(err, homes.ErrTooDeep):
		hint := "make room below " + s.node.Sandboxes().Of(name) + ", or agentrun rm " + name
		if s.spec.OverlayDir != "" {
			hint += "; agentrun discard " + name + " throws away what it changed in its workspace"
		}
		err = hinted.New(err, hint)
	}
	return fmt.Errorf("sandbox %s: %w", name, err)
}

func (s *run) leaveSandbox() { s.sandbox.Close() }

// begins notes which run has the sandbox.
func (s *run) begins() error {
	if s.sandbox == nil {
		return nil
	}
	// An agent that may write above a folder could have put a link in its place. Who named a link has it lead where it does by now.
	_, now := leads(s.plan, s.want)
	for i, at := range s.kept.Leads {
		if i < len(now) && at != "" && at != now[i] {
			return hinted.New(fmt.Errorf("sandbox %s: %s, which it was created with, leads to %s by now", s.want.Sandbox, at, now[i]),
				"put the folder back; a sandbox that was created with a link follows it")
		}
	}
	_, err := s.node.Sandboxes().Change(s.want.Sandbox, func(k *sandboxes.Sandbox) error {
		k.Run, k.Began, k.Changed, k.Overlay = s.plan.ID, time.Now(), true, s.plan.Overlay
		return nil
	})
	return err
}

// leads gives the workspace and the binds that were asked for, in order: their names, and where they lie without links.
func leads(plan *runtime.Plan, r *Request) (names, at []string) {
	folder, _ := plan.WorkspaceOf()
	names, at = []string{r.Workspace}, []string{folder}
	for _, b := range r.Binds {
		target := b.Target
		if target == "" {
			target, _ = filepath.Abs(b.Source)
		}
		source := ""
		for _, e := range plan.Entries {
			if e.Target == target && !e.Guard {
				source = e.Source
			}
		}
		names, at = append(names, b.Source), append(at, source)
	}
	return names, at
}

// straight is where those lie that were named without a link on the way.
func straight(names, at []string) []string {
	for i, name := range names {
		if abs, err := filepath.Abs(name); err != nil || abs != at[i] {
			at[i] = ""
		}
	}
	return at
}

// notAgain notes that the run is about to be killed before it is: who comes after a supervisor that dies in the middle, perhaps by the same
// hand, must not start it again.
func (s *run) notAgain() error {
	_, err := s.node.Sandboxes().Change(s.want.Sandbox, func(k *sandboxes.Sandbox) error {
		k.Wanted = k.Wanted && k.Run != s.plan.ID
		return nil
	})
	return err
}

// stands notes whether the run stands still by an operator's word, for a breach or a safety loop.
func (s *run) stands(still bool) error { return s.node.Sandboxes().Freeze(s.want.Sandbox, still) }

// heard notes that somebody else than the sandbox's operator ends the run: the supervisor is ending, and starts none.
func (s *run) heard(from <-chan os.Signal) <-chan os.Signal {
	if s.want.Sandbox == "" {
		return from
	}
	to := make(chan os.Signal, cap(from))
	go func() {
		for {
			select {
			case sig := <-from:
				if sig != syscall.SIGWINCH {
					s.told.Store(true)
				}
				select {
				case to <- sig:
				default: // as signal.Notify does
				}
			case <-s.ctx.Done():
				return
			}
		}
	}()
	return to
}

// Back-off between the end of a run and the next of its sandbox.
const (
	firstBackOff = time.Second
	mostBackOff  = time.Minute
	// lasted is how long a run lives that wasn't started in vain: the next back-off is the first again.
	lasted = time.Minute
	// backOffLook is how often whoever waits looks whether the sandbox was stopped or removed meanwhile.
	backOffLook = 250 * time.Millisecond
)

func backOff(restarts int) time.Duration {
	return min(firstBackOff<<min(restarts, 10), mostBackOff)
}

// follows decides what becomes of a sandbox whose run has ended with this account, and notes it.
func follows(k *sandboxes.Sandbox, end runtime.Status, told bool) (again bool) {
	if told || !k.Wanted || k.Run != end.ID {
		return false
	}
	switch end.State {
	case runtime.Killed, runtime.Policy, runtime.Failed:
		// An operator's word, or the node's: not to be undone by itself.
	default:
		again = k.Restart == sandboxes.RestartAlways || k.Restart == sandboxes.RestartOnFailure && end.ExitCode != 0
	}
	again = again && !k.Frozen // as by its time limit: it was to stand still
	if !again {
		k.Wanted = false
		return false
	}
	if end.WallTime >= lasted {
		k.Restarts = 0
	}
	k.Restarts++
	return true
}

// again starts the sandbox anew, if it is to be. The run that has ended is taken down: nothing is held but this goroutine. ctx is that of
// whoever asked for the run, and ends with the process.
func (s *run) again(ctx context.Context) {
	name, folder := s.want.Sandbox, s.node.Sandboxes()
	again := false
	k, err := folder.Change(name, func(k *sandboxes.Sandbox) error {
		again = follows(k, *s.status, s.told.Load())
		return nil
	})
	if errors.Is(err, sandboxes.ErrNone) || err == nil && !again {
		return
	}
	if err == nil {
		err = s.wait(ctx, k)
	}
	if errors.Is(err, errNotWanted) {
		return
	}
	if err == nil {
		err = s.node.StartSandbox(ctx, k, s.by.Environ)
	}
	if err != nil {
		s.node.Log.Error("sandbox is not started again", "name", name, "err", err)
	}
}

var errNotWanted = errors.New("it was stopped meanwhile")

func (s *run) wait(ctx context.Context, k sandboxes.Sandbox) error {
	over := time.NewTimer(backOff(k.Restarts - 1))
	defer over.Stop()
	looks := time.NewTicker(backOffLook)
	defer looks.Stop()
	signals := s.host.Signals()
	for {
		select {
		case <-over.C:
			return nil
		case <-looks.C:
			if now, err := s.node.Sandboxes().Load(k.Name); err != nil || !now.Wanted || now.Run != k.Run {
				return errNotWanted
			}
		case <-signals:
			return errNotWanted
		case <-ctx.Done():
			return errNotWanted
		}
	}
}

// StartSandbox starts a sandbox anew as nobody's wish but its own: with the same words, in the ring that its agent has by now, and on
// record. The environment is that of who started it first.
func (n *Node) StartSandbox(ctx context.Context, k sandboxes.Sandbox, environ []string) error {
	err := n.RecordSandbox(hypervisor.SandboxLife{By: "agentrun", Change: "restarted", Name: k.Name, Run: k.Run, Restarts: k.Restarts})
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append(n.Flags(), "start", "--again", k.Name)...) //nolint:gosec // ourselves
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir, cmd.Stderr = environ, "/", &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// StartSandboxes starts those that are to run whatever ended their supervisor: the daemon's restart, or the machine's. Those that live on
// have a supervisor of their own.
func (n *Node) StartSandboxes(ctx context.Context, environ []string) {
	list, err := n.Sandboxes().List()
	if err != nil {
		n.Log.Error("kept sandboxes", "err", err)
	}
	for _, k := range list {
		if !k.Wanted || k.Restart != sandboxes.RestartAlways || k.Live || ctx.Err() != nil {
			continue
		}
		if k.Frozen {
			n.Log.Warn("sandbox is not started again: its run was frozen, and nobody let it go on", "name", k.Name)
			continue
		}
		if err := n.StartSandbox(ctx, k.Sandbox, environ); err != nil {
			n.Log.Error("sandbox is not started again", "name", k.Name, "err", err)
		}
	}
}
