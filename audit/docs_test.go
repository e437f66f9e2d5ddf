// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// docs/audit.md is what others write their verifiers from: its table names every kind with every member, optional ones so
// marked, and what it is kept for, and every code of a problem.
func TestDocsNameEverything(t *testing.T) {
	b, err := os.ReadFile("../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			name, text, _ := strings.Cut(rest, "`")
			if _, seen := rows[name]; !seen { // later tables speak of kinds too
				rows[name] = text
			}
		}
	}
	for i, pair := range examples() {
		text, ok := rows[string(pair[0].Kind())]
		if !ok {
			t.Errorf("no row for kind %s", pair[0].Kind())
		}
		if why := kinds[i].why; !strings.HasSuffix(strings.TrimSpace(text), "| "+why+" |") {
			t.Errorf("kind %s: %q doesn't end with its reason, %q", pair[0].Kind(), text, why)
		}
		full, bare := writtenOf(t, pair[0]), writtenOf(t, pair[1])
		for _, m := range full {
			optional := !slices.Contains(bare, m)
			if !strings.Contains(text, "`"+m+"`") || optional != strings.Contains(text, "`"+m+"` opt") {
				t.Errorf("kind %s: member %s (optional: %v) is not in %q", pair[0].Kind(), m, optional, text)
			}
		}
	}
	for _, c := range []Code{Edited, Missing, Inserted, Reordered, Truncated, Forked, Rewritten, BadSignature, Unsigned, Malformed, Torn} {
		if rows[string(c)] == "" {
			t.Errorf("no row for code %s", c)
		}
	}
}

func writtenOf(t *testing.T, r Record) []string {
	t.Helper()
	data, err := appendData(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Keys(m))
}
