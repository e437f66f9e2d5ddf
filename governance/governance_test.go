// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/rings"
)

//go:embed plans.yaml
var builtinYAML string

//go:embed schema.json
var schema []byte

func TestAmounts(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "0.02": 20_000, "0.5": 500_000, "1": 1_000_000, "12.000001": 12_000_001, "9007199254.740991": MaxQuota} {
		got, err := ParseAmount(in)
		if err != nil || got != want {
			t.Errorf("%q: got %v %v, want %v", in, got, err, want)
		}
		if back := FormatAmount(got); back != in {
			t.Errorf("%v: got %q, want %q", got, back, in)
		}
	}
	for _, in := range []string{"", "-1", "+1", ".5", "1.", "1e3", "0x1", "01", "0.0000001", "1,5", " 1", "NaN", "9007199254.740992", "99999999999", "1_0", "٣"} {
		if got, err := ParseAmount(in); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
	if got := FormatAmount(math.MinInt64); !strings.HasPrefix(got, "-9223372036854") {
		t.Errorf("got %v", got)
	}
}

func TestM19BuiltinPlans(t *testing.T) {
	parsed, err := Parse("plans.yaml", []byte(builtinYAML))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parsed, Builtin()); diff != "" {
		t.Errorf("plans.yaml and Builtin differ (-yaml +go):\n%s", diff)
	}
	for plan, want := range map[string]int64{Freemium: 1, Casual: 3, Premium: 10, Platformium: 20, Operator: Unlimited} {
		g, err := Builtin().Grant(plan, "", 0)
		if err != nil || g.Parallel != want {
			t.Errorf("%s: got %v %v, want %v", plan, g.Parallel, err, want)
		}
		if low, high := parallelOf(plan); want != Unlimited && (want < low || want > high) {
			t.Errorf("%s: %d is outside %d to %d", plan, want, low, high)
		}
	}
	if got := Builtin().Plans[Casual].Limits; got.CostPerRun != 20_000 || got.CostPerDay != 500_000 {
		t.Errorf("casual: got %+v, want the examples of M-19", got)
	}
}

func TestM19StakeMultipliers(t *testing.T) {
	for stake, want := range map[int64]struct {
		text     string
		cost     int64
		parallel int64
		time     time.Duration
	}{
		0: {"1.0", 20_000, 3, 2 * time.Minute}, -5: {"1.0", 20_000, 3, 2 * time.Minute}, 999: {"1.0", 20_000, 3, 2 * time.Minute},
		1000: {"1.25", 25_000, 3, 150 * time.Second}, 4999: {"1.25", 25_000, 3, 150 * time.Second}, 5000: {"1.5", 30_000, 4, 3 * time.Minute},
		20000: {"2.0", 40_000, 6, 4 * time.Minute}, math.MaxInt64: {"2.0", 40_000, 6, 4 * time.Minute},
	} {
		g, err := Builtin().Grant(Casual, "", stake)
		if err != nil || g.Multiplier() != want.text || g.Limits.CostPerRun != want.cost {
			t.Errorf("%d: got %v %v %v, want %v", stake, g.Multiplier(), g.Limits.CostPerRun, err, want)
		}
		if g.Parallel != want.parallel || g.Limits.Time != want.time {
			t.Errorf("%d: got %d runs at once and %v, want %d and %v", stake, g.Parallel, g.Limits.Time, want.parallel, want.time)
		}
	}
	if g, err := Builtin().Grant(Operator, "", 20000); err != nil || g.Parallel != Unlimited || int64(g.Limits.Time) != Unlimited {
		t.Errorf("what is unlimited was raised: %+v, %v", g, err)
	}
	if got := scale(MaxQuota, 8); got != MaxQuota {
		t.Errorf("got %v, want it to stop at %v", got, MaxQuota)
	}
	if got := scale(7, 5); got != 8 {
		t.Errorf("got %v, want 8: rounded down", got)
	}
}

func TestM19RolesNarrow(t *testing.T) {
	p, err := Parse("p", []byte(`
plans:
  mine:
    why: a test
    parallel: 7
    time: 300s
    cost_per_run: "1"
    cost_per_day: unlimited
    tokens_per_run: 10
    tokens_per_day: 100
    steps: 5
    tools: {allow: [memory.*, math, web], deny: [memory.drop]}
    roles:
      reader: {why: a test, steps: 2, tools: {allow: ["*"], deny: [web]}}
roles:
  reader: {why: a test, time: 60s, cost_per_run: 2}
`))
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Grant("mine", "reader", 20000)
	if err != nil {
		t.Fatal(err)
	}
	want := Limits{Time: time.Minute, CostPerRun: 2_000_000, CostPerDay: Unlimited, TokensPerRun: 20, TokensPerDay: 200, Steps: 2}
	if diff := cmp.Diff(want, g.Limits); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for tool, want := range map[string]bool{"memory.get": true, "memory.drop": false, "math": true, "maths": false, "web": false, "memory": false, "": false} {
		if got := g.Allows(tool); got != want {
			t.Errorf("%q: got %v, want %v", tool, got, want)
		}
	}
	if _, err := p.Grant("mine", "writer", 0); !errors.Is(err, ErrRole) {
		t.Errorf("got %v, want ErrRole", err)
	}
	if _, err := p.Grant("other", "", 0); !errors.Is(err, ErrPlan) {
		t.Errorf("got %v, want ErrPlan", err)
	}
	if (Grant{}).Allows("math") || (Tools{}).Allows("math") {
		t.Error("a zero value allows a tool")
	}
}

func TestParseRefuses(t *testing.T) {
	whole := func(change, to string) string {
		s := `plans: {casual: {why: x, parallel: 3, time: 60s, cost_per_run: 1, cost_per_day: 1, tokens_per_run: 1, tokens_per_day: 1, steps: 1, tools: {allow: ["*"]}}}`
		return strings.Replace(s, change, to, 1)
	}
	if _, err := Parse("p", []byte(whole("", ""))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ text, want string }{
		{"", "empty"}, {"a: [", "p:1: not YAML"}, {"\xff", "UTF-8"}, {"[]", "mapping"}, {"nope: 1", "nope: unknown key"},
		{whole("parallel: 3", "parallel: 4"), "plans.casual.parallel: want 2 to 3"},
		{whole("parallel: 3", "parallel: unlimited"), "want 2 to 3"},
		{whole("parallel: 3, ", ""), "plans.casual.parallel: missing"},
		{whole("time: 60s", "time: 301s"), "time from"}, {whole("time: 60s", "time: 60"), "time from"},
		{whole("cost_per_run: 1", "cost_per_run: 1e-2"), "decimal"}, {whole("cost_per_run: 1", "cost_per_run: -1"), "decimal"},
		{whole("cost_per_run: 1", "cost_per_run: .inf"), "decimal"}, {whole("cost_per_run: 1", "cost_per_run: null"), "want text, got nothing"},
		{whole("steps: 1", "steps: 1, steps: 2"), "given twice"}, {whole("steps: 1", "steps: 1, stepz: 2"), "plans.casual.stepz: unknown key"},
		{whole("steps: 1", "steps: 9007199254740992"), "integer"}, {whole("steps: 1", "steps: 0x10"), "integer"},
		{whole("steps: 1", "steps: &a 1"), "anchors"}, {whole("steps: 1", "steps: !!int 1"), "tags"},
		{whole(`"*"`, `"a*"`), "prefix"}, {whole(`"*"`, `"../x"`), "prefix"}, {whole("why: x", "why: ''"), "reason"},
		{whole("casual", "Casual"), "no name"}, {whole("", "") + "\n---\n{}", "more than one"},
	} {
		_, err := Parse("p", []byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\ngot %v, want %q", tt.text, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	src := Sources{Files: []string{a, b}}
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := Load(src); err != nil || len(p.Plans) != 5 {
		t.Fatalf("got %v %v, want the built-in ones", p, err)
	}
	write(a, "roles: {x: {why: first}, y: {why: first}}")
	write(b, "roles: {x: {why: second}}")
	p, err := Load(src)
	if err != nil || p.Roles["x"].Why != "second" || p.Roles["y"].Why != "first" || p.Plans[Casual].Parallel != 3 {
		t.Errorf("got %v %v", p.Roles, err)
	}
	write(b, "roles: {x: {}}")
	if p, err := Load(src); err == nil || len(p.Plans) != 0 {
		t.Errorf("got %v %v, want no plans at all", p, err)
	}
	if err := errors.Join(os.Remove(b), os.Mkdir(b, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(src); err == nil {
		t.Error("a folder in the place of the file was taken for no file")
	}
	getenv := func(xdg string) func(string) string {
		return func(k string) string { return map[string]string{"XDG_CONFIG_HOME": xdg, "HOME": "/h"}[k] }
	}
	if got := DefaultFiles(getenv("/x"))[1]; got != "/x/agentrun/plans.yaml" {
		t.Errorf("got %v", got)
	}
	if got := DefaultFiles(getenv("rel"))[1]; got != "/h/.config/agentrun/plans.yaml" {
		t.Errorf("got %v", got)
	}
}

// What the schema accepts the parser accepts, and the other way round, on examples of both kinds.
func TestSchemaAgreesWithParser(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("plans.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("plans.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		builtinYAML: true,
		"roles: {r: {why: x, cost_per_day: '0.02'}}":       true,
		"roles: {r: {why: x, steps: -1}}":                  false,
		"roles: {r: {why: x, time: soon}}":                 false,
		"roles: {r: {why: x, tools: {allow: ['a b']}}}":    false,
		"roles: {r: {}}":                                   false,
		"roles: {R: {why: x}}":                             false,
		"plans: {p: {why: x}}":                             false,
		"roles: {r: {why: x, cost_per_day: '0.00000001'}}": false,
		"other: 1": false,
		strings.Replace(builtinYAML, "parallel: 3", "parallel: 9", 1): false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		_, perr := Parse("p", []byte(text))
		if serr := s.Validate(value); (serr == nil) != want || (perr == nil) != want {
			t.Errorf("%.200s\nschema: %v\nparser: %v\nwant accepted: %v", text, serr, perr, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(builtinYAML))
	f.Add([]byte("roles: {r: {why: x, cost_per_day: 0.02, tools: {allow: [a.*]}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f", data)
		if err != nil && len(p.Plans)+len(p.Roles) > 0 {
			t.Error("plans beside an error")
		}
		for name := range p.Plans {
			g, err := p.Grant(name, "", 20000)
			if err != nil || g.Limits.CostPerRun < Unlimited || g.Limits.CostPerRun > MaxQuota || g.Parallel == 0 {
				t.Errorf("%+v %v", g, err)
			}
		}
	})
}

// memoryBank keeps one account; fail makes it unreachable.
type memoryBank struct {
	mu      sync.Mutex
	account Account
	fail    error
	calls   int
	lent    map[Day]Amounts
}

func (b *memoryBank) Borrow(_ context.Context, day Day, want, limit Amounts) (Loan, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if b.fail != nil {
		return Loan{}, b.fail
	}
	var got Amounts
	b.account, got = b.account.Lend(day, want, limit)
	if b.lent == nil {
		b.lent = map[Day]Amounts{}
	}
	b.lent[b.account.Day] = b.lent[b.account.Day].plus(got)
	return Loan{b.account.Day, got, b.account.Used}, nil
}

func (b *memoryBank) Return(_ context.Context, day Day, rest Amounts) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.account = b.account.Return(day, rest)
	b.lent[day] = b.lent[day].minus(rest)
	return nil
}

func (b *memoryBank) Book(_ context.Context, day Day, over Amounts) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil {
		b.account = b.account.Book(day, over)
	}
	return b.fail
}

type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func casual(t testing.TB) Grant {
	t.Helper()
	g, err := Builtin().Grant(Casual, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestM19HardStop(t *testing.T) {
	ctx, bank := t.Context(), &memoryBank{}
	l := NewLedger(casual(t), bank, newClock().now)
	first := l.Reserve(ctx, Amounts{Cost: 5_000, Tokens: 10})
	if !first.Allowed || first.Cap != 20_000 {
		t.Fatalf("got %+v, want room up to the run's cap", first)
	}
	if a := l.Reserve(ctx, Amounts{Cost: 15_001}); a.Allowed || a.Code != CodeCost || a.Next == "" || a.AtCap {
		t.Errorf("got %+v, want cost_exceeded", a)
	}
	if a := l.Reserve(ctx, Amounts{Tokens: 100_000}); a.Allowed || a.Code != CodeQuota {
		t.Errorf("got %+v, want quota_exceeded", a)
	}
	// A stream that goes on: it may grow to the cap, and is stopped in the middle there.
	if a := l.Settle(ctx, first.ID, Amounts{Cost: 20_000, Tokens: 20}, false); !a.Allowed || a.Warning == "" {
		t.Errorf("got %+v, want it to go on with a warning", a)
	}
	if a := l.Reserve(ctx, Amounts{Cost: 1}); a.Allowed || !a.AtCap {
		t.Errorf("got %+v, want a refusal at the cap", a)
	}
	if a := l.Settle(ctx, first.ID, Amounts{Cost: 20_001, Tokens: 20}, false); a.Allowed || a.Code != CodeCost || !a.AtCap {
		t.Errorf("got %+v, want the stop", a)
	}
	if a := l.Settle(ctx, first.ID, Amounts{Cost: 20_007, Tokens: 20}, true); a.Allowed || a.Over.Cost != 7 {
		t.Errorf("got %+v, want what was over told", a)
	}
	u, err := l.Usage(ctx)
	if got := l.Spent(); got != (Amounts{20_007, 20}) {
		t.Errorf("spent: got %+v, want what it cost", got)
	}
	if err != nil || u.RunSpent != (Amounts{20_000, 20}) || u.RunLeft.Cost != 0 || u.Over.Cost != 7 {
		t.Errorf("got %+v %v", u, err)
	}
	if a := l.Reserve(ctx, Amounts{}); !a.Allowed {
		t.Errorf("got %+v: what costs nothing needs no budget", a)
	}
	if a := l.Settle(ctx, 99, Amounts{}, true); a.Allowed {
		t.Error("a reservation that was never made was settled")
	}
}

func TestM19WarnsOnceAt80Percent(t *testing.T) {
	ctx := t.Context()
	l := NewLedger(casual(t), &memoryBank{}, newClock().now)
	if a := l.Reserve(ctx, Amounts{Cost: 15_999}); a.Warning != "" || a.Crossed != nil {
		t.Errorf("got %+v below 80 %%", a)
	}
	a := l.Reserve(ctx, Amounts{Cost: 1})
	if want := []Crossing{{"run_cost", 16_000, 20_000}}; !cmp.Equal(a.Crossed, want) || a.Warning == "" {
		t.Errorf("got %+v, want %v", a, want)
	}
	if a := l.Reserve(ctx, Amounts{Cost: 1}); a.Crossed != nil || a.Warning == "" {
		t.Errorf("got %+v, want the warning to stand and the crossing told once", a)
	}
}

func TestM19DayOverSeveralRuns(t *testing.T) {
	ctx, bank, c := t.Context(), &memoryBank{}, newClock()
	run := func(cost int64) bool {
		l := NewLedger(casual(t), bank, c.now)
		a := l.Reserve(ctx, Amounts{Cost: cost})
		l.Settle(ctx, a.ID, Amounts{Cost: cost}, true)
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
		return a.Allowed
	}
	for i := range 25 {
		if !run(20_000) {
			t.Fatalf("run %d was refused", i)
		}
	}
	if bank.account.Used.Cost != 500_000 || run(1) {
		t.Errorf("got %v used, want all and a refusal", bank.account.Used)
	}
	c.at = c.at.Add(-48 * time.Hour)
	if run(1) {
		t.Error("a clock that was set back gave the budget back")
	}
	c.at = c.at.Add(72 * time.Hour)
	if !run(1) {
		t.Error("the next day has no budget")
	}
	c.at = c.at.Add(-24 * time.Hour)
	if !run(1) || bank.account.Used.Cost != 2 {
		t.Errorf("got %v, want yesterday's clock to count on today's account", bank.account)
	}
}

// One agent of a team asks for more than the day has, again and again, or for all of it and uses next to nothing: the others of the team
// have the day's budget all the same, while its run lives.
func TestM19NoCallKeepsTheDayFromOthers(t *testing.T) {
	for what, hostile := range map[string]func(l *Ledger){
		"refused": func(l *Ledger) {
			if a := l.Reserve(t.Context(), Amounts{Cost: 500_001, Tokens: 2_000_000}); a.Allowed {
				t.Fatalf("got %+v, want a refusal", a)
			}
		},
		"settled": func(l *Ledger) {
			a := l.Reserve(t.Context(), Amounts{Cost: 490_000, Tokens: 990_000})
			if !a.Allowed {
				t.Fatalf("got %+v", a)
			}
			l.Settle(t.Context(), a.ID, Amounts{Cost: 1, Tokens: 1}, true)
		},
	} {
		bank, c, g := &memoryBank{}, newClock(), casual(t)
		g.Limits.CostPerRun, g.Limits.TokensPerRun = Unlimited, Unlimited
		l := NewLedger(g, bank, c.now)
		for range 3 {
			hostile(l)
		}
		other := NewLedger(g, bank, c.now)
		if a := other.Reserve(t.Context(), Amounts{Cost: 450_000, Tokens: 900_000}); !a.Allowed {
			t.Errorf("%s: got %+v with %+v on the day's account, want room", what, a, bank.account.Used)
		}
		if err := errors.Join(l.Close(t.Context()), other.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if spent := l.Spent().plus(other.Spent()); bank.account.Used != spent {
			t.Errorf("%s: %+v on the day's account, want what was spent: %+v", what, bank.account.Used, spent)
		}
	}
}

func TestM19Midnight(t *testing.T) {
	ctx, bank, c := t.Context(), &memoryBank{}, newClock()
	l := NewLedger(casual(t), bank, c.now)
	a := l.Reserve(ctx, Amounts{Cost: 100})
	c.at = c.at.Add(24 * time.Hour)
	b := l.Reserve(ctx, Amounts{Cost: 50})
	if !b.Allowed || bank.account.Day != DayOf(c.at) {
		t.Fatalf("got %+v %+v", b, bank.account)
	}
	l.Settle(ctx, a.ID, Amounts{Cost: 10}, true)
	l.Settle(ctx, b.ID, Amounts{Cost: 50}, true)
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if bank.account.Used.Cost != 50 {
		t.Errorf("got %v, want yesterday's rest not returned to today", bank.account.Used)
	}
}

func TestM19CrashCountsAsSpent(t *testing.T) {
	ctx, bank, c := t.Context(), &memoryBank{}, newClock()
	l := NewLedger(casual(t), bank, c.now)
	l.Reserve(ctx, Amounts{Cost: 1})
	lost := bank.account.Used.Cost
	if lost != 500_000/32 {
		t.Errorf("got %v borrowed, want a 32nd of the day", lost)
	}
	// Another run, later: what the dead one borrowed stays used.
	l = NewLedger(casual(t), bank, c.now)
	a := l.Reserve(ctx, Amounts{Cost: 7})
	l.Settle(ctx, a.ID, Amounts{Cost: 7}, true)
	if err := l.Close(ctx); err != nil || bank.account.Used.Cost != lost+7 {
		t.Errorf("got %v %v", bank.account.Used, err)
	}
}

// A gateway that has fallen names any amount. Of a day without a limit it takes nothing away from others, whether it leaves that amount
// reserved or says that a call has cost it.
func TestM19DayWithoutLimitIsNeverUsedUp(t *testing.T) {
	ctx, most := t.Context(), Amounts{MaxQuota, MaxQuota}
	g, err := Builtin().Grant("", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, claim := range map[string]func(l *Ledger){
		"reserved": func(l *Ledger) { l.Reserve(ctx, most) },
		"booked": func(l *Ledger) {
			for range 3 {
				l.Settle(ctx, l.Reserve(ctx, Amounts{}).ID, most, true)
			}
		},
	} {
		bank, c := &memoryBank{}, newClock()
		fallen, other := NewLedger(g, bank, c.now), NewLedger(g, bank, c.now)
		claim(fallen)
		if err := fallen.Close(ctx); err != nil || bank.account.Check() != nil || bank.account.Used != most {
			t.Errorf("%s: got %v, %v, want all that can be counted", name, bank.account, err)
		}
		a := other.Reserve(ctx, Amounts{Cost: 1000, Tokens: 1000})
		if b := other.Settle(ctx, a.ID, Amounts{Cost: 2000, Tokens: 2000}, true); !a.Allowed || a.Cap < 1000 || !b.Allowed {
			t.Errorf("%s: another run: got %+v and %+v", name, a, b)
		}
		if a := g.Fits(Estimate{Amounts: Amounts{Cost: 1}}, bank.account.Used); !a.Allowed {
			t.Errorf("%s: a run that is expected to cost something: got %+v", name, a)
		}
		if err := other.Close(ctx); err != nil || bank.account.Check() != nil {
			t.Errorf("%s: got %v, %v", name, bank.account, err)
		}
	}
}

func TestLedgerFailsClosed(t *testing.T) {
	ctx := t.Context()
	for name, l := range map[string]*Ledger{"nil": nil, "zero": {}, "no grant": NewLedger(Grant{}, &memoryBank{}, newClock().now)} {
		if a := l.Reserve(ctx, Amounts{Cost: 1}); a.Allowed {
			t.Errorf("%s: got %+v", name, a)
		}
	}
	bank := &memoryBank{}
	l := NewLedger(casual(t), bank, newClock().now)
	a := l.Reserve(ctx, Amounts{Cost: 1})
	bank.fail = errors.New("disk")
	if b := l.Settle(ctx, a.ID, Amounts{Cost: 19_999}, true); b.Allowed || b.Code != CodeUnavailable || b.Over.Cost == 0 {
		t.Errorf("got %+v, want unavailable", b)
	}
	bank.fail = nil
	if b := l.Reserve(ctx, Amounts{Cost: 1}); b.Allowed {
		t.Error("it goes on after a cost that is on no account")
	}
	l = NewLedger(casual(t), &memoryBank{}, newClock().now)
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if b := l.Reserve(ctx, Amounts{}); b.Allowed {
		t.Error("a closed ledger allows")
	}
	if err := (Account{Used: Amounts{Cost: -1}}).Check(); !errors.Is(err, ErrAccount) {
		t.Errorf("got %v, want ErrAccount", err)
	}
}

// Whatever is asked in whatever order: no more is booked than the caps, nothing is negative, and the account knows of all.
func FuzzLedger(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 250, 251, 252, 253, 254, 255, 9, 9, 9, 1, 1, 1})
	f.Add(bytes.Repeat([]byte{0, 255, 255, 16, 40, 40}, 20))
	f.Fuzz(func(t *testing.T, ops []byte) {
		ctx, bank, c := t.Context(), &memoryBank{}, newClock()
		g := Grant{Plan: "f", Limits: Limits{CostPerRun: 1000, CostPerDay: 1500, TokensPerRun: 300, TokensPerDay: 300}}
		runs := []*Ledger{NewLedger(g, bank, c.now), NewLedger(g, bank, c.now)}
		booked := []Amounts{{}, {}}
		for i := 0; i+2 < len(ops); i += 3 {
			k := int(ops[i]>>7) & 1
			l, x, y := runs[k], int64(ops[i+1])*4, int64(ops[i+2])
			switch ops[i] % 8 {
			case 0, 1, 2:
				l.Reserve(ctx, Amounts{x, y})
			case 3, 4:
				l.Settle(ctx, 1+uint64(y)%8, Amounts{x, y}, ops[i]&16 != 0)
			case 5:
				c.at = c.at.Add(time.Duration(int8(ops[i+1])) * time.Hour)
			case 6:
				l.Settle(ctx, 1+uint64(y)%8, Amounts{math.MaxInt64, math.MinInt64}, true)
			case 7:
				bank.fail = nil
				if ops[i+1] > 200 {
					bank.fail = errors.New("disk")
				}
			}
			for k, l := range runs {
				if used := l.spent.plus(l.held); !used.within(g.RunCap()) || !(Amounts{}).within(least(least(l.spent, l.held), l.loan)) || !booked[k].within(l.spent) {
					t.Fatalf("run %d: spent %v held %v loan %v", k, l.spent, l.held, l.loan)
				}
				booked[k] = l.spent
			}
			for day, lent := range bank.lent {
				if !lent.within(g.DayCap()) {
					t.Fatalf("%v lent on %v", lent, day)
				}
			}
			if err := bank.account.Check(); err != nil {
				t.Fatal(err)
			}
		}
		bank.fail = nil
		var lent, spent Amounts
		for _, l := range runs {
			if err := l.Close(ctx); err != nil {
				t.Fatal(err)
			}
			spent = spent.plus(l.spent)
		}
		for _, n := range bank.lent {
			lent = lent.plus(n)
		}
		if !spent.within(lent) {
			t.Errorf("%v spent, %v lent", spent, lent)
		}
	})
}

func TestLedgerConcurrent(t *testing.T) {
	ctx, bank, c := t.Context(), &memoryBank{}, newClock()
	l := NewLedger(casual(t), bank, c.now)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if a := l.Reserve(ctx, Amounts{Cost: 500}); a.Allowed {
				l.Settle(ctx, a.ID, Amounts{Cost: 500}, true)
			}
		})
	}
	wg.Wait()
	if l.spent.Cost != 20_000 || l.held.Cost != 0 {
		t.Errorf("got %v spent and %v held, want the run's cap", l.spent, l.held)
	}
}

func BenchmarkReserveSettle(b *testing.B) {
	g := Grant{Limits: unlimited()}
	l := NewLedger(g, &memoryBank{}, time.Now)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		a := l.Reserve(ctx, Amounts{Cost: 1, Tokens: 1})
		l.Settle(ctx, a.ID, Amounts{Cost: 1, Tokens: 1}, true)
	}
}

func TestM19EstimateBeforeTheStart(t *testing.T) {
	g := casual(t) // a run: 0.02, 100 000 tokens, 50 steps; a day: 0.5, 1 000 000
	for _, c := range []struct {
		text string
		used Amounts
		code rings.Code
		says string
	}{
		{"cost=0.02,tokens=100000,steps=50", Amounts{}, rings.CodeOK, ""},
		{"steps=50", Amounts{500_000, 1_000_000}, rings.CodeOK, ""},
		{"cost=0.020001", Amounts{}, CodeCost, "the run may cost 0.02, and 0.020001 is expected"},
		{"tokens=100001", Amounts{}, CodeQuota, "tokens: 100000"},
		{"steps=51", Amounts{}, CodeQuota, "steps: 50"},
		{"cost=0.01", Amounts{490_001, 0}, CodeCost, "today 0.009999"},
		{"tokens=10", Amounts{0, 2_000_000}, CodeQuota, "tokens today: 0"},
	} {
		e, err := ParseEstimate(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if a := g.Fits(e, c.used); a.Code != c.code || a.Allowed != (c.code == rings.CodeOK) || !strings.Contains(a.Message, c.says) {
			t.Errorf("%s after %+v: got %+v, want %s with %q", c.text, c.used, a, c.code, c.says)
		}
	}
	if a := (Grant{}).Fits(Estimate{Steps: 1}, Amounts{}); a.Allowed {
		t.Errorf("the zero grant has room: %+v", a)
	}
	for _, bad := range []string{"", "cost", "cost=", "cost=-1", "cost=1e3", "cost=0.0000001", "tokens=1.5", "tokens=-1", "steps=99999999999999999999", "cost=1,cost=2", "time=3s", "cost=1,", " cost=1"} {
		if e, err := ParseEstimate(bad); err == nil {
			t.Errorf("%q: took %+v", bad, e)
		}
	}
}

func TestM19AtCapIsSaid(t *testing.T) {
	for text, want := range map[string]bool{"": false, "at_cap: end": false, "at_cap: go_on": true} {
		p, err := Parse("x", []byte("plans:\n  p:\n    why: x\n    parallel: 1\n    time: 60s\n    cost_per_run: 1\n    cost_per_day: 1\n    tokens_per_run: 1\n    tokens_per_day: 1\n    steps: 1\n    tools: {allow: [\"*\"]}\n    "+text+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if g, err := p.Grant("p", "", 0); err != nil || g.GoOn != want {
			t.Errorf("%q: got %+v, %v", text, g, err)
		}
	}
}
