// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrun/internal/read"
)

func valid() Action {
	undo := "/files/restore"
	return Action{
		ID: "file.delete", Name: "Delete a file", ExecuteAPI: "/files/delete", UndoAPI: &undo,
		Reversibility: Partial, UndoWindowSeconds: 60,
	}
}

// paths lists the fields that an error finds fault with.
func paths(err error) []string {
	invalid, ok := errors.AsType[*read.InvalidError](err)
	if !ok {
		return nil
	}
	var list []string
	for _, p := range invalid.Problems {
		list = append(list, p.Path)
	}
	return list
}

func TestH6RequiredRing(t *testing.T) {
	for _, tt := range []struct {
		admin, readOnly bool
		reversibility   Reversibility
		want            Ring
	}{
		{false, false, Full, Standard}, {false, false, Partial, Standard}, {false, false, Irreversible, Privileged},
		{false, true, Full, Sandbox}, {false, true, Partial, Sandbox}, {false, true, Irreversible, Sandbox},
		{true, false, Full, Root}, {true, false, Partial, Root}, {true, false, Irreversible, Root},
		{true, true, Full, Root}, {true, true, Partial, Root}, {true, true, Irreversible, Root},
	} {
		got, err := Classify(tt.admin, tt.reversibility, tt.readOnly)
		if got != tt.want || err != nil {
			t.Errorf("%+v: got %v, %v", tt, got, err)
		}
		if got := (Action{Admin: tt.admin, Reversibility: tt.reversibility, ReadOnly: tt.readOnly}).RequiredRing(); got != tt.want {
			t.Errorf("%+v: RequiredRing %v", tt, got)
		}
	}
	for _, unknown := range []Reversibility{"", "full", "Full", "FULL ", "SOME", "null", "0"} {
		for _, readOnly := range []bool{false, true} {
			if got, err := Classify(false, unknown, readOnly); got != Root || !errors.Is(err, ErrReversibility) {
				t.Errorf("%q: got %v, %v, want ring 0 and ErrReversibility", unknown, got, err)
			}
		}
	}
}

func TestH7ActionCheck(t *testing.T) {
	text := func(n int, s string) string { return strings.Repeat(s, n) }
	undo := func(s string) func(*Action) { return func(a *Action) { a.UndoAPI = &s } }
	for _, tt := range []struct {
		name   string
		change func(*Action)
		want   []string
	}{
		{"as it is", func(*Action) {}, nil},
		{"no undo", func(a *Action) { a.UndoAPI = nil }, nil},
		{"longest", func(a *Action) {
			a.ID, a.Name, a.ExecuteAPI, a.UndoWindowSeconds = text(256, "x"), text(256, "x"), text(2048, "x"), 86400
		}, nil},
		{"code points, not bytes", func(a *Action) { a.Name, a.ExecuteAPI = text(256, "語"), text(2048, "😀") }, nil},
		{"name one too long", func(a *Action) { a.Name = text(257, "x") }, []string{"name"}},
		{"name empty", func(a *Action) { a.Name = "" }, []string{"name"}},
		{"name of two lines", func(a *Action) { a.Name = "read\nallowed" }, []string{"name"}},
		{"name drives the terminal", func(a *Action) { a.Name = "\x1b[2Jread" }, []string{"name"}},
		{"name runs backwards", func(a *Action) { a.Name = "\u202edaer" }, []string{"name"}},
		{"name is no text", func(a *Action) { a.Name = "a\xff" }, []string{"name"}},
		{"id", func(a *Action) { a.ID = "file delete" }, []string{"action_id"}},
		{"api", func(a *Action) { a.ExecuteAPI = text(2049, "x") }, []string{"execute_api"}},
		{"undo empty", undo(""), []string{"undo_api"}},
		{"undo too long", undo(text(2049, "x")), []string{"undo_api"}},
		{"reversibility", func(a *Action) { a.Reversibility = "full" }, []string{"reversibility"}},
		{"window below", func(a *Action) { a.UndoWindowSeconds = -1 }, []string{"undo_window_seconds"}},
		{"window above", func(a *Action) { a.UndoWindowSeconds = 86401 }, []string{"undo_window_seconds"}},
		{"window huge", func(a *Action) { a.UndoWindowSeconds = math.MaxInt }, []string{"undo_window_seconds"}},
		{"zero", func(a *Action) { *a = Action{} }, []string{"action_id", "name", "execute_api", "reversibility"}},
		{"all", func(a *Action) { *a = Action{UndoAPI: new(string), UndoWindowSeconds: -1} },
			[]string{"action_id", "name", "execute_api", "undo_api", "reversibility", "undo_window_seconds"}},
	} {
		a := valid()
		tt.change(&a)
		if diff := cmp.Diff(tt.want, paths(a.Check())); diff != "" {
			t.Errorf("%s: fields at fault (-want +got):\n%s", tt.name, diff)
		}
	}
}

const validJSON = `{"action_id":"file.delete","name":"Delete a file","execute_api":"/files/delete","undo_api":"/files/restore",` +
	`"reversibility":"PARTIAL","undo_window_seconds":60,"is_read_only":false,"is_admin":false}`

func TestH7DecodeAction(t *testing.T) {
	got, err := DecodeAction([]byte(validJSON))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(valid(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := json.Marshal(got)
	if err != nil || string(text) != validJSON {
		t.Errorf("back to JSON: %s, %v", text, err)
	}
	for _, gone := range []string{`"undo_api":"/files/restore",`, `"undo_window_seconds":60,`} {
		if _, err := DecodeAction([]byte(strings.Replace(validJSON, gone, "", 1))); err != nil {
			t.Errorf("without %s: %v", gone, err)
		}
	}
	if got, err := DecodeAction([]byte(strings.Replace(validJSON, `"/files/restore"`, `null`, 1))); err != nil || got.UndoAPI != nil {
		t.Errorf("undo_api null: %v, %v", got.UndoAPI, err)
	}
}

func TestH7DecodeRefuses(t *testing.T) {
	for _, tt := range []struct {
		old, new string
		want     []string
	}{
		{`:60`, `:true`, []string{"undo_window_seconds"}}, // a bool is no int
		{`:60`, `:60.0`, []string{"undo_window_seconds"}},
		{`:60`, `:6e1`, []string{"undo_window_seconds"}},
		{`:60`, `:-0`, []string{"undo_window_seconds"}},
		{`:60`, `:"60"`, []string{"undo_window_seconds"}},
		{`:60`, `:null`, []string{"undo_window_seconds"}},
		{`:60`, `:18446744073709551676`, []string{"undo_window_seconds"}}, // 60 in 64 bits
		{`:60`, `:1e400`, []string{"undo_window_seconds"}},
		{`:60`, `:[60]`, []string{"undo_window_seconds"}},
		{`:60`, `:-1`, []string{"undo_window_seconds"}},
		{`:60`, `:NaN`, []string{""}},
		{`:60`, `:060`, []string{""}},
		{`"is_admin":false`, `"is_admin":0`, []string{"is_admin"}}, // an int is no bool
		{`"is_admin":false`, `"is_admin":"false"`, []string{"is_admin"}},
		{`"is_admin":false`, `"is_admin":null`, []string{"is_admin"}},
		{`,"is_admin":false`, ``, []string{"is_admin"}}, // not said is not "no"
		{`,"is_admin":false`, `,"is_admin":true,"is_admin":false`, []string{"is_admin"}},
		{`,"is_admin":false`, `,"IS_ADMIN":false`, []string{"is_admin", "IS_ADMIN"}},
		{`"is_read_only":false`, `"is_read_only":1`, []string{"is_read_only"}},
		{`"is_read_only":false,`, ``, []string{"is_read_only"}},
		{`"Delete a file"`, `7`, []string{"name"}},
		{`"Delete a file"`, `{"en":"Delete"}`, []string{"name"}},
		{`"Delete a file"`, `null`, []string{"name"}},
		{`"Delete a file"`, `["Delete a file"]`, []string{"name"}},
		{`"Delete a file"`, `"\ud800"`, []string{"name"}}, // half a character
		{`"Delete a file"`, `"\u0000"`, []string{"name"}},
		{`"Delete a file"`, "\"a\xff\"", []string{""}},
		{`"/files/restore"`, `""`, []string{"undo_api"}},
		{`"/files/restore"`, `false`, []string{"undo_api"}},
		{`"PARTIAL"`, `"partial"`, []string{"reversibility"}},
		{`"PARTIAL"`, `null`, []string{"reversibility"}},
		{`"PARTIAL"`, `2`, []string{"reversibility"}},
		{`"file.delete"`, `"file.delete\n"`, []string{"action_id"}},
		{`{`, `{"ring":1,`, []string{"ring"}},
		{`}`, `,"\u001b[2J":1}`, []string{`"\x1b[2J"`}},
		{`}`, `}{}`, []string{""}},
		{`}`, `} x`, []string{""}},
		{`}`, ``, []string{""}},
		{`}`, `,}`, []string{""}},
		{validJSON, ``, []string{""}},
		{validJSON, `null`, []string{""}},
		{validJSON, `[]`, []string{""}},
		{validJSON, `"x"`, []string{""}},
		{validJSON, `{}`, []string{"action_id", "name", "execute_api", "reversibility", "is_read_only", "is_admin"}},
		{validJSON, "\ufeff" + validJSON, []string{""}},
		{validJSON, strings.Repeat(" ", MaxActionJSON) + validJSON, []string{""}},
		{validJSON, `{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, []string{""}},
		{`"Delete a file"`, `"` + strings.Repeat("x", 257) + `"`, []string{"name"}},
	} {
		text := strings.Replace(validJSON, tt.old, tt.new, 1)
		if text == validJSON {
			t.Fatalf("%s is not in the valid action", tt.old)
		}
		got, err := DecodeAction([]byte(text))
		if diff := cmp.Diff(tt.want, paths(err)); diff != "" {
			t.Errorf("%s for %s: fields at fault (-want +got):\n%s%v", tt.new, tt.old, diff, err)
		}
		if diff := cmp.Diff(Action{}, got); diff != "" {
			t.Errorf("%s for %s: an action beside the error:\n%s", tt.new, tt.old, diff)
		}
	}
}

func TestH7DecodeReportsEveryField(t *testing.T) {
	_, err := DecodeAction([]byte(`{"action_id":1,"name":"","execute_api":null,"undo_api":3,"reversibility":"x","undo_window_seconds":false,"is_read_only":0,"extra":1}`))
	want := []string{"action_id", "name", "execute_api", "undo_api", "reversibility", "undo_window_seconds", "is_read_only", "is_admin", "extra"}
	if diff := cmp.Diff(want, paths(err)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The same member many times must not make the report, or the work, long.
func TestH7DecodeIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"a":1`)
	for i := range 5000 {
		b.WriteString(`,"a` + strconv.Itoa(i%7) + `":1`)
	}
	_, err := DecodeAction([]byte(b.String() + `}`))
	if err == nil || len(err.Error()) > 4096 {
		t.Errorf("got %d bytes of error, want a short one", len(err.Error()))
	}
}

func TestH7ActionInsideADocument(t *testing.T) {
	var doc struct{ Action Action }
	if err := json.Unmarshal([]byte(`{"action":`+validJSON+`}`), &doc); err != nil || doc.Action.ID != "file.delete" {
		t.Errorf("got %+v, %v", doc, err)
	}
	for _, text := range []string{`{"action":null}`, `{"action":{}}`} {
		doc.Action = valid()
		if err := json.Unmarshal([]byte(text), &doc); err == nil || doc.Action.ID != "" {
			t.Errorf("%s: got %+v, %v, want an error and nothing left of what was there", text, doc, err)
		}
	}
}

func TestH8RiskWeights(t *testing.T) {
	for r, want := range map[Reversibility]Risk{
		Full: {0.1, 0.2, 0.3}, Partial: {0.5, 0.65, 0.8}, Irreversible: {0.9, 0.95, 1.0}, "": {1, 1, 1}, "full": {1, 1, 1},
	} {
		got := r.Risk()
		if got != want || !got.Contains(got.Low) || !got.Contains(got.Default) || !got.Contains(got.High) {
			t.Errorf("%q: got %v, want %v", r, got, want)
		}
		if math.Abs(got.Default-(got.Low+got.High)/2) > 1e-9 {
			t.Errorf("%q: the default %v is not the middle", r, got.Default)
		}
		for _, w := range []float64{math.NaN(), math.Inf(1), got.Low - 0.01, got.High + 0.01} {
			if got.Contains(w) {
				t.Errorf("%q: the range contains %v", r, w)
			}
		}
	}
}

func TestH7CheckedActionsSurviveJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Action{
			ID:                rapid.StringMatching(`[a-z0-9:._-]{0,8}`).Draw(t, "id"),
			Name:              rapid.StringN(0, 260, -1).Draw(t, "name"),
			ExecuteAPI:        rapid.StringN(0, 40, -1).Draw(t, "api"),
			Reversibility:     rapid.SampledFrom([]Reversibility{Full, Partial, Irreversible, "", "full"}).Draw(t, "rev"),
			UndoWindowSeconds: rapid.IntRange(-2, 86402).Draw(t, "window"),
			ReadOnly:          rapid.Bool().Draw(t, "ro"),
			Admin:             rapid.Bool().Draw(t, "admin"),
		}
		if rapid.Bool().Draw(t, "has undo") {
			undo := rapid.StringN(0, 40, -1).Draw(t, "undo")
			a.UndoAPI = &undo
		}
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeAction(text)
		if (err == nil) != (a.Check() == nil) {
			t.Fatalf("Check says %v, decoding %s says %v", a.Check(), text, err)
		}
		if err == nil && !cmp.Equal(a, back) {
			t.Fatal(cmp.Diff(a, back))
		}
	})
}

// Either an action that passes its own check and survives a round trip, or problems and nothing.
func FuzzDecodeAction(f *testing.F) {
	f.Add([]byte(validJSON))
	for _, s := range []string{`{}`, `null`, `{"name":"\ud800"}`, `{"undo_window_seconds":1.0}`, `{"is_admin":0}`, `{"name":1,"name":2}`, `[`, `{"a"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := DecodeAction(text)
		if err != nil {
			if len(paths(err)) == 0 || !cmp.Equal(a, Action{}) {
				t.Fatalf("%q: error %v with action %+v", text, err, a)
			}
			return
		}
		if err := a.Check(); err != nil {
			t.Fatalf("%q decodes to what fails its check: %v", text, err)
		}
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeAction(again); err != nil || !cmp.Equal(a, back) {
			t.Fatalf("%q: %v %s", text, err, cmp.Diff(a, back))
		}
	})
}

func BenchmarkDecodeAction(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		DecodeAction([]byte(validJSON))
	}
}

// H-8: what the weight costs. Reading weighs as FULL whatever else is said; what nobody knows is as risky as can be.
func TestH8CostAndFactor(t *testing.T) {
	for _, tt := range []struct {
		a            Action
		cost, factor int
	}{
		{Action{Reversibility: Full}, 1, 1}, {Action{Reversibility: Partial}, 2, 1}, {Action{Reversibility: Irreversible}, 3, 2},
		{Action{Reversibility: Irreversible, ReadOnly: true}, 1, 1}, {Action{}, 3, 2}, {Action{ReadOnly: true}, 3, 2},
	} {
		if cost, factor := tt.a.RateCost(), tt.a.BreachFactor(); cost != tt.cost || factor != tt.factor {
			t.Errorf("%+v: got cost %d and factor %d, want %d and %d", tt.a, cost, factor, tt.cost, tt.factor)
		}
	}
	for _, ring := range []Ring{Privileged, Standard, Sandbox} {
		if _, res := Draw(0, 1, ring, mostCost); !res.Allowed {
			t.Errorf("%v: a full bucket can't pay for the dearest call", ring)
		}
	}
}
