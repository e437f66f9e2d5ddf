// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"encoding/base64"
	"strings"
	"sync"
)

// Options are what a Masker does beyond the built-in rules.
type Options struct {
	// IPs also masks IPv4 and IPv6 addresses. The zero value keeps them: egress denials are useless without.
	IPs bool
	// Known are secrets the caller holds, such as credentials it injects. They are found as they are, in JSON strings, in
	// URLs and as base64 of exactly them. Shorter ones than MinKnown are ignored: masking every "a" helps nobody.
	Known []string
}

// MinKnown is the least length of a known secret, in bytes.
const MinKnown = 6

// A Masker masks. It is safe for concurrent use; nil and the zero value mask with the built-in rules.
type Masker struct {
	ips bool
	// rules by their first byte; hot says at which bytes there is anything to look at.
	rules [256][]tokenRule
	hot   [256]bool
	// second says whether any rule begins with two such bytes: most letters begin one, few pairs do.
	second [256][256 / 8]uint8
	built  bool
}

var standard = sync.OnceValue(func() *Masker { return New(Options{}) })

// Text masks s with the built-in rules.
func Text(s string) string { return standard().Text(s) }

// JSON masks raw with the built-in rules.
func JSON(raw []byte) ([]byte, error) { return standard().JSON(raw) }

// New builds a Masker.
func New(o Options) *Masker {
	m := &Masker{ips: o.IPs, built: true}
	for _, secret := range o.Known {
		m.know(secret)
	}
	for _, r := range builtin() {
		m.add(r)
	}
	for _, b := range []byte("[-@=:+(0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZbe") {
		m.hot[b] = true
	}
	if o.IPs {
		for _, b := range []byte("abcdef") {
			m.hot[b] = true
		}
	}
	return m
}

func (m *Masker) add(r tokenRule) {
	m.rules[r.prefix[0]] = append(m.rules[r.prefix[0]], r)
	m.hot[r.prefix[0]] = true
	m.second[r.prefix[0]][r.prefix[1]/8] |= 1 << (r.prefix[1] % 8)
}

// know adds a secret in the forms it takes on its way through a log.
func (m *Masker) know(secret string) {
	if len(secret) < MinKnown {
		return
	}
	in64 := base64.StdEncoding.EncodeToString([]byte(secret))
	for _, form := range append(Spellings(secret), in64, base64.RawURLEncoding.EncodeToString([]byte(secret))) {
		m.add(tokenRule{kind: Known, prefix: form, glued: true})
	}
}

func (m *Masker) orStandard() *Masker {
	if m == nil || !m.built {
		return standard()
	}
	return m
}

// maxPasses bounds how often a text is gone over. One pass finds everything; a second one proves it, as a mark can be
// the end of a word that went on before (a card number before "-" and a phone number). More are only needed by text made
// for it.
const maxPasses = 8

// Text masks s.
func (m *Masker) Text(s string) string {
	m = m.orStandard()
	for range maxPasses {
		masked, changed := m.pass(s)
		if !changed {
			return s
		}
		s = masked
	}
	return Unstable.Mark()
}

// A span is what one rule found: s[start:end]. Kind Invalid is a mark that is there already.
type span struct {
	start, end int
	kind       Kind
}

func (m *Masker) pass(s string) (string, bool) {
	var out strings.Builder
	flushed, floor := 0, 0 // floor: no rule may look back beyond it
	changed := false
	for i := 0; i < len(s); {
		if !m.hot[s[i]] {
			i++
			continue
		}
		found, ok := m.at(s, i, floor)
		if !ok {
			i++
			continue
		}
		if found.kind != Invalid {
			if !changed {
				out.Grow(len(s) + 64)
				changed = true
			}
			out.WriteString(s[flushed:found.start])
			out.WriteString(found.kind.Mark())
			flushed = found.end
		}
		i, floor = found.end, found.end
	}
	if !changed {
		return s, false
	}
	out.WriteString(s[flushed:])
	return out.String(), true
}

// at asks the rules that begin, or have their telling byte, at s[i].
func (m *Masker) at(s string, i, floor int) (span, bool) {
	switch b := s[i]; b {
	case '[':
		if n := markAt(s, i); n > 0 {
			return span{i, i + n, Invalid}, true
		}
	case '-':
		if found, ok := privateKey(s, i); ok {
			return found, true
		}
		if found, ok := flagValue(s, i, floor); ok {
			return found, true
		}
	case '@':
		if found, ok := email(s, i, floor); ok {
			return found, true
		}
	case '=', ':':
		if found, ok := userinfo(s, i); ok {
			return found, true
		}
		if found, ok := keyValue(s, i, floor); ok {
			return found, true
		}
	case 'B', 'b':
		if found, ok := credentials(s, i, floor); ok {
			return found, true
		}
	}
	if found, ok := m.token(s, i, floor); ok {
		return found, true
	}
	return m.personal(s, i, floor)
}

func (m *Masker) personal(s string, i, floor int) (span, bool) {
	if inWord(s, i, floor) {
		return span{}, false
	}
	b := s[i]
	switch {
	case b >= 'A' && b <= 'Z':
		if found, ok := iban(s, i); ok {
			return found, true
		}
	case isDigit(b):
		if found, ok := card(s, i, floor); ok {
			return found, true
		}
		fallthrough
	case b == '+' || b == '(':
		if found, ok := phone(s, i, floor); ok {
			return found, true
		}
	}
	if m.ips && (isHex(b) || b == ':') {
		return address(s, i, floor)
	}
	return span{}, false
}

// inWord tells whether s[i] goes on a word that began before. The n of an escaped newline and the D of %3D are no letters
// of it.
func inWord(s string, i, floor int) bool {
	if i <= floor || !isAlnum(s[i-1]) {
		return false
	}
	escaped := i-2 >= floor && s[i-2] == '\\' && strings.IndexByte("nrtbf", s[i-1]) >= 0
	percent := i-3 >= floor && s[i-3] == '%' && isHex(s[i-2]) && isHex(s[i-1])
	return !escaped && !percent
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
func isUpper(b byte) bool { return b >= 'A' && b <= 'Z' }
func isAlpha(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }
func isAlnum(b byte) bool { return isDigit(b) || isAlpha(b) }
func isHex(b byte) bool   { return isDigit(b) || b|0x20 >= 'a' && b|0x20 <= 'f' }
func isQuote(b byte) bool { return b == '"' || b == '\'' || b == '`' }
func isBlank(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

// run is the length of the longest beginning of s, at most limit bytes, that in allows.
func run(s string, in func(byte) bool, limit int) int {
	n := 0
	for n < len(s) && n < limit && in(s[n]) {
		n++
	}
	return n
}
