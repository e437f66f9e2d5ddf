// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of the recommendation, section 3.3. It asks to carry 512 characters at least; what is longer is refused here
// rather than cut, as a cut may end within a member.
const (
	maxMembers = 32
	maxHeader  = 512
	maxKey     = 256
	maxValue   = 256
)

// Member is one vendor's entry.
type Member struct{ Key, Value string }

// State is a tracestate. The zero value is empty. It is immutable.
type State struct{ members []Member }

// Members are the entries, the newest first.
func (s State) Members() []Member { return slices.Clone(s.members) }

// Get gives the value of key.
func (s State) Get(key string) (string, bool) {
	for _, m := range s.members {
		if m.Key == key {
			return m.Value, true
		}
	}
	return "", false
}

// String is the header.
func (s State) String() string {
	var b strings.Builder
	for i, m := range s.members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(m.Key + "=" + m.Value)
	}
	return b.String()
}

// With gives s with key set to value and moved to the front, as whoever changes an entry must.
func (s State) With(key, value string) (State, error) {
	if err := checkMember(key, value); err != nil {
		return State{}, err
	}
	next := State{members: []Member{{key, value}}}
	for _, m := range s.members {
		if m.Key != key {
			next.members = append(next.members, m)
		}
	}
	if len(next.members) > maxMembers || len(next.String()) > maxHeader {
		return State{}, malformedState("too long")
	}
	return next, nil
}

// ParseState reads a tracestate; several headers are joined by commas in their order first. Empty members and blanks
// around members are allowed; the same key twice is not. Who gets an error drops the state and may keep the parent.
func ParseState(header string) (State, error) {
	if len(header) > maxHeader {
		return State{}, malformedState("too long")
	}
	var s State
	for part := range strings.SplitSeq(header, ",") {
		part = strings.Trim(part, " \t")
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return State{}, malformedState("a member without =")
		}
		if err := checkMember(key, value); err != nil {
			return State{}, err
		}
		if _, twice := s.Get(key); twice {
			return State{}, malformedState("a key twice")
		}
		if s.members = append(s.members, Member{key, value}); len(s.members) > maxMembers {
			return State{}, malformedState("too many members")
		}
	}
	return s, nil
}

func malformedState(what string) error { return fmt.Errorf("tracestate: %w: %s", ErrMalformed, what) }

func checkMember(key, value string) error {
	if !validKey(key) {
		return malformedState("key")
	}
	if !validValue(value) {
		return malformedState("value")
	}
	return nil
}

// validKey: simple-key or tenant@system of Level 1, which every reader takes.
func validKey(key string) bool {
	if len(key) > maxKey {
		return false
	}
	tenant, system, multi := strings.Cut(key, "@")
	if !multi {
		return isLower(first(key)) && keyChars(key)
	}
	return len(tenant) <= 241 && len(system) <= 14 && keyChars(tenant) && keyChars(system) &&
		(isLower(first(tenant)) || isDigit(first(tenant))) && isLower(first(system))
}

func first(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

func isLower(b byte) bool { return b >= 'a' && b <= 'z' }
func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func keyChars(s string) bool {
	for i := range len(s) {
		if b := s[i]; !isLower(b) && !isDigit(b) && strings.IndexByte("_-*/", b) < 0 {
			return false
		}
	}
	return true
}

// validValue: printable ASCII without comma and equals sign, the last no blank. A blank in front would be taken for one
// around the member, so that it may not stand there either.
func validValue(value string) bool {
	if value == "" || len(value) > maxValue || value[0] == ' ' || value[len(value)-1] == ' ' {
		return false
	}
	for i := range len(value) {
		if b := value[i]; b < ' ' || b > '~' || b == ',' || b == '=' {
			return false
		}
	}
	return true
}
