// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"time"

	"agentrun/store"
	"agentrun/witness"
)

// nonces are the attestations that were used (H-12). They are spent in the transaction of what they permit: both happen, or
// neither.
type nonces struct {
	tx  *store.Tx
	now time.Time
}

type nonceRecord struct {
	Expires time.Time `json:"expires"`
}

// forgottenKey holds the latest expiry of the nonces that were forgotten. It is no nonce: those are hexadecimal.
const forgottenKey = "forgotten"

// keepNonces is how long a nonce is kept after its expiry. Long enough that a clock which was ahead for a day finds them.
const keepNonces = 7 * witness.MaxTTL

// Use implements witness.NonceStore.
func (n nonces) Use(nonce witness.Nonce, expires time.Time) error {
	b := n.tx.Bucket(noncesBucket)
	var r, forgotten nonceRecord
	used, err := store.GetJSON(b, nonce.String(), &r)
	if err != nil {
		return err
	}
	if _, err := store.GetJSON(b, forgottenKey, &forgotten); err != nil {
		return err
	}
	// Of what expires no later than something forgotten, nobody can say any more whether it was used: a clock set back far
	// enough would bring it to life again.
	if used || !expires.After(forgotten.Expires) {
		return witness.ErrNonceUsed
	}
	if err := n.forget(b, forgotten); err != nil {
		return err
	}
	return store.PutJSON(b, nonce.String(), nonceRecord{expires.UTC()})
}

func (n nonces) forget(b *store.Bucket, forgotten nonceRecord) error {
	return store.EachJSON(b, "", func(key string, r nonceRecord) error {
		if key == forgottenKey || n.now.Sub(r.Expires) < keepNonces {
			return nil
		}
		if r.Expires.After(forgotten.Expires) {
			forgotten = r
			if err := store.PutJSON(b, forgottenKey, r); err != nil {
				return err
			}
		}
		return b.Delete(key)
	})
}
