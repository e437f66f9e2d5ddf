// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"agentrun/internal/read"
)

var update = flag.Bool("update", false, "append to testdata/golden.jsonl what is missing there")

var comparer = cmp.Options{cmp.AllowUnexported(Number{})}

func fixed(t time.Time) func() time.Time { return func() time.Time { return t } }

func memoryOf(t testing.TB, records ...Record) *Memory {
	t.Helper()
	m, err := NewMemory(NodeChain, fixed(at))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if _, err := m.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func linesOf(b []byte) [][]byte { return bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) }

// Every kind has an example, a name of its own and a decoder.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for i, pair := range examples() {
		k := Kinds()[i]
		for _, r := range pair {
			if r.Kind() != k {
				t.Errorf("example %d is a %s, want %s", i, r.Kind(), k)
			}
		}
		if back, ok := ParseKind(string(k)); !ok || back != k || seen[string(k)] || !isCode(string(k)) {
			t.Errorf("name of kind %d: %q", i, k)
		}
		seen[string(k)] = true
		if r := newRecord(k); r == nil || reflect.TypeOf(r) != reflect.TypeOf(pair[0]) {
			t.Errorf("newRecord(%s) = %T", k, r)
		}
		if kinds[i].why == "" {
			t.Errorf("kind %s has no reason to be there", k)
		}
	}
	if len(Kinds()) != len(seen) {
		t.Errorf("%d kinds have examples, there are %d", len(seen), len(Kinds()))
	}
	for _, k := range []Kind{"", "invalid"} {
		if _, ok := ParseKind(string(k)); ok || newRecord(k) != nil {
			t.Errorf("%q is a kind", k)
		}
	}
}

// The members stand where RFC 8785 wants them and are spelled as it says, by the word of a library that knows none of our
// code; and what is hashed is the line without the member hash.
func TestCanonicalForm(t *testing.T) {
	for _, line := range linesOf(memoryOf(t, allExamples()...).Lines()) {
		want, err := jcs.Transform(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if diff := cmp.Diff(string(want), string(line)); diff != "" {
			t.Errorf("not canonical (-want +got):\n%s", diff)
		}
		checkHashByOthers(t, line)
	}
}

// checkHashByOthers does it as a stranger would, from docs/audit.md alone.
func checkHashByOthers(t interface {
	Helper()
	Errorf(string, ...any)
}, line []byte) {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		t.Errorf("%s: %v", line, err)
		return
	}
	var said string
	json.Unmarshal(members["hash"], &said)
	delete(members, "hash")
	rest, err := json.Marshal(members)
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	content, err := jcs.Transform(rest)
	if err != nil {
		t.Errorf("%s: %v", rest, err)
		return
	}
	if got := Hash(sha256.Sum256(content)).String(); got != said {
		t.Errorf("%s\nhash of the content is %s", line, got)
	}
}

// One line for each example, byte for byte. Lines are only ever added: they are promises to chains that exist.
func TestGolden(t *testing.T) {
	const name = "testdata/golden.jsonl"
	var lines []string
	// Each stands in a chain of its own, so that a new kind changes no line.
	for _, r := range allExamples() {
		lines = append(lines, strings.TrimSuffix(string(memoryOf(t, r).Lines()), "\n"))
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	n := 0
	for ; scan.Scan(); n++ {
		if n >= len(lines) {
			t.Fatalf("%s:%d: no example any more: a kind was taken away", name, n+1)
		}
		if diff := cmp.Diff(scan.Text(), lines[n]); diff != "" {
			t.Errorf("%s:%d (-golden +now):\n%s", name, n+1, diff)
		}
		e, err := DecodeEntry(scan.Bytes())
		if err != nil {
			t.Errorf("%s:%d: %v", name, n+1, err)
			continue
		}
		if diff := cmp.Diff(allExamples()[n], e.Data, comparer); diff != "" {
			t.Errorf("%s:%d decoded (-want +got):\n%s", name, n+1, diff)
		}
	}
	if n == len(lines) {
		return
	}
	if !*update {
		t.Fatalf("%s has %d lines, there are %d examples; go test -run TestGolden -update adds them", name, n, len(lines))
	}
	for _, line := range lines[n:] {
		if _, err := f.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestH27RecordFields(t *testing.T) {
	// The words of the specification, kind by kind.
	for kind, want := range map[Kind][]string{
		"action_attempt": {"agent_id", "action", "ring", "eff_score", "timestamp"},
		"ring_check":     {"allowed", "required_ring", "agent_ring", "reason"},
		"rate_limit":     {"agent_id", "action", "bucket_tokens", "exhausted"},
		"elevation":      {"agent_id", "target_ring", "trust_score", "granted"},
		"kill":           {"agent_id", "reason", "callbacks_executed", "handoff_agent_id"},
		"saga_step":      {"saga_id", "step_id", "state", "attempt_count", "compensated"},
		"quarantine":     {"agent_id"},
		"sandbox_start":  {"plan_digest"},
		"sandbox_end":    {"plan_digest"},
	} {
		for _, r := range examples()[slices.Index(Kinds(), kind)] {
			e := entryOf(t, r)
			var data map[string]json.RawMessage
			line, err := e.Line()
			if err != nil {
				t.Fatal(err)
			}
			var outer struct{ Data json.RawMessage }
			if err := json.Unmarshal(line, &outer); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(outer.Data, &data); err != nil {
				t.Fatal(err)
			}
			for _, field := range want {
				if _, ok := data[field]; !ok {
					t.Errorf("%s has no %s, whatever else is left out: %s", kind, field, line)
				}
			}
		}
	}
}

func entryOf(t interface {
	Helper()
	Fatal(...any)
}, r Record) Entry {
	t.Helper()
	m, err := NewMemory(NodeChain, fixed(at))
	if err != nil {
		t.Fatal(err)
	}
	e, err := m.Append(r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// What a field doesn't say exactly is refused, and the chain is as it was.
func TestRefusedRecords(t *testing.T) {
	m := memoryOf(t, &Rotation{Next: "x"})
	before := m.Head()
	for name, r := range map[string]Record{
		"nil":                 nil,
		"empty":               &ActionAttempt{},
		"no time":             &ActionAttempt{Action: "a", AgentID: "a"},
		"year 1969":           &ActionAttempt{Action: "a", AgentID: "a", Timestamp: time.Unix(-1, 0)},
		"year 10000":          &ActionAttempt{Action: "a", AgentID: "a", Timestamp: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"no UTF-8":            &Rotation{Next: "a\xff"},
		"257 bytes":           &Rotation{Next: strings.Repeat("a", 257)},
		"text as a code":      &KillOrder{AgentID: "a", Reason: "because I say so", Trigger: "operator"},
		"no required ring":    &RingCheck{Action: "x", AgentID: "a", Reason: "ok"},
		"ring 4":              &ElevationEnd{AgentID: "a", Cause: "expired", ElevationID: "e", Ring: 5},
		"no digest":           &SandboxStart{Profile: "p", Ring: Sandbox, RunID: "r"},
		"negative":            &Refusal{Count: -1, RunID: "r", Syscall: "x", Verdict: "EPERM"},
		"over 2^53-1":         &Refusal{Count: MaxInteger + 1, RunID: "r", Syscall: "x", Verdict: "EPERM"},
		"65 steps":            &Saga{FailedSteps: make([]string, 65), SagaID: "s", State: "escalated"},
		"an empty step":       &Saga{FailedSteps: []string{""}, SagaID: "s", State: "escalated"},
		"a step that is long": &Saga{FailedSteps: []string{strings.Repeat("a", 257)}, SagaID: "s", State: "escalated"},
	} {
		if e, err := m.Append(r); err == nil || e.Data != nil {
			t.Errorf("%s: got entry %v, error %v", name, e, err)
		}
	}
	if m.Head() != before {
		t.Error("a refused record changed the chain")
	}
}

func TestNumbers(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if n := NumberOf(v); n != (Number{}) || n.String() != "null" {
			t.Errorf("NumberOf(%v) = %v, want null", v, n)
		}
	}
	if n := NumberOf(math.Copysign(0, -1)); n != NumberOf(0) {
		t.Error("-0 and 0 are two numbers")
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.OneOf(rapid.Float64(), rapid.Custom(func(t *rapid.T) float64 {
			return math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		})).Draw(t, "v")
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
		got := NumberOf(v).String()
		want, err := jcs.Transform([]byte("[" + strconv.FormatFloat(v, 'g', 17, 64) + "]"))
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want[1:len(want)-1]) {
			t.Fatalf("%v: got %s, the library %s", v, got, want)
		}
	})
}

// Text of any kind has the form that the library gives it, and comes back.
func TestTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringN(0, 40, 200), rapid.Map(rapid.SliceOfN(rapid.RuneFrom([]rune("a\"\\\b\t\n\f\r\x00\x1f\x7f<&é\u2028\uffff\U0001F600/")), 0, 20), func(r []rune) string { return string(r) })).Draw(t, "s")
		got, err := text(nil, s, 1000)
		if s == "" {
			if err == nil {
				t.Fatal("no text is a text")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		quoted, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jcs.Transform(append(append([]byte("["), quoted...), ']'))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want[1:len(want)-1]) {
			t.Fatalf("%q: got %s, the library %s", s, got, want)
		}
		value, rest := cutMember([]byte(`{"x":`+string(got)+`,"rest":1}`), "x")
		var back string
		if parseValue(value, &back); back != s || string(rest) != `,"rest":1}` {
			t.Fatalf("%q: read back %q, %q", s, back, rest)
		}
	})
}

func TestTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, 253402300799).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
		e := entryOf(t, &Kill{AgentID: "a", KilledAt: at, Reason: "manual"})
		line, err := e.Line()
		if err != nil {
			t.Fatal(err)
		}
		text := at.Format(timeLayout)
		if back, err := DecodeEntry(line); err != nil || !strings.Contains(string(line), `"killed_at":"`+text+`"`) || back.Data.(*Kill).KilledAt != at {
			t.Fatalf("%s read back as %v, %v", line, back.Data, err)
		}
		changed := []byte(text)
		i := rapid.IntRange(0, len(text)-1).Draw(t, "i")
		changed[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "bit"))
		back, err := DecodeEntry(bytes.Replace(line, []byte(text), changed, 1))
		if err == nil && back.Data.(*Kill).KilledAt.Format(timeLayout) != string(changed) {
			t.Fatalf("%s read as %v", changed, back.Data)
		}
	})
	line, err := entryOf(t, &Kill{AgentID: "a", KilledAt: at, Reason: "manual"}).Line()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"2026-02-30T00:00:00.000000000Z", "2026-01-01T24:00:00.000000000Z", "2026-01-01T00:00:60.000000000Z", "1969-12-31T23:59:59.000000000Z", "2026-01-01T00:00:00.00000000+Z"} {
		for _, member := range []string{"killed_at", "time"} {
			was := `"` + member + `":"` + at.Format(timeLayout)
			if _, err := DecodeEntry([]byte(strings.Replace(string(line), was, `"`+member+`":"`+s, 1))); err == nil {
				t.Errorf("%s is a time of %s", s, member)
			}
		}
	}
}

// Other spellings of a sound entry. All have the same meaning to a lenient reader.
func TestDecodeIsStrict(t *testing.T) {
	line := string(linesOf(memoryOf(t, &Saga{AgentID: "aé\n", FailedSteps: []string{"x", "y"}, SagaID: "s", State: "escalated"}).Lines())[0])
	if _, err := DecodeEntry([]byte(line)); err != nil {
		t.Fatal(err)
	}
	swap := func(old, new string) string {
		if strings.Count(line, old) < 1 {
			t.Fatalf("%s is not in %s", old, line)
		}
		return strings.Replace(line, old, new, 1)
	}
	for name, bad := range map[string]string{
		"empty":               "",
		"null":                "null",
		"space":               swap(`,"kind"`, `, "kind"`),
		"leading space":       " " + line,
		"trailing newline":    line + "\n",
		"trailing value":      line + "{}",
		"twice":               line + line,
		"unknown member":      swap(`,"kind"`, `,"extra":1,"kind"`),
		"unknown data":        swap(`"saga_id"`, `"new":1,"saga_id"`),
		"duplicate":           swap(`,"kind"`, `,"hash":"`+strings.Repeat("0", 64)+`","kind"`),
		"duplicate data":      swap(`"saga_id":"s"`, `"saga_id":"s","saga_id":"s"`),
		"duplicate kind":      swap(`"kind":"saga"`, `"kind":"saga","kind":"saga"`),
		"other order":         swap(`"saga_id":"s","state":"escalated"`, `"state":"escalated","saga_id":"s"`),
		"escaped letter":      swap(`"saga_id":"s"`, `"saga_id":"\u0073"`),
		"long escape":         swap(`\n`, `\u000a`),
		"escaped non-ASCII":   swap(`é`, `\u00e9`),
		"escaped slash":       swap(`"saga_id":"s"`, `"saga_id":"\/"`),
		"raw control":         swap(`\n`, "\x01"),
		"no UTF-8":            swap(`é`, "\xff"),
		"lone surrogate":      swap(`é`, `\ud800`),
		"upper-case hash":     swap(`"hash":"`, `"hash":"A`),
		"empty list":          swap(`["x","y"]`, `[]`),
		"null list":           swap(`["x","y"]`, `null`),
		"trailing comma":      swap(`["x","y"]`, `["x","y",]`),
		"float seq":           swap(`"seq":0`, `"seq":0.0`),
		"leading zero":        swap(`"seq":0`, `"seq":00`),
		"negative seq":        swap(`"seq":0`, `"seq":-0`),
		"large seq":           swap(`"seq":0`, `"seq":9007199254740992`),
		"huge seq":            swap(`"seq":0`, `"seq":99999999999999999999999`),
		"text seq":            swap(`"seq":0`, `"seq":"0"`),
		"short time":          swap(`.012345670Z`, `.01234567Z`),
		"other zone":          swap(`.012345670Z`, `.012345670+00:00`),
		"other kind":          swap(`"kind":"saga"`, `"kind":"kill"`),
		"unknown kind":        swap(`"kind":"saga"`, `"kind":"sagas"`),
		"invalid kind":        swap(`"kind":"saga"`, `"kind":"invalid"`),
		"no chain":            swap(`"chain":"node"`, `"chain":""`),
		"path as chain":       swap(`"chain":"node"`, `"chain":"../node"`),
		"state is no code":    swap(`"escalated"`, `"Escalated!"`),
		"byte order mark":     "\ufeff" + line,
		"too long":            swap(`"s"`, `"`+strings.Repeat("s", MaxLine)+`"`),
		"empty optional text": swap(`"agent_id":"aé\n"`, `"agent_id":""`),
	} {
		if e, err := DecodeEntry([]byte(bad)); err == nil || e.Kind != "" || e.Data != nil {
			t.Errorf("%s: accepted as %+v, error %v", name, e, err)
		}
	}
}

func TestClaimed(t *testing.T) {
	for in, want := range map[string]string{"": "(empty)", "a": "a", "did:x:1": "did:x:1"} {
		if got := Claimed(in); got != want {
			t.Errorf("Claimed(%q) = %q", in, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "s"))
		if _, err := appendData(nil, &Rotation{Next: Claimed(s)}); err != nil {
			t.Fatal(err)
		}
	})
	a, b := strings.Repeat("x", 1000)+"a", strings.Repeat("x", 1000)+"b"
	if Claimed(a) == Claimed(b) {
		t.Error("two claims look the same")
	}
}

func FuzzDecodeEntry(f *testing.F) {
	for _, line := range linesOf(memoryOf(f, allExamples()...).Lines()) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, sum, err := decode(line)
		if (err == nil) != (e.Data != nil) || (err == nil) != (e.Kind != "") {
			t.Fatalf("want exactly one of entry and error, got %+v, %v", e, err)
		}
		if err != nil {
			return
		}
		// Whatever is accepted is what we would write, and what the library calls canonical.
		e.Hash = sum
		back, err := e.Line()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		i := bytes.Index(back, []byte(hashMember+sum.String()))
		if i < 0 || len(back) != len(line) || !bytes.Equal(back[:i], line[:i]) || !bytes.Equal(back[i+hashSize:], line[i+hashSize:]) {
			t.Fatalf("read  %s\nwrote %s", line, back)
		}
		want, err := jcs.Transform(line)
		if err != nil || !bytes.Equal(want, line) {
			t.Fatalf("accepted %s, canonical is %s, %v", line, want, err)
		}
		checkHashByOthers(t, back)
	})
}

// The form that VerifyEntries hashes, against another implementation.
func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{`{"b":[1,1e30,null,true],"a":"\u20ac"}`, `{"\ue000":1,"\ud800\udc00":2}`, `-0`, `5e-324`, `{"a":1,"a":2}`, `"\ud800"`, `[[[]]]`, `1 2`, `"\ud800\udc00"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := read.Canonical(raw, finite)
		if err != nil {
			return
		}
		want, err := jcs.Transform(raw)
		if err != nil {
			t.Fatalf("%q: we accept it as %s, the library doesn't: %v", raw, got, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%q: got %s, the library %s", raw, got, want)
		}
	})
}
