// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrun/internal/fold"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/risk"
)

// seed is the example of the specification (§5.2), as it stands there.
const seed = `// Example policy configuration
{
  deny: [
    "drop_*",           // Block any drop operations
    "delete_all*",      // Block bulk deletions
    "*_production*",    // Block anything targeting production
    "rm -rf*"           // Block recursive force deletions
  ],
  requiresApproval: [
    "delete_*",         // Require approval for deletions
    "*force*",          // Require approval for force operations
    "deploy_*",         // Require approval for deployments
    "git push*"         // Require approval for git pushes
  ],
  autoApprove: [
    "read_*",           // Auto-approve reads
    "list_*",           // Auto-approve listings
    "get_*",            // Auto-approve getters
    "search_*"          // Auto-approve searches
  ]
}
`

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("p", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func judged(t *testing.T, v *View, hint string) judge.Judgement {
	t.Helper()
	j, err := v.Judge(t.Context(), hint)
	if err != nil {
		t.Fatalf("%q: %v", hint, err)
	}
	return j
}

// TestS5SeedPolicy proves that the specification's own example is read as it stands, and what its patterns match.
func TestS5SeedPolicy(t *testing.T) {
	v := parse(t, seed).For("", false).In("/work")
	const deny, ask, pass, other = judge.RuleDeny, judge.RuleRequiresApproval, judge.RuleAutoApprove, judge.RuleDefault
	for _, c := range []struct {
		hint    string
		rule    judge.Rule
		pattern string
	}{
		{"drop_table", deny, "drop_*"},
		{"drop_", deny, "drop_*"},
		{"calling drop_table on users", deny, "drop_*"},
		{"calling dropTable on users", deny, "drop_*"},
		{"calling db.drop_table on users", deny, "drop_*"},
		{"Calling DROP_TABLE on users", deny, "drop_*"},
		{"calling drop-table", deny, "drop_*"},
		{`calling "drop table" on users`, deny, "drop_*"},
		{"executing DROP TABLE users", deny, "drop_*"},
		{"dropping table users", deny, "drop_*"},
		{"drop\u00a0table", deny, "drop_*"},
		{"dr\u200bop_table", deny, "drop_*"},
		{"ｄｒｏｐ＿ｔａｂｌｅ", deny, "drop_*"},
		{"drоp_table", deny, "drop_*"}, // Cyrillic о
		{"dr0p_table", deny, "drop_*"},
		{"dr''op_table", deny, "drop_*"},
		{"drop(table)", deny, "drop_*"},
		{"the backdrop table", other, ""},
		{"raindrop.table", other, ""},
		{"drop.table", deny, "drop_*"},
		{"deleteallusers", deny, "delete_all*"},
		{"calling read_dropbox", pass, "read_*"}, // within a word it isn't the operation
		{"delete_all_users", deny, "delete_all*"},
		{"deleting all records from staging_users table via database MCP server", deny, "delete_all*"},
		{"deIete_all_users", deny, "delete_all*"}, // capital i
		{"deleteAllUsers", deny, "delete_all*"},
		{"deploying to production server", deny, "*_production*"},
		{"production", deny, "*_production*"},
		{"read_production_logs", deny, "*_production*"},
		{"reproduction of the bug in a test", other, ""},
		{"rm -rf /tmp/x", deny, "rm -rf*"},
		{"run rm -r -f /tmp/x", deny, "rm -rf*"},
		{"run /bin/rm -fr /tmp/x", deny, "rm -rf*"},
		{`bash -c 'r""m -rf /tmp/x'`, deny, "rm -rf*"},
		{"x=rm; $x -rf /tmp/x", deny, "rm -rf*"},
		{"echo cm0gLXJmIC90bXAveA== | base64 -d | sh", deny, "rm -rf*"},
		{"confirm -rf", other, ""},
		{"delete_user", ask, "delete_*"},
		{"calling delete_user 42", ask, "delete_*"},
		{"deleting user 42", ask, "delete_*"},
		{"undelete_user", other, ""},
		{"enforce the style guide", ask, "*force*"}, // it says anywhere
		{"git push origin x", ask, "git push*"},
		{"git -C /work push origin x", ask, "git push*"},
		{"GIT  PUSH", ask, "git push*"},
		{"read_file src/main.go", pass, "read_*"},
		{"readFile src/main.go", pass, "read_*"},
		{"calling read_file on src/main.go", pass, "read_*"},
		{"call the tool list_users", pass, "list_*"},
		{"read the file src/main.go", other, ""},
		{"reading_something", other, ""},
		{"then read_file x", other, ""},
		{"read_file x; rm x", other, ""},
		{"read_file x && curl https://evil.example", other, ""},
		{"read_file x | sh", other, ""},
		{"read_file $(rm x)", other, ""},
		{"read_file x\nrm x", other, ""},
		{"read_file x and email it to bob@example.com", other, ""},
		{"read_file /etc/shadow", other, ""},
		{"read_file ~/.ssh/id_rsa", other, ""},
		{"read_file x, remove y", other, ""},
		{"read_file \u202ex", other, ""},
		{"rеad_file x", other, ""},  // Cyrillic е: what isn't what it seems isn't approved
		{"Call listA$0", other, ""}, // who reads it doesn't know what is listed
		{"read_file $x", other, ""},
		{"search_users to delete", ask, "delete_*"},
		{"", other, ""},
	} {
		if j := judged(t, v, c.hint); j.Rule != c.rule || j.Pattern != c.pattern {
			t.Errorf("%q: got %v %q, want %v %q", c.hint, j.Rule, j.Pattern, c.rule, c.pattern)
		}
	}
}

// A pattern at the end of a long hint is found, and a hint that is too long is refused rather than cut.
func TestS5WholeHint(t *testing.T) {
	v := parse(t, seed).For("", false)
	long := strings.Repeat("reading the next page of the book ", 400)
	for _, tail := range []string{"drop_table users", "run rm -rf /srv"} {
		if j := judged(t, v, long+tail); j.Rule != judge.RuleDeny {
			t.Errorf("%q at the end: got %v", tail, j.Rule)
		}
	}
	if _, err := v.Judge(t.Context(), strings.Repeat("a", risk.MaxHint+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v, want %v", err, ErrTooLong)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Judge(done, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// An autoApprove pattern approves what it names, dangerous or not, and nothing worse than that.
func TestS5ApprovesWhatItNames(t *testing.T) {
	v := parse(t, "autoApprove: ['delete_tmp_*', 'npm install*', 'go test*', 'fs.read_*', 'go build $PACKAGE*']").For("", true).In("/work")
	for hint, want := range map[string]bool{
		"delete_tmp_files a": true, "delete_tmp_files in production": false, "delete_tmp_all everything": false, "npm install express": true, "npm install express --force": false,
		"sudo npm install express": false, "go test ./...": true, "go test ./... > /etc/passwd": false, "fs.read_file x": true, "read_file x": false, "fs.readFile x": true,
		"go build $PACKAGE": true, "go test $PACKAGE": false,
	} {
		if got := judged(t, v, hint).Rule == judge.RuleAutoApprove; got != want {
			t.Errorf("%q: got %v, want %v", hint, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"denny: [a]":                     "p:1: denny: unknown key; did you mean deny?",
		"deny: [a]\ndeny: [b]":           "p:2: deny: given twice",
		`{"deny": ["a"], "deny": ["b"]}`: "given twice",
		"deny:":                          "p:1: deny: want a list, got nothing",
		"deny: a":                        "want a list",
		"deny:\n- a\n- [b]":              "p:3: deny[1]: want text",
		"deny: [a, 3]":                   "deny[1]: want text",
		"deny: [a, ~]":                   "want text",
		"deny: [a, '']":                  "deny[1]: \"\": an empty pattern",
		"deny: [a, \"\\u200b\"]":         "an empty pattern",
		"deny: ['{a,b}']":                "only * and ? are special",
		"deny: ['[ab]']":                 "only * and ? are special",
		"autoApprove: ['*']":             "approves everything",
		"autoApprove: ['_*']":            "approves everything",
		"autoApprove: ['? *']":           "approves everything",
		"deny: [" + strings.Repeat("x", 257) + "]":  "longer than 256",
		"deny: [" + strings.Repeat("x,", 513) + "]": "more than 512 patterns",
		"mode: enforced":                     "p:1: mode: mode \"enforced\"",
		"mode: 3":                            "p:1: mode: want text, got int 3",
		"tolerance: 50":                      "p:1: tolerance: want text",
		"tolerance: high":                    "tolerance \"high\"",
		"confirm: me":                        "confirm \"me\"",
		"maxAutonomousSteps: 0":              "want a number from 1 to 10000",
		"maxAutonomousSteps: 1e9":            "want a whole number",
		"maxAutonomousSteps: many":           "want a whole number",
		"workspace: work":                    "want an absolute path",
		"workspace: /":                       "want an absolute path",
		"agents: {a: {mode: disabled}}":      "p:1: agents.a.mode: unknown key",
		"agents: {a: {deny: ['']}}":          "p:1: agents.a.deny[0]",
		"agents: {'': {}}":                   "want a name",
		"deny: &x [a]":                       "anchors",
		"deny: [&x a, *x]":                   "anchors",
		"# " + strings.Repeat("x", MaxBytes): "longer than",
		"[]":                                 "want a mapping",
		"deny: [a]\n---\ndeny: [b]":          "more than one document",
		"mode: x\ntolerance: y\nautoApprove: ['*']\n": "p:3: ",
	} {
		if p, err := Parse("p", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || p != nil {
			t.Errorf("%.60q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Parse("p", []byte("mode: x\ntolerance: y\nautoApprove: ['*']\n")); strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want all three faults", err)
	}
}

func TestParseForms(t *testing.T) {
	want := parse(t, "deny: ['drop_*', 'a//b']\nmode: monitoring\n")
	for _, text := range []string{
		"{\"deny\": [\"drop_*\", \"a//b\"], // why\n\t\"mode\": \"monitoring\"}", "{deny: [\"drop_*\", \"a//b\",], mode: monitoring,}", "// first\n{deny: ['drop_*', 'a//b'], mode: monitoring}",
	} {
		got := parse(t, text)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(Policy{}, rules{}, pattern{}, glob{})); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
	for _, text := range []string{"", "{}", "# nothing\n"} {
		if j := judged(t, parse(t, text).For("x", true), "drop_table"); j.Rule != judge.RuleDefault {
			t.Errorf("%q: got %v", text, j.Rule)
		}
	}
	if j := judged(t, new(Policy).For("x", true), "drop_table users"); j.Rule != judge.RuleDefault || j.Score == 0 {
		t.Errorf("the zero policy: got %+v", j)
	}
}

// TestS6Agents: an agent's own entry adds; where the client chose the name, it only tightens.
func TestS6Agents(t *testing.T) {
	p := parse(t, `
tolerance: moderate
maxAutonomousSteps: 20
workspace: /work
deny: [drop_*]
agents:
  builder:
    tolerance: aggressive
    maxAutonomousSteps: 100
    autoApprove: ['npm install*', 'drop_*']
    requiresApproval: ['publish*']
  reader:
    tolerance: conservative
    maxAutonomousSteps: 5
    deny: ['write_*']
`)
	for _, c := range []struct {
		agent     string
		bound     bool
		tolerance judge.Tolerance
		steps     int
		hints     map[string]judge.Rule
	}{
		{"builder", true, judge.Aggressive, 100, map[string]judge.Rule{"npm install x": judge.RuleAutoApprove, "drop_table": judge.RuleDeny, "publish it": judge.RuleRequiresApproval}},
		{"builder", false, judge.Moderate, 20, map[string]judge.Rule{"npm install x": judge.RuleDefault, "drop_table": judge.RuleDeny, "publish it": judge.RuleRequiresApproval}},
		{"reader", true, judge.Conservative, 5, map[string]judge.Rule{"write_file x": judge.RuleDeny}},
		{"reader", false, judge.Conservative, 5, map[string]judge.Rule{"write_file x": judge.RuleDeny}},
		{"Reader", true, judge.Moderate, 20, map[string]judge.Rule{"write_file x": judge.RuleDefault}},
	} {
		v := p.For(c.agent, c.bound)
		if s := v.Settings(); s.Tolerance != c.tolerance || s.MaxSteps != c.steps || s.Workspace != "/work" {
			t.Errorf("%s: got %+v", c.agent, s)
		}
		for hint, want := range c.hints {
			if got := judged(t, v, hint).Rule; got != want {
				t.Errorf("%s %v, %q: got %v, want %v", c.agent, c.bound, hint, got, want)
			}
		}
	}
}

func TestS6Explain(t *testing.T) {
	v := parse(t, seed).For("", false).In("/work")
	for hint, want := range map[string]struct {
		verdict Verdict
		stage   string
	}{
		"drop_table":                 {Stop, "patterns"},
		"git push origin x":          {Pause, "patterns"},
		"read_file x":                {Continue, "patterns"},
		"writing docs/a.md":          {Continue, ""},
		"npm install express":        {Pause, "tier"},
		"erasing every customer":     {Verify, "tier"},
		"sudo dd of=/dev/sda if=x":   {Stop, "tier"},
		"doing something":            {Pause, "tier"},
		"read_file x | mail y@x.org": {Pause, "tier"},
	} {
		e, err := v.Explain(t.Context(), hint)
		if err != nil {
			t.Fatal(err)
		}
		stage := ""
		for _, s := range e.Stages {
			if s.Decides {
				stage = s.Name
			}
		}
		if e.Verdict != want.verdict || stage != want.stage || len(e.Stages) != 3 {
			t.Errorf("%q: got %v at %q, want %v at %q: %+v", hint, e.Verdict, stage, want.verdict, want.stage, e)
		}
	}
	e, _ := v.Explain(t.Context(), "read_file x; ls")
	if !strings.Contains(e.Stages[0].Detail, "more than one command") {
		t.Errorf("got %q: why a pattern isn't followed must be told", e.Stages[0].Detail)
	}
}

func TestCases(t *testing.T) {
	p := parse(t, seed)
	c, err := ParseCases("c", []byte(`
workspace: /work
cases:
  - hint: calling drop_table on users
    expect: {verdict: stop, rule: deny, pattern: drop_*, tier: verify, vague: false, factors: [verb_destroy], not: [network]}
  - hint: doing something
    expect: {verdict: continue, rule: deny, vague: false, factors: [network], not: [vague]}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Test(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 2 || len(out[0].Wrong) != 0 || len(out[1].Wrong) != 5 {
		t.Errorf("got %+v", out)
	}
	for text, want := range map[string]string{
		"cases: []": "0 cases", "cases: [{hint: x, expect: {}}]": "nothing is expected", "cases: [{hint: x, expect: {verdict: ok}}]": "verdict \"ok\"", "cases: [{hint: x, expect: {factors: [y]}}]": "is no factor",
		"cases: [{hint: x, expct: {}}]": "unknown key", "cases: [{hint: x, expect: {rule: Deny}}]": "rule",
	} {
		if _, err := ParseCases("c", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		within, whole bool
	}{
		{"a", "a", true, true}, {"a", "xa", false, false}, {"a", "x a y", true, false}, {"*", "", true, true}, {"*", "x", true, true}, {"a*", "ab", true, true}, {"a*", "b ab", true, false}, {"*a", "ba", true, true},
		{"*a", "bab", false, false}, {"*a*", "bab", true, true}, {"a*b", "a x b", true, true}, {"a*b", "a x bc b", true, true}, {"a*b", "a x bc", false, false}, {"a?c", "abc", true, true}, {"a?c", "aéc", true, true},
		{"a?c", "ac", false, false}, {"?", "", false, false}, {"ab*ab", "ab", false, false}, {"ab*ab", "abab", true, true}, {"a*a*a", "aa", false, false}, {"*b?", "abc", true, true}, {"*b?", "ab", false, false},
		{"é*", "éx", true, true}, {"*?é", "xé", true, true}, {"*?é", "é", false, false},
	} {
		g := newGlob(c.pattern)
		if got := g.within(c.text); got != c.within {
			t.Errorf("%q within %q: got %v", c.pattern, c.text, got)
		}
		if got := g.whole(c.text); got != c.whole {
			t.Errorf("%q whole %q: got %v", c.pattern, c.text, got)
		}
	}
}

// slow matches whole patterns the plain way.
func slow(p, s []rune) bool {
	switch {
	case len(p) == 0:
		return len(s) == 0
	case p[0] == '*':
		return slow(p[1:], s) || len(s) > 0 && slow(p, s[1:])
	case len(s) == 0:
		return false
	}
	return (p[0] == '?' || p[0] == s[0]) && slow(p[1:], s[1:])
}

func TestGlobIsPlain(t *testing.T) {
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab é")), 0, 12, -1)
	stars := rapid.StringOfN(rapid.SampledFrom([]rune("ab é*?")), 1, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		p, s := stars.Draw(t, "p"), letters.Draw(t, "s")
		if got, want := newGlob(p).whole(s), slow([]rune(p), []rune(s)); got != want {
			t.Fatalf("%q whole %q: got %v, want %v", p, s, got, want)
		}
		if slow([]rune(p), []rune(s)) && !newGlob(p).within(s) {
			t.Fatalf("%q is the whole of %q and not within", p, s)
		}
	})
}

// TestS5NothingDefeatsDeny: what stands around, and how the operation is spelt, never hides it.
func TestS5NothingDefeatsDeny(t *testing.T) {
	v := parse(t, "deny: ['drop_table*']\nautoApprove: ['read_*', 'list_*']").For("", true)
	word := rapid.SampledFrom([]string{"calling", "read_file", "the", "autoApprove", "don't", "\"", "`", ";", "#", "--", "\\", "$(", "\n", "user's", "é", "\u200b", "(", "*", "[[", "<<EOF", "/*", "'"})
	form := rapid.SampledFrom([]string{"drop_table", "drop table", "DROP TABLE", "dropTable", "drop-table", "drop  table", "d\u200brop_table", "ｄｒｏｐ_ｔａｂｌｅ", "drоp_table", "dropping table", "dr0p_tabIe", "dr\\op_table", "fs.drop_table", "drop\u2028table", "drop.table", "drop;table", "drop/table", "droptable", "drop:table", "drop|table"})
	rapid.Check(t, func(t *rapid.T) {
		before, after := rapid.SliceOfN(word, 0, 8).Draw(t, "before"), rapid.SliceOfN(word, 0, 8).Draw(t, "after")
		hint := strings.Join(before, " ") + " " + form.Draw(t, "form") + " " + strings.Join(after, " ")
		j, err := v.Judge(context.Background(), hint)
		if err != nil || j.Rule != judge.RuleDeny {
			t.Fatalf("%q: got %v, %v, want deny", hint, j.Rule, err)
		}
	})
}

func TestSchemaNamesEveryKey(t *testing.T) {
	for _, key := range []string{"mode", "tolerance", "maxAutonomousSteps", "confirm", "workspace", "deny", "requiresApproval", "autoApprove", "agents"} {
		if !strings.Contains(string(Schema()), `"`+key+`"`) {
			t.Errorf("%s isn't in the schema", key)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
	if _, err := load(dir + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(dir+"/p.yaml", []byte("deny: [a]\nx: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(dir + "/p.yaml"); err == nil || !strings.HasPrefix(err.Error(), "p.yaml:2: x: unknown key") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkJudge(b *testing.B) {
	p, err := Parse("p", []byte(seed))
	if err != nil {
		b.Fatal(err)
	}
	v := p.For("", true).In("/work")
	for name, hint := range map[string]string{
		"sentence": "calling write_file on project/config.json to update database URL", "10000": strings.Repeat("reading the next page of the book. ", 285) + "end", "65536": strings.Repeat("reading the next page of the book. ", 1870),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(hint)))
			for b.Loop() {
				if _, err := v.Judge(b.Context(), hint); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(seed, "calling drop_table")
	f.Add("deny: ['a*?b']\nagents: {a: {autoApprove: [read_*]}}", "read_x")
	f.Fuzz(func(t *testing.T, text, hint string) {
		p, err := Parse("p", []byte(text))
		if (p == nil) == (err == nil) {
			t.Fatalf("%q: got %v and %v, want exactly one", text, p, err)
		}
		if err != nil || len(hint) > 4096 {
			return
		}
		j, err := p.For("a", true).Judge(context.Background(), hint)
		if err != nil || j.Rule == judge.RuleInvalid {
			t.Fatalf("%q: %q: got %+v, %v", text, hint, j, err)
		}
	})
}

func FuzzApprove(f *testing.F) {
	v, err := Parse("p", []byte(seed))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("read_file x")
	f.Add("calling list_users in /work")
	f.Fuzz(func(t *testing.T, hint string) {
		if len(hint) > 4096 {
			return
		}
		j, err := v.For("", true).Judge(context.Background(), hint)
		if err != nil {
			t.Fatal(err)
		}
		a := risk.Assess(hint, risk.Env{})
		if j.Rule == judge.RuleAutoApprove && (known(&a) > risk.AdvisoryMax || strings.ContainsAny(fold.Read(hint).Clean, ";|&`$<>\n")) {
			t.Fatalf("%q: approved with score %d", hint, j.Score)
		}
	})
}

// load reads a file: a regular one, of at most MaxBytes.
func load(name string) (*Policy, error) {
	text, _, err := contents(name)
	if err != nil {
		return nil, err
	}
	return Parse(filepath.Base(name), text)
}
