// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"agentrun/fsjail"
	"agentrun/hypervisor"
	"agentrun/internal/shown"
	"agentrun/rings"
	"agentrun/runtime"
)

// outcome says once how a run ended, to whoever asked for it.
type outcome struct {
	runtime.Observer
	s     *run
	early bool // as soon as it is on record, not when the last of the run is taken down
	said  sync.Once
}

func (o *outcome) watch(by runtime.Observer) runtime.Observer {
	if !o.early {
		return by
	}
	o.Observer = by
	return o
}

// End is the observer's.
func (o *outcome) End(status runtime.Status) error {
	err := o.Observer.End(status)
	if err == nil {
		o.s.sumUp(&status)
		o.say(status)
		o.s.live.Control.Leave() // its caller's next run may come at once
		o.s.host.Answer(status.ExitCode)
	}
	return err
}

func (o *outcome) say(status runtime.Status) {
	o.said.Do(func() {
		w := o.s.by.Stderr
		switch status.State {
		case runtime.Failed:
			Tell(w, status.Error, status.Hint)
		case runtime.Exited, runtime.Signaled:
		default:
			Tell(w, string(status.State)+": "+status.Reason, status.Hint)
		}
		o.s.tellClosing(status)
	})
}

// refused tells of a run that was not started where an account was asked for. From the launch on there is an
// account already, and a second one would contradict it. A status file that can't be written is the refusal
// itself, and is not told into.
func (s *run) refused(err error) error {
	if s.h == nil || s.status != nil {
		return err
	}
	s.h.Counts().RunRefused(refusalCode(err))
	r := s.want
	status := runtime.Status{
		Name: r.Name, Agent: r.Agent, Session: r.Session, Ring: r.RingOr3(), Profile: r.Profile,
		State: runtime.Failed, ExitCode: exitCode(err), Error: err.Error(), Hint: Hint(err),
		Refused: map[string]uint64{}, Events: []runtime.Event{},
	}
	serr := s.openStatusFile()
	if serr == nil {
		serr = s.tellStatus(status)
	}
	if serr != nil && !errors.Is(err, errStatusFile) {
		return fmt.Errorf("%w (and %w)", err, serr)
	}
	return err
}

// refusalCode is the word for why a run wasn't begun that the counters have.
func refusalCode(err error) string {
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		return string(denied.Code)
	}
	if _, ok := errors.AsType[*runtime.InvalidSpec](err); ok {
		return "invalid"
	}
	if _, ok := errors.AsType[*runtime.MissingError](err); ok {
		return "missing"
	}
	if _, ok := errors.AsType[*runtime.CommandError](err); ok {
		return "not_found"
	}
	return ""
}

var errStatusFile = errors.New("--status-file")

// writable finds out before the run whether a file can be written after it.
func writable(name string, shown []string) error {
	o, err := fsjail.OpenOutput(name, shown)
	if err != nil {
		return err
	}
	return errors.Join(o.Try(), o.Close())
}

// openStatusFile opens its folder while no code of the agent has run: see fsjail.Output.
func (s *run) openStatusFile() (err error) {
	if s.want.StatusFile == "" || s.statusTo != nil {
		return nil
	}
	if s.statusTo, err = fsjail.OpenOutput(s.want.StatusFile, s.shown()); err == nil {
		err = s.statusTo.Try()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errStatusFile, err)
	}
	return nil
}

// shown are the host's folders that the request shows to its run, whatever else is wrong with it.
func (s *run) shown() []string {
	list := []string{s.want.Workspace}
	if rings.CheckSessionID(s.want.Session) == nil {
		list = append(list, s.h.Workspace(s.want.Session))
	}
	for _, b := range s.want.Binds {
		list = append(list, b.Source)
	}
	return list
}

// tellStatus writes the status where it was asked for.
func (s *run) tellStatus(status runtime.Status) error {
	if s.want.JSON && !s.want.Detach {
		b, err := json.Marshal(status)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.by.Stderr, "%s\n", shown.Text(string(b)))
	}
	if f := s.statusTo; f != nil {
		defer func() { _ = f.Close() }()
		if err := status.WriteFile(f); err != nil {
			return fmt.Errorf("--status-file: %w", err)
		}
	}
	return nil
}

// tellDetached says which run it is to the command that asked for it.
func (s *run) tellDetached(status runtime.Status) error {
	text := []byte(status.ID)
	if s.want.JSON {
		said := map[string]string{"id": status.ID, "name": status.Name, "output": s.node.Outputs().File(status.ID)}
		var err error
		if text, err = json.Marshal(said); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(s.by.Stdout, "%s\n", text); err != nil {
		return fmt.Errorf("nobody hears the id of the detached run: %w", err)
	}
	return nil
}
