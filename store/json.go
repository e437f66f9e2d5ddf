// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"errors"
	"fmt"

	"agentrun/internal/read"
)

// ErrDecode is a record that isn't what this version writes.
var ErrDecode = errors.New("not a record of this version")

// GetJSON reads the record of key into v, and tells whether there is one. Unknown fields are errors: they are what a newer
// version has to say, and dropping "quarantined" would be to lift it. On an error, *v is the zero value.
func GetJSON[T any](b *Bucket, key string, v *T) (found bool, err error) {
	*v = *new(T)
	raw, found, err := b.Get(key)
	if err != nil || !found {
		return false, err
	}
	if err := read.Exactly(raw, v); err != nil {
		*v = *new(T)
		return false, fmt.Errorf("bucket %s, key %.80q: %w: %w", b.name, key, ErrDecode, err)
	}
	return true, nil
}

// PutJSON writes v as the record of key.
func PutJSON[T any](b *Bucket, key string, v T) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("bucket %s, key %.80q: %w", b.name, key, err)
	}
	return b.Put(key, raw)
}

// EachJSON is Each with decoded records. A record that can't be read ends it: a list with holes reads as complete.
func EachJSON[T any](b *Bucket, prefix string, fn func(key string, v T) error) error {
	return b.Each(prefix, func(key string, raw []byte) error {
		var v T
		if err := read.Exactly(raw, &v); err != nil {
			return fmt.Errorf("bucket %s, key %.80q: %w: %w", b.name, key, ErrDecode, err)
		}
		return fn(key, v)
	})
}
