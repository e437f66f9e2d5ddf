// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry/mask"
)

// Hider takes known secrets out of what an upstream answers. Unlike package mask it leaves everything else as it is: a
// tool that answers with an address was asked for one. nil hides nothing.
type Hider struct{ replace *strings.Replacer }

// formsOf is a secret with what can be got from it without knowing anything else: of basic credentials the password.
func formsOf(prefix, secret string) []string {
	forms := []string{secret}
	if strings.EqualFold(strings.TrimSpace(prefix), "Basic") {
		if plain, err := base64.StdEncoding.DecodeString(secret); err == nil {
			forms = append(forms, string(plain))
			if _, password, ok := strings.Cut(string(plain), ":"); ok {
				forms = append(forms, password)
			}
		}
	}
	return forms
}

// NewHider hides secrets of at least mask.MinKnown bytes; shorter ones can't be told from text.
func NewHider(secrets []string) *Hider {
	var forms []string
	for _, s := range secrets {
		if len(s) < mask.MinKnown {
			continue
		}
		for _, form := range append(alignments(s), s) {
			forms = append(forms, mask.Spellings(form)...)
		}
		forms = append(forms, hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))))
	}
	// The longest first: at one place Replacer takes the first that fits.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	forms = slices.Compact(forms)
	if len(forms) == 0 {
		return nil
	}
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		pairs = append(pairs, form, mask.Known.Mark())
	}
	return &Hider{strings.NewReplacer(pairs...)}
}

// alignments are the forms a secret has within base64 of a longer text: three, by where it begins. The characters at
// both ends depend on its neighbours and are left out.
func alignments(s string) []string {
	var forms []string
	for shift := range 3 {
		padded := append(make([]byte, shift), s...)
		whole := len(padded) / 3 * 4
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			text := enc.EncodeToString(padded)[:whole]
			if shift > 0 {
				text = text[min(4, len(text)):]
			}
			if len(text) >= mask.MinKnown {
				forms = append(forms, text)
			}
		}
	}
	return forms
}

// Text masks the secrets in s.
func (h *Hider) Text(s string) string {
	if h == nil {
		return s
	}
	return h.replace.Replace(s)
}

// Errors of JSON. They have no part of the input.
var errNotJSON = errors.New("not one JSON value")

// JSON checks that raw is one JSON value without repeated names, nested at most mask.MaxDepth deep, and masks its strings and
// names: after decoding, since JSON can write every letter in two ways. Other spellings of the value come out compact.
func (h *Hider) JSON(raw []byte) ([]byte, error) {
	in := jsontext.NewDecoder(bytes.NewReader(raw))
	var buf bytes.Buffer
	buf.Grow(len(raw) + 1)
	out := jsontext.NewEncoder(&buf, jsontext.AllowDuplicateNames(true)) // two names may become one by masking
	for first := true; first || in.StackDepth() > 0; first = false {
		t, err := in.ReadToken()
		if err != nil || in.StackDepth() > mask.MaxDepth {
			return nil, errNotJSON
		}
		if t.Kind() == '"' && h != nil {
			t = jsontext.String(h.Text(t.String()))
		}
		if err := out.WriteToken(t); err != nil {
			return nil, errNotJSON
		}
	}
	if _, err := in.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errNotJSON
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// TextJSON masks text and makes a JSON string of it; the error is that it isn't UTF-8.
func (h *Hider) TextJSON(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not text in UTF-8")
	}
	return jsontext.AppendQuote(nil, h.Text(string(text)))
}
