// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ask runs one line through Run and returns the answer.
func ask(t testing.TB, line string) string {
	t.Helper()
	var out strings.Builder
	if err := Run(strings.NewReader(line), &out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

type parsed struct {
	ID  json.RawMessage `json:"id"`
	Out json.RawMessage `json:"out"`
	Err *Error          `json:"error"`
}

// parse reads an answer, which has an id and either out or error and nothing else.
func parse(t testing.TB, line string) parsed {
	t.Helper()
	var p parsed
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("answer %.200q: %v", line, err)
	}
	if p.ID == nil || (p.Out == nil) == (p.Err == nil) {
		t.Fatalf("answer %.200q: want an id, and out or error", line)
	}
	return p
}

// The cases in rings/testdata are those anybody can run against any implementation.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("../rings/testdata/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	ids, ops, codes := map[string]bool{}, map[string]int{}, map[Code]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var diff strings.Builder
		res, err := Check(bytes.NewReader(text), &diff)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if res != (Result{Cases: len(lines), Compared: len(lines)}) {
			t.Errorf("%s: %+v of %d lines\n%s", name, res, len(lines), diff.String())
		}
		for _, line := range lines {
			var c struct{ ID, Op string }
			if err := json.Unmarshal([]byte(line), &c); err != nil || ids[c.ID] {
				t.Errorf("%s: case %q: %v, or there twice", name, c.ID, err)
			}
			ids[c.ID] = true
			ops[c.Op]++
			if p := parse(t, ask(t, line)); p.Err != nil {
				codes[p.Err.Code] = true
			}
		}
	}
	for _, op := range names() {
		if ops[op] < 3 {
			t.Errorf("%s: %d cases, want 3 or more", op, ops[op])
		}
	}
	for _, code := range []Code{UnknownOp, MissingField, UnknownField, DuplicateField, InvalidType, InvalidValue, InvalidScore, InvalidRing, TooMany} {
		if !codes[code] {
			t.Errorf("no case is answered with %s", code)
		}
	}
	t.Logf("%d cases", len(ids))
	if len(ids) < 80 {
		t.Errorf("%d cases, want 80 or more", len(ids))
	}
}

const good = `{"id":"next","op":"constraints","in":{"ring":3}}`

// Whatever a line is, it has its answer and the next has its own.
func TestEveryLineIsAnswered(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	cases := []struct {
		name, line string
		id         string
		code       Code
	}{
		{"no JSON", `assign`, `null`, InvalidJSON},
		{"cut", `{"id":1,"op":"assign"`, `null`, InvalidJSON},
		{"two values", good + good, `null`, InvalidJSON},
		{"not UTF-8", `{"id":"` + "\xff" + `","op":"assign","in":{}}`, `null`, InvalidJSON},
		{"byte order mark", "\ufeff" + good, `null`, InvalidJSON},
		{"NaN as a word", `{"id":1,"op":"assign","in":{"eff_score":NaN,"has_consensus":true}}`, `null`, InvalidJSON},
		{"deep", `{"id":1,"op":"assign","in":` + deep + `}`, `null`, InvalidJSON},
		{"NUL", "\x00", `null`, InvalidJSON},
		{"a list", `[1]`, `null`, InvalidType},
		{"null", `null`, `null`, InvalidType},
		{"nothing in it", `{}`, `null`, MissingField},
		{"no id", `{"op":"constraints","in":{"ring":3}}`, `null`, MissingField},
		{"id twice", `{"id":1,"id":2,"op":"constraints","in":{"ring":3}}`, `null`, DuplicateField},
		{"field twice", `{"id":1,"op":"constraints","in":{"ring":3,"ring":0}}`, `1`, DuplicateField},
		{"too long", `{"id":1,"op":"constraints","in":{"ring":3},"want":"` + strings.Repeat("x", MaxLine) + `"}`, `null`, LineTooLong},
		{"much too long", strings.Repeat(" ", 5*MaxLine), `null`, LineTooLong},
	}
	for _, c := range cases {
		var out strings.Builder
		if err := Run(strings.NewReader(c.line+"\n"+good+"\n"), &out); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out.String(), "\n")
		if len(lines) != 3 {
			t.Errorf("%s: %d lines, want two answers and the end", c.name, len(lines))
			continue
		}
		p := parse(t, lines[0])
		if p.Err == nil || p.Err.Code != c.code || string(p.ID) != c.id {
			t.Errorf("%s: %s, want id %s and %s", c.name, lines[0], c.id, c.code)
		}
		if next := parse(t, lines[1]); string(next.ID) != `"next"` || next.Err != nil {
			t.Errorf("%s: then %s", c.name, lines[1])
		}
	}
}

func TestLineEnds(t *testing.T) {
	for name, text := range map[string]string{
		"no last line end": good, "CRLF": good + "\r\n", "blank lines": "\n \n\t\r\n" + good + "\n\n",
		"longest": strings.TrimSuffix(good, "}") + `,"want":"` + strings.Repeat("x", MaxLine-len(good)-len(`,"want":""`)) + `"}`,
	} {
		if p := parse(t, ask(t, text)); string(p.ID) != `"next"` || p.Err != nil {
			t.Errorf("%s: %v", name, p.Err)
		}
	}
	if got := ask(t, ""); got != "" {
		t.Errorf("nothing is answered with %q", got)
	}
}

func TestIDComesBackAsGiven(t *testing.T) {
	for _, id := range []string{`1`, `1.0`, `-0`, `1e999`, `12345678901234567890123`, `"a"`, `"\u00e4\ud800<&>"`, `"ä"`, `null`, `true`, `[]`, `{"b":1,"a":[2,{}],"a":3}`} {
		if p := parse(t, ask(t, `{"in":{"ring":3},"op":"constraints","id":`+id+`}`)); string(p.ID) != id {
			t.Errorf("id %s came back as %s", id, p.ID)
		}
	}
	if p := parse(t, ask(t, `{"id": [ 1 , 2 ] ,"op":"x","in":{}}`)); string(p.ID) != `[1,2]` {
		t.Errorf("white space in the id came back: %s", p.ID)
	}
}

// A program may ask, read the answer and then decide what to ask next.
func TestAnswersComeAtOnce(t *testing.T) {
	in, askHere := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Run(in, out); out.Close() }()
	lines := bufio.NewScanner(answers)
	for i := range 3 {
		fmt.Fprintf(askHere, `{"id":%d,"op":"constraints","in":{"ring":3}}`+"\n", i)
		if !lines.Scan() {
			t.Fatal("no answer")
		}
		if p := parse(t, lines.Text()); string(p.ID) != fmt.Sprint(i) {
			t.Errorf("question %d: answer %s", i, p.ID)
		}
	}
	askHere.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(e.left, len(p))
	for i := range p[:n] {
		p[i] = 'x'
	}
	e.left -= n
	return n, nil
}

func TestMemoryIsBounded(t *testing.T) {
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if err := Run(&endless{left: 512 << 20}, io.Discard); err != nil {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("a line of 512 MiB cost %d bytes, want at most 16 MiB", used)
	}
}

func TestReadAndWriteErrors(t *testing.T) {
	broken := errors.New("broken")
	if err := Run(io.MultiReader(strings.NewReader(good+"\n"), failing{broken}), io.Discard); !errors.Is(err, broken) {
		t.Errorf("reading: %v, want %v", err, broken)
	}
	if err := Run(strings.NewReader(good), failing{broken}); !errors.Is(err, broken) {
		t.Errorf("writing: %v, want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestPanicIsAnAnswer(t *testing.T) {
	c := testCase{op: "assign", in: json.RawMessage("{}")}
	_, err := c.contain(func(*fields) (any, error) { panic("of ours") })
	if f := asFault(err); f.Code != Internal || !strings.Contains(f.Message, "of ours") {
		t.Errorf("got %v", f)
	}
}

func TestCheckFindsDifferences(t *testing.T) {
	want := func(w string) string { return strings.TrimSuffix(good, "}") + `,"want":` + w + `}` }
	cases := map[string]int{
		good: 0,
		want(`{"out":{"max_concurrent_tools":4}}`):                          0,
		want(`{"out":{"max_concurrent_tools":4.0,"network_allowlist":[]}}`): 0,
		want(`{"out":{}}`):                                                          0,
		want(`{"out":{"max_concurrent_tools":5}}`):                                  1,
		want(`{"out":{"max_concurrent_tools":"4"}}`):                                1,
		want(`{"out":{"max_concurrent_tools":4,"gpu":false}}`):                      1,
		want(`{"out":{"network_allowlist":["*"]}}`):                                 1,
		want(`{"out":{"network_allowed":null}}`):                                    1,
		want(`{"error":{"code":"invalid_ring"}}`):                                   1,
		want(`{"error":null}`):                                                      1,
		want(`null`):                                                                1,
		`{"id":1,"op":"x","in":{},"want":{"error":{"code":"unknown_op"}}}`:          0,
		`{"id":1,"op":"x","in":{},"want":{"out":{}}}`:                               1,
		`{"id":1,"op":"x","in":{},"want":{"error":{"code":"unknown_op"}},"more":1}`: 1,
	}
	for line, different := range cases {
		var diff strings.Builder
		res, err := Check(strings.NewReader(line), &diff)
		if err != nil {
			t.Fatal(err)
		}
		if res.Different != different || res.Cases != 1 || (diff.Len() > 0) != (different > 0) {
			t.Errorf("%s: %+v %q, want %d different", line, res, diff.String(), different)
		}
	}
}

// sentences are for people, and may be put better at any time.
var sentences = regexp.MustCompile(`"(message|reason)":"[^" ]* (?:[^"\\]|\\.)*"`)

// docs/conformance.md: what it shows is what happens, and nothing is missing.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for _, op := range names() {
		if operation(op) == nil {
			t.Errorf("%s is listed but unknown", op)
		}
		if !strings.Contains(doc, "\n### `"+op+"`\n") {
			t.Errorf("%s has no section", op)
		}
		if !strings.Contains(doc, `"op":"`+op+`"`) {
			t.Errorf("%s has no example", op)
		}
	}
	for _, code := range []Code{InvalidJSON, LineTooLong, UnknownOp, MissingField, UnknownField, DuplicateField, InvalidType, InvalidValue, InvalidScore, InvalidRing, TooMany, Internal} {
		if !strings.Contains(doc, "| `"+string(code)+"` |") {
			t.Errorf("%s is explained nowhere", code)
		}
	}
	plain := func(answer string) string { return sentences.ReplaceAllString(answer, `"$1":"…"`) }
	examples := 0
	for i, block := range strings.Split(doc, "```jsonl\n") {
		if i == 0 {
			continue
		}
		block, _, _ = strings.Cut(block, "```")
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if len(lines)%2 != 0 {
			t.Errorf("a block isn't cases and answers in turn:\n%s", block)
			continue
		}
		for n := 0; n < len(lines); n += 2 {
			examples++
			if diff := cmp.Diff(plain(lines[n+1]), plain(ask(t, lines[n]))); diff != "" {
				t.Errorf("%s\n(-docs +answer)\n%s", lines[n], diff)
			}
		}
	}
	if examples < len(names()) {
		t.Errorf("%d examples", examples)
	}
}

// Every line has exactly one answer, and the line after it its own.
func FuzzRun(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("\n\r\n{}\n[]"))
	files, err := filepath.Glob("../rings/testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		f.Fatal("no cases", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if i%8 == 0 && !bytes.Contains(line, []byte("hang")) {
				f.Add(line)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("hang")) {
			return // each costs its time limit
		}
		var out bytes.Buffer
		if err := Run(io.MultiReader(bytes.NewReader(text), strings.NewReader("\n"+good)), &out); err != nil {
			t.Fatal(err)
		}
		want := 1
		for _, line := range bytes.Split(text, []byte("\n")) {
			if len(bytes.TrimSpace(line)) > 0 {
				want++
			}
		}
		answers := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(answers) != want {
			t.Fatalf("%d answers, want %d", len(answers), want)
		}
		for _, a := range answers {
			if p := parse(t, a); p.Err != nil && p.Err.Code == Internal {
				t.Fatalf("a mistake of ours: %s", a)
			}
		}
		if last := parse(t, answers[want-1]); string(last.ID) != `"next"` || last.Err != nil {
			t.Fatalf("the last answer is %s", answers[want-1])
		}
	})
}

func BenchmarkRun(b *testing.B) {
	var text bytes.Buffer
	lines := 0
	for _, name := range []string{"assign", "check", "action", "elevate"} {
		file, err := os.ReadFile("../rings/testdata/" + name + ".jsonl")
		if err != nil {
			b.Fatal(err)
		}
		lines += bytes.Count(file, []byte("\n"))
		text.Write(file)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if err := Run(bytes.NewReader(text.Bytes()), io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "cases/s")
}

// names are those of all operations that were ever promised.
func names() []string {
	return []string{
		"assign", "should_demote", "classify", "validate_action", "check", "constraints", "resource", "elevate", "identifier",
		"session_config", "path_access", "rate", "saga", "kill", "breach", "audit_verify",
	}
}
