// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

func TestH29Identifiers(t *testing.T) {
	long, longer := strings.Repeat("a", MaxIdentifier), strings.Repeat("a", MaxIdentifier+1)
	for _, tt := range []struct {
		id             string
		agent, session bool
	}{
		{"a", true, true}, {"Z9", true, true}, {"did:mesh:7f.a_b-c", true, false}, {"a-b_c", true, true},
		{long, true, true}, {longer, false, false}, {"", false, false},
		{"-", false, true}, {"_a", false, true}, {"a-", false, true}, {".a", false, false}, {"a.", false, false}, {"a:", false, false},
		{"a..b", true, false}, {"a:b", true, false}, {"..", false, false}, {"../x", false, false}, {"a/b", false, false},
		{"admin\n", false, false}, {"\nadmin", false, false}, {"a\nb", false, false}, {"a\x00", false, false}, {"a b", false, false}, {" a", false, false},
		{"аdmin", false, false}, {"ａ", false, false}, {"é", false, false}, {"a\u200bb", false, false}, {"ſession", false, false}, {"\u212a", false, false}, {"a\xff", false, false},
		{"a%41", false, false}, {"a+b", false, false}, {"a@b", false, false},
	} {
		for kind, check := range map[string]func(string) error{"agent": CheckAgentID, "action": CheckActionID, "session": CheckSessionID} {
			want := tt.agent
			if kind == "session" {
				want = tt.session
			}
			err := check(tt.id)
			if (err == nil) != want {
				t.Errorf("%s id %q: got %v, want valid = %v", kind, tt.id, err, want)
			}
			if err != nil && (!errors.Is(err, ErrIdentifier) || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x00")) {
				t.Errorf("%s id %q: error %q can't be shown or isn't ErrIdentifier", kind, tt.id, err)
			}
		}
	}
}

// The regular expressions of the specification are the oracle; \z says what its $ means.
func FuzzIdentifiers(f *testing.F) {
	agent := regexp.MustCompile(`\A[a-zA-Z0-9]([a-zA-Z0-9._:-]*[a-zA-Z0-9])?\z`)
	session := regexp.MustCompile(`\A[a-zA-Z0-9_-]+\z`)
	for _, s := range []string{"a", "did:mesh:7f", "a\n", "", "_", "а", strings.Repeat("x", 257)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		fits := len(id) <= MaxIdentifier
		if want := fits && agent.MatchString(id); (CheckAgentID(id) == nil) != want || (CheckActionID(id) == nil) != want {
			t.Errorf("agent or action id %q: want valid = %v", id, want)
		}
		if want := fits && session.MatchString(id); (CheckSessionID(id) == nil) != want {
			t.Errorf("session id %q: want valid = %v", id, want)
		}
	})
}
