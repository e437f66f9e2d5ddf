// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const text = "the quick brown secret"

type nested struct {
	Exported   Plaintext
	unexported Plaintext
	list       []Plaintext
	byName     map[string]Plaintext
	pointer    *Plaintext
	any        any
}

func holder() nested {
	p := NewPlaintext(text)
	return nested{p, p, []Plaintext{p}, map[string]Plaintext{"k": p}, &p, p}
}

// leaks looks for the text as it is and in the forms of the verbs.
func leaks(t *testing.T, how, out string) {
	t.Helper()
	for _, form := range []string{text, "quick", hex.EncodeToString([]byte("quick")), strings.ToUpper(hex.EncodeToString([]byte("quick"))),
		base64.StdEncoding.EncodeToString([]byte(text))[:12], "113 117 105", "0x71, 0x75", "71 75 69"} {
		if strings.Contains(out, form) {
			t.Errorf("%s prints the text: %q", how, out)
		}
	}
}

func TestM18PlaintextRefusesEveryVerb(t *testing.T) {
	p := NewPlaintext(text)
	want := p.String()
	if !strings.HasPrefix(want, "«plaintext 22 bytes sha256:") {
		t.Errorf("got %q", want)
	}
	for _, verb := range "vsqxXdobceEfgGtTpUw" {
		for _, flags := range []string{"", "+", "#", " ", "# ", "-50", "050", ".3"} {
			f := "%" + flags + string(verb)
			for how, out := range map[string]string{
				"value": fmt.Sprintf(f, p), "pointer": fmt.Sprintf(f, &p), "nested": fmt.Sprintf(f, holder()), "slice": fmt.Sprintf(f, []any{p}),
				"error": fmt.Errorf("call: "+f, p).Error(),
			} {
				leaks(t, f+" "+how, out)
			}
			if !strings.ContainsRune("Tpw", verb) { // fmt asks no method for these: they print addresses
				if got := fmt.Sprintf(f, p); got != want {
					t.Errorf("%s: got %q, want %q", f, got, want)
				}
			}
		}
	}
	leaks(t, "Sprint", fmt.Sprint(p, &p, holder(), errors.Join(fmt.Errorf("x %w", fmt.Errorf("%v", p)))))
	func() {
		defer func() { leaks(t, "panic", fmt.Sprint(recover())) }()
		panic(p)
	}()
}

func TestM18PlaintextRefusesEncoders(t *testing.T) {
	p := NewPlaintext(text)
	var out bytes.Buffer
	for name, v := range map[string]any{"value": p, "pointer": &p, "nested": holder(), "key": map[any]any{}} {
		b, _ := json.Marshal(v)
		leaks(t, "json "+name, string(b))
		x, _ := xml.Marshal(v)
		leaks(t, "xml "+name, string(x))
		_ = gob.NewEncoder(&out).Encode(v)
	}
	leaks(t, "gob", out.String())
	out.Reset()
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		l := slog.New(h).With("w", p).WithGroup("g")
		l.Info(p.String(), "p", p, "pp", &p, "n", holder(), "err", fmt.Errorf("bad %v", p), slog.Group("g", "p", p), "list", []Plaintext{p})
	}
	log.New(&out, "", 0).Println(p, holder())
	leaks(t, "slog", out.String())
	if b, _ := json.Marshal(p); string(b) != `"`+p.String()+`"` {
		t.Errorf("got %s", b)
	}
}

func TestM18PlaintextRefusesReflection(t *testing.T) {
	p, q := NewPlaintext(text), NewPlaintext(text+"x")
	diff := cmp.Diff(map[string]Plaintext{"a": p}, map[string]Plaintext{"a": q})
	if diff == "" {
		t.Error("no difference found")
	}
	leaks(t, "cmp", diff)
	diff = cmp.Diff(holder(), nested{}, cmp.AllowUnexported(nested{}))
	leaks(t, "cmp", diff)
	if !cmp.Equal(p, NewPlaintext(text)) || p.Equal(q) || !(Plaintext{}).Equal(NewPlaintext("")) {
		t.Error("Equal")
	}
}

func TestM18PlaintextIsDecodedAndRevealed(t *testing.T) {
	var req struct{ Prompt Plaintext }
	if err := json.Unmarshal([]byte(`{"prompt":"`+text+`"}`), &req); err != nil {
		t.Fatal(err)
	}
	if req.Prompt.Reveal() != text || req.Prompt.Len() != len(text) || (Plaintext{}).Reveal() != "" {
		t.Errorf("got %v", req.Prompt)
	}
	if err := json.Unmarshal([]byte(`{"prompt":17}`), &req); err == nil {
		t.Error("took a number")
	}
}

// reveals are the files outside of this package that may call Reveal, and why each has to.
var reveals = map[string]string{}

func TestM18WhoReveals(t *testing.T) {
	root, seen, looked := "..", map[string]bool{}, 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		looked++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		ast.Inspect(f, func(n ast.Node) bool {
			// Also x.Reveal without a call: a method value reveals as well.
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Reveal" {
				seen[rel] = true
				if reveals[rel] == "" {
					t.Errorf("%s: Reveal: who handles plaintext is listed in telemetry/plaintext_test.go, with a reason", set.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil || looked < 10 {
		t.Fatalf("%d files, %v", looked, err)
	}
	for name := range reveals {
		if !seen[name] {
			t.Errorf("%s doesn't call Reveal (any more): take it off the list", name)
		}
	}
}

func BenchmarkPlaintextString(b *testing.B) {
	p := NewPlaintext(strings.Repeat("x", 1000))
	for b.Loop() {
		_ = p.String()
	}
}
