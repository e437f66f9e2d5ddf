// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// undoing parses a tool with that section undo:, and what comes with it.
func undoing(undo, more string) (Config, error) {
	text := "book: {description: d, category: B, args: {type: object, properties: {place: {}}}, http: {url: u}, " + more + ", undo: " + undo + "}"
	return ParseConfig(read.YAML(read.Source{Path: "tools", Max: 1 << 20}, []byte(text)))
}

// H-7, H-6: what can be undone isn't irreversible, what only reads has nothing to undo, and a window has its bounds.
func TestH7UndoIsChecked(t *testing.T) {
	const full = "reversibility: full"
	if c, err := undoing("{window: 24h, with: {id: /result/id, all: /args}, http: {url: u}}", full); err != nil ||
		c["book"].Action.UndoWindowSeconds != 86400 || *c["book"].Action.UndoAPI != "tool.book.undo" {
		t.Fatalf("got %+v, %v", c["book"].Action, err)
	}
	for _, tt := range [][3]string{
		{"{http: {url: u}}", full, "tools.book.undo.window"},
		{"{window: 24h1s, http: {url: u}}", full, "tools.book.undo.window"},
		{"{window: 1500ms, http: {url: u}}", full, "tools.book.undo.window"},
		{"{window: -1s, http: {url: u}}", full, "tools.book.undo.window"},
		{"{window: 1s}", full, "http or command"},
		{"{window: 1s, http: {url: u}, command: {argv: [/x]}}", full, "http or command"},
		{"{window: 1s, http: {url: u}}", "reversibility: none", "reversibility"},
		{"{window: 1s, http: {url: u}}", "approve: true", "reversibility"},
		{"{window: 1s, http: {url: u}}", full + ", read_only: true", "read_only"},
		{"{window: 1s, http: {url: u}, with: {id: result/id}}", full, "tools.book.undo.with.id"},
		{"{window: 1s, http: {url: u}, with: {id: ''}}", full, "tools.book.undo.with.id"},
		{"{window: 1s, http: {url: u}, with: {id: /env/HOME}}", full, "tools.book.undo.with.id"},
		{"{window: 1s, http: {url: u}, with: {id: /args/~2}}", full, "tools.book.undo.with.id"},
		{"{window: 1s, http: {url: u}, argv: [x]}", full, "unknown key"},
	} {
		if _, err := undoing(tt[0], tt[1]); err == nil || !strings.Contains(err.Error(), tt[2]) {
			t.Errorf("undo %s with %s: got %v, want %q", tt[0], tt[1], err, tt[2])
		}
	}
	_, err := ParseConfig(read.YAML(read.Source{Path: "tools", Max: 1 << 20}, []byte(
		"math: {reversibility: full, undo: {window: 1s, http: {url: u}}}")))
	if err == nil || !strings.Contains(err.Error(), "kind builtin") {
		t.Errorf("a built-in tool: got %v", err)
	}
	// A misspelt argument, once the tool's schema is known.
	d := Definition{Schema: json.RawMessage(`{"type":"object","properties":{"place":{}}}`), Undo: &Undo{With: map[string]jsontext.Pointer{"p": "/args/plaec"}}}
	if err := d.checkWith(); err == nil {
		t.Error("an argument that the tool doesn't have was taken")
	}
}

// H-7, M-18: the undo's arguments are values of the call's arguments and of its result, as they are; what isn't there is an error that
// quotes nothing.
func TestH7Undo(t *testing.T) {
	args, result := json.RawMessage(`{"place":"$(id); <b>","deep":{"a/b":[1,{"m~n":true}]}}`), json.RawMessage(`{"id":9007199254740993,"none":null}`)
	for _, tt := range []struct {
		from jsontext.Pointer
		want string // empty: an error
	}{
		{"/result/id", "9007199254740993"}, {"/args/place", `"$(id); <b>"`}, {"/args/deep/a~1b/1/m~0n", "true"},
		{"/result/none", ""}, {"/result/id/x", ""}, {"/args/deep/a~1b/2", ""}, {"/args/deep/a~1b/-1", ""}, {"/args/Place", ""},
	} {
		u := Undo{With: map[string]jsontext.Pointer{"v": tt.from}}
		got, err := u.arguments(args, result)
		var back map[string]json.RawMessage
		if json.Unmarshal(got.Reveal(), &back); (err == nil) != (tt.want != "") || tt.want != "" && !same(back["v"], tt.want) {
			t.Errorf("%s: got %s, %v, want %q", tt.from, got.Reveal(), err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "$(id)") {
			t.Errorf("%s: the error quotes: %v", tt.from, err)
		}
	}
	u := Undo{With: map[string]jsontext.Pointer{"v": "/args"}}
	if _, err := u.arguments(json.RawMessage(`{"x":"`+strings.Repeat("x", link.MaxUndo)+`"}`), nil); err == nil {
		t.Error("arguments beyond the bound were taken")
	}
}

func same(raw json.RawMessage, want string) bool {
	if string(raw) == want {
		return true
	}
	var a, b string // escaped in another way
	return json.Unmarshal(raw, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && a == b
}

// fitting is an undo that takes no place called "..".
type fitting struct{ Tool }

func (fitting) Fits(args []byte) *gate.Error {
	if strings.Contains(string(args), "..") {
		return BadArguments("no")
	}
	return nil
}

// H-6, H-7: an agent can't choose its arguments so that the call can't be undone.
func TestH7ArgumentsThatPreventTheUndo(t *testing.T) {
	u := &tool{Definition: Definition{Undo: &Undo{With: map[string]jsontext.Pointer{"p": "/args/place", "id": "/result/id"}}}, undo: fitting{}}
	for args, ok := range map[string]bool{
		`{"place":"a"}`: true, `{}`: false, `{"place":null}`: false, `{"place":".."}`: false,
		`{"place":"` + strings.Repeat("x", link.MaxUndo) + `"}`: false,
	} {
		if err := u.refuses(json.RawMessage(args)); (err == nil) != ok {
			t.Errorf("%.40s: got %v", args, err)
		}
	}
	if err := (&tool{}).refuses(json.RawMessage(`{}`)); err != nil {
		t.Errorf("a tool without undo: %v", err)
	}
}

// undoEntrance keeps the outcome of a call.
type undoEntrance struct {
	last  gate.Outcome
	stays bool
}

func (e *undoEntrance) Enter(ctx context.Context, c gate.Call) (gate.Permit, *gate.Error) {
	e.stays = c.Stays
	return undoPermit{ctx, e}, nil
}

type undoPermit struct {
	ctx context.Context //nolint:containedctx // of the test
	to  *undoEntrance
}

func (p undoPermit) Context() context.Context       { return p.ctx }
func (p undoPermit) Spent(int64, int64) *gate.Error { return nil }
func (p undoPermit) End(o gate.Outcome) *gate.Error { p.to.last = o; return nil }

// H-7: a call that the tool has answered is kept whatever becomes of its answer; one that failed isn't; one whose result lacks what the
// undo needs is marked.
func TestH7CallsThatAreKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		output string
		err    error
		filter error
		want   string
		flag   bool
	}{
		{name: "answered", output: `{"id":7}`, want: `{"id":7}`},
		{name: "answer withheld", output: `{"id":7}`, filter: errors.New("no"), want: `{"id":7}`},
		{name: "answer too long for the agent", output: `{"id":7,"text":"` + strings.Repeat("x", 100) + `"}`, want: `{"id":7}`},
		{name: "failed", err: errors.New("no")},
		{name: "result lacks it", output: `{}`, flag: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, act := &undoEntrance{}, action("book", rings.Full, false)
			r, err := New(Options{
				Entrance: e, Filter: func(_ string, out json.RawMessage) (json.RawMessage, []string, error) { return out, nil, tt.filter },
				Config: Config{"book": {Kind: "http", Enabled: true, Category: gate.CategoryB, Schema: json.RawMessage(`{"type":"object"}`), Action: &act, MaxReply: 50,
					Undo: &Undo{With: map[string]jsontext.Pointer{"id": "/result/id"}, HTTP: &read.Node{}}}},
				Factories: map[string]Factory{"http": func(string, *read.Node) (Tool, error) {
					return Function[map[string]any](func(context.Context, Call, map[string]any) (any, error) {
						return Result{Output: json.RawMessage(tt.output)}, tt.err
					}), nil
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = r.Invoke(t.Context(), "book", gate.Args{})
			got := ""
			if e.last.Undo != nil {
				got = string(e.last.Undo.Reveal())
			}
			if !e.stays {
				t.Error("its caller may end it by leaving")
			}
			if flag := strings.Contains(strings.Join(e.last.Flags, " "), link.FlagUndoLost); got != tt.want || flag != tt.flag {
				t.Errorf("kept %s, flags %v", got, e.last.Flags)
			}
		})
	}
}
