// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"agentrun/audit"
)

// Signer signs for all hypervisors of one process that end within signTime where their chains stand, in one go (H-26): a signature covers
// what was written before it, whoever wrote it, and takes a twentieth of a short run's processor time. Likewise it closes their logs within
// endTime, of which the first then syncs for all (H-28).
type Signer struct {
	opt  Options
	warn func(error)

	mu     sync.Mutex
	chains map[string]bool
	due    *time.Timer // nil: nobody waits
	logs   []*audit.Log
	closed bool
	busy   sync.Mutex // held while it signs
}

// signTime is how long an entry waits at most until its signature is begun.
const signTime = 100 * time.Millisecond

// NewSigner is for hypervisors with the same options. warn hears what goes wrong when nobody waits for it.
func NewSigner(opt Options, warn func(error)) *Signer {
	opt.Signer = nil
	return &Signer{opt: opt, warn: warn, chains: map[string]bool{}}
}

// endTime is how long what a log has not synced yet may wait more. It is 50 ms old at most (audit.Options.SyncDelay), and may be 100.
const endTime = 30 * time.Millisecond

// end closes a log soon; after Close at once.
func (s *Signer) end(l *audit.Log) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return l.Close()
	}
	defer s.mu.Unlock()
	l.Leave()
	if s.logs = append(s.logs, l); len(s.logs) == 1 {
		time.AfterFunc(endTime, func() {
			if err := s.endAll(); err != nil {
				s.warn(fmt.Errorf("audit log: %w", err))
			}
		})
	}
	return nil
}

func (s *Signer) endAll() error {
	s.mu.Lock()
	logs := s.logs
	s.logs = nil
	s.mu.Unlock()
	var errs []error
	for _, l := range logs {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// later has chains signed soon; after Close at once.
func (s *Signer) later(chains []string) error {
	if len(chains) == 0 {
		return nil
	}
	s.mu.Lock()
	for _, c := range chains {
		s.chains[c] = true
	}
	closed := s.closed
	if !closed && s.due == nil {
		s.due = time.AfterFunc(signTime, func() {
			if err := s.sign(); err != nil {
				s.warn(fmt.Errorf("checkpoint: %w", err))
			}
		})
	}
	s.mu.Unlock()
	if closed {
		return s.sign()
	}
	return nil
}

// sign signs all that is due. Who calls it twice at once waits for the first: what that one has taken is signed then.
func (s *Signer) sign() error {
	s.busy.Lock()
	defer s.busy.Unlock()
	s.mu.Lock()
	chains := s.chains
	s.chains, s.due = map[string]bool{}, nil
	s.mu.Unlock()
	if len(chains) == 0 {
		return nil
	}
	h, err := Open(s.opt)
	if err == nil {
		h.news = maps.Clone(chains) // its Close signs them
		err = h.Close()
	}
	if err != nil { // as without a descriptor, or on a full disk: the next time, or Close, tries again
		s.mu.Lock()
		maps.Copy(s.chains, chains)
		s.mu.Unlock()
	}
	return err
}

// Close signs what is due and returns when it is.
func (s *Signer) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.due != nil {
		s.due.Stop()
	}
	s.mu.Unlock()
	return errors.Join(s.endAll(), s.sign())
}
