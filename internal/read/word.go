// SPDX-License-Identifier: Apache-2.0

package read

// Word is a text that may look like a number, as a size in bytes or a group by its id, and needs no quotes then.
type Word string

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Word) UnmarshalText(text []byte) error {
	*t = Word(text)
	return nil
}
