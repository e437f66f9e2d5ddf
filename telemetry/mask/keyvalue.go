// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// Bounds of what a rule looks at; see the package comment on time.
const (
	maxName   = 64
	maxGap    = 8
	maxUserin = 512
)

// Sensitive gives the kind of value that something of this name holds, Invalid if any. Case, "_", "-" and "." don't
// matter, and the end of a name decides: x-api-key, DB_PASSWORD, but not token_count or max_tokens.
func Sensitive(name string) Kind {
	if len(name) < 3 || len(name) > maxName {
		return Invalid
	}
	switch name[len(name)-1] | 0x20 {
	case 'd', 'e', 't', 'n', 'y', 's', 'w':
	default:
		return Invalid
	}
	var buf [maxName]byte
	plain := buf[:0]
	for i := range len(name) {
		if b := name[i]; isAlpha(b) {
			plain = append(plain, b|0x20)
		} else if isDigit(b) {
			plain = append(plain, b)
		}
	}
	n := string(plain)
	for _, w := range [...]struct {
		end  string
		kind Kind
	}{
		{"password", Password}, {"passwd", Password}, {"passphrase", Password}, {"pwd", Password}, {"userpw", Password},
		{"secret", Secret}, {"token", Secret}, {"apikey", Secret}, {"secretkey", Secret}, {"accesskey", Secret},
		{"privatekey", Secret}, {"signingkey", Secret}, {"encryptionkey", Secret}, {"masterkey", Secret}, {"authkey", Secret},
		{"subscriptionkey", Secret}, {"accountkey", Secret}, {"sharedkey", Secret}, {"sharedaccesssignature", Secret},
		{"credential", Secret}, {"credentials", Secret}, {"sessid", Secret}, {"jsessionid", Secret}, {"amzsignature", Secret},
		{"authorization", Authorization}, {"cookie", Cookie}, {"cookies", Cookie},
	} {
		if strings.HasSuffix(n, w.end) {
			return w.kind
		}
	}
	return Invalid
}

func isName(b byte) bool { return isAlnum(b) || b == '_' || b == '-' || b == '.' }

// keyValue finds what a sensitive name is set to, where s[i] is the = or : between.
func keyValue(s string, i, floor int) (span, bool) {
	walrus := i > floor && s[i] == '=' && s[i-1] == ':'
	if i+1 < len(s) && s[i+1] == '=' || s[i] == '=' && (i > floor && strings.IndexByte("=!<>", s[i-1]) >= 0) {
		return span{}, false // a comparison, or the colon of :=
	}
	kind := Sensitive(nameBefore(s, i, floor, walrus))
	if kind == Invalid {
		return span{}, false
	}
	start := i + 1
	if start < len(s) && s[start] == '>' { // name => value
		start++
	}
	gap := run(s[start:], func(b byte) bool { return b == ' ' || b == '\t' }, maxGap)
	start += gap
	if start >= len(s) {
		return span{}, false
	}
	if found, quoted := quotedValue(s, start, kind); quoted {
		return found, found.kind != Invalid
	}
	if s[start] == '{' { // its members are looked at by themselves; and reading on to its end at each is quadratic
		return span{}, false
	}
	if walrus { // only Go and Python have it, where an unquoted value is an expression
		return span{}, false
	}
	if kind == Authorization || kind == Cookie {
		return value(s, start, start+run(s[start:], inHeader(s[start:]), len(s)), kind)
	}
	end := bareEnd(s, start)
	if harmless(s[start:end], gap > 0) {
		return span{}, false
	}
	return value(s, start, end, kind)
}

// nameBefore is the name that ends before s[i], without quotes and brackets.
func nameBefore(s string, i, floor int, walrus bool) string {
	end := i
	back := func(limit int, skip string) {
		for n := 0; n < limit && end > floor && strings.IndexByte(skip, s[end-1]) >= 0; n++ {
			end--
		}
	}
	if walrus {
		end--
	}
	back(2, " ")
	back(5, "\"'`\\]")
	start := end
	for start > floor && end-start <= maxName && isName(s[start-1]) {
		start--
	}
	return s[start:end]
}

// value is the span unless it is empty or masked already.
func value(s string, start, end int, kind Kind) (span, bool) {
	if start >= end || s[start] == '[' && markAt(s, start) == end-start {
		return span{}, false
	}
	return span{start, end, kind}, true
}

// quotedValue is what stands between quotes at s[i]; backslashes before the first are those of JSON within JSON. The
// quote that ends it has no more of them. Without one, all the rest is the value.
func quotedValue(s string, i int, kind Kind) (found span, quoted bool) {
	slashes := run(s[i:], func(b byte) bool { return b == '\\' }, maxGap)
	open := i + slashes
	if open >= len(s) || !isQuote(s[open]) {
		return span{}, false
	}
	start, before := open+1, 0
	for end := start; end < len(s); end++ {
		switch {
		case s[end] == '\\':
			before++
			continue
		case s[end] == s[open] && (before <= slashes || slashes == 0 && before%2 == 0):
			found, _ = value(s, start, end-min(before, slashes), kind)
			return found, true
		}
		before = 0
	}
	found, _ = value(s, start, len(s), kind)
	return found, true
}

// inHeader: a header's value ends with its line, or with the quote around the header.
func inHeader(s string) func(byte) bool {
	i := -1
	return func(b byte) bool {
		i++
		newline := b == '\\' && i+1 < len(s) && (s[i+1] == 'n' || s[i+1] == 'r')
		return b != '\n' && b != '\r' && !isQuote(b) && !newline
	}
}

// bareEnd is where a value without quotes ends: at a blank, a quote or a backslash; at punctuation only if more
// assignments or nothing follow, as passwords have punctuation too.
func bareEnd(s string, i int) int {
	if n := run(s[i:], func(b byte) bool { return isUnder(b) || b == '$' || b == '{' }, maxName); n > 2 && s[i:i+2] == "${" && i+n < len(s) && s[i+n] == '}' {
		i += n + 1
	}
	for ; i < len(s); i++ {
		b := s[i]
		if n := markAt(s, i); n > 0 {
			i += n - 1
			continue
		}
		if isBlank(b) || isQuote(b) || b == '\\' {
			break
		}
		if strings.IndexByte("&,;)]}|", b) >= 0 && endsHere(s[i+1:]) {
			break
		}
	}
	return i
}

func endsHere(rest string) bool {
	if rest == "" || isBlank(rest[0]) || isQuote(rest[0]) || strings.IndexByte("&,;)]}|\\", rest[0]) >= 0 {
		return true
	}
	n := run(rest, isName, 32)
	return n > 0 && n < len(rest) && (rest[n] == '=' || rest[n] == ':')
}

// harmless are values that are types, placeholders or calls and not secrets.
func harmless(v string, afterGap bool) bool {
	switch strings.ToLower(strings.TrimRight(v, ".")) {
	case "true", "false", "null", "nil", "none", "undefined", "str", "string", "bool", "bytes", "required", "optional":
		return true
	}
	if strings.Trim(v, "*") == "" || placeholder(v) {
		return true
	}
	word := run(v, func(b byte) bool { return isAlpha(b) || b == '_' || b == '.' }, maxName)
	return afterGap && word > 0 && word < len(v) && v[word] == '('
}

// placeholder: <token>, $TOKEN, ${TOKEN}.
func placeholder(v string) bool {
	for _, form := range [...]struct{ open, end string }{{"<", ">"}, {"${", "}"}, {"$", ""}} {
		inner, ok := strings.CutPrefix(v, form.open)
		if !ok {
			continue
		}
		if inner, ok = strings.CutSuffix(inner, form.end); !ok {
			continue
		}
		name := func(b byte) bool { return isUpper(b) || b == '_' || form.open == "<" && (isAlpha(b) || b == '-') }
		return inner != "" && run(inner, name, maxName) == len(inner)
	}
	return false
}

// flagValue finds the argument of --password and its like. --password=x is keyValue's.
func flagValue(s string, i, floor int) (span, bool) {
	if !strings.HasPrefix(s[i:], "--") || i > floor && (s[i-1] == '-' || isAlnum(s[i-1])) {
		return span{}, false
	}
	name := i + 2
	end := name + run(s[name:], isName, maxName+1)
	if end >= len(s) || s[end] != ' ' || Sensitive(s[name:end]) == Invalid {
		return span{}, false
	}
	start := end + run(s[end:], func(b byte) bool { return b == ' ' }, maxGap)
	if start >= len(s) {
		return span{}, false
	}
	kind := Sensitive(s[name:end])
	if found, quoted := quotedValue(s, start, kind); quoted {
		return found, found.kind != Invalid
	}
	stop := bareEnd(s, start)
	if stop-start < 3 || s[start] == '-' || harmless(s[start:stop], true) {
		return span{}, false
	}
	return value(s, start, stop, kind)
}

// userinfo finds the password of a URL, where s[i:] begins with "://". The user's name stays, unless it is so long that
// it is a token.
func userinfo(s string, i int) (span, bool) {
	if !strings.HasPrefix(s[i:], "://") {
		return span{}, false
	}
	start := i + 3
	rest := s[start : start+run(s[start:], func(b byte) bool { return !isBlank(b) && !isQuote(b) && b != '<' && b != '>' }, maxUserin)]
	authority := rest
	if n := strings.IndexAny(rest, "/?#"); n >= 0 {
		authority = rest[:n]
	}
	at := strings.LastIndexByte(authority, '@')
	mark := markAt(rest, 0) // it has a colon, too
	if mark > len(authority) {
		return span{}, false
	}
	colon := strings.IndexByte(authority[mark:], ':')
	if colon >= 0 {
		colon += mark
	}
	if at < 0 && colon >= 0 && run(authority[colon+1:], isDigit, maxUserin) < len(authority)-colon-1 {
		at = strings.LastIndexByte(rest, '@') // a password with an unescaped slash
	}
	if at < 0 {
		return span{}, false
	}
	if colon < 0 || colon > at {
		if at < 20 {
			return span{}, false
		}
		return value(s, start, start+at, Secret)
	}
	return value(s, start+colon+1, start+at, Password)
}
