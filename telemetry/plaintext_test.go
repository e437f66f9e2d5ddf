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
	"log"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const text = "the quick brown secret"

type plain = Plaintext[string]

type nested struct {
	Exported   plain
	unexported plain
	list       []plain
	byName     map[string]plain
	pointer    *plain
	bytes      Plaintext[[]byte]
	any        any
}

func holder() nested {
	p := NewPlaintext(text)
	return nested{p, p, []plain{p}, map[string]plain{"k": p}, &p, NewPlaintext([]byte(text)), p}
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
	if want != NewPlaintext("other").String() {
		t.Errorf("got %q, which tells one text from another", want)
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
		l.Info(p.String(), "p", p, "pp", &p, "n", holder(), "err", fmt.Errorf("bad %v", p), slog.Group("g", "p", p), "list", []plain{p})
	}
	log.New(&out, "", 0).Println(p, holder())
	leaks(t, "slog", out.String())
	if b, _ := json.Marshal(p); string(b) != `"`+p.String()+`"` {
		t.Errorf("got %s", b)
	}
}

func TestM18PlaintextRefusesReflection(t *testing.T) {
	diff := cmp.Diff(holder(), nested{}, cmp.AllowUnexported(nested{}), cmp.Exporter(func(reflect.Type) bool { return true }))
	if diff == "" {
		t.Error("no difference found")
	}
	leaks(t, "cmp", diff)
}

func TestM18PlaintextIsRevealed(t *testing.T) {
	if got := NewPlaintext(text).Reveal(); got != text {
		t.Errorf("got %q", got)
	}
	if got := (Plaintext[[]byte]{}).Reveal(); got != nil {
		t.Errorf("the zero value holds %q", got)
	}
}
