// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"sync"
	"time"
)

// NonceStore remembers what was used. noncetest.Run holds an implementation to this:
//
// Use records nonce and returns nil, once: of any number of calls with one nonce, from any number of processes, exactly one returns nil.
// The others return an error that is ErrNonceUsed. When it returns nil the record has reached the disk: else a crash would give the
// attestation back. Any other error means that nothing may be permitted.
//
// A record may be forgotten when expires has passed: the attestation is refused as expired from then on. But a clock can be set back, and
// then it isn't any more. So a store that forgets keeps the latest expiry it has forgotten, and Use answers ErrNonceUsed for
// every nonce that expires then or earlier.
type NonceStore interface {
	Use(nonce Nonce, expires time.Time) error
}

// Memory is a NonceStore for tests and for one process: it doesn't outlive it, so it is not durable and not for the command line.
// The zero value forgets nothing; with Now set, what has expired by that clock. It may be used concurrently.
type Memory struct {
	Now func() time.Time

	mu        sync.Mutex
	used      map[Nonce]time.Time
	forgotten time.Time // no expiry up to here is known any more
}

// Use implements NonceStore but for the disk.
func (m *Memory) Use(nonce Nonce, expires time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked()
	if _, known := m.used[nonce]; known {
		return fmt.Errorf("nonce %s: %w", nonce, ErrNonceUsed)
	}
	if !expires.After(m.forgotten) {
		return fmt.Errorf("nonce %s may have been forgotten, the clock went back: %w", nonce, ErrNonceUsed)
	}
	if m.used == nil {
		m.used = map[Nonce]time.Time{}
	}
	m.used[nonce] = expires
	return nil
}

func (m *Memory) forgetLocked() {
	if m.Now == nil {
		return
	}
	now := m.Now()
	for nonce, expires := range m.used {
		if expires.After(now) {
			continue
		}
		delete(m.used, nonce)
		if expires.After(m.forgotten) {
			m.forgotten = expires
		}
	}
}
