// SPDX-License-Identifier: Apache-2.0

package witness

import "time"

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
