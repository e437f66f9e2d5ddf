// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// A tokenRule finds a token that says by its first characters what it is: prefix, then at least min bytes of body.
type tokenRule struct {
	kind   Kind
	prefix string
	body   func(byte) bool // nil: the prefix is all
	min    int
	// max is the exact end, by which fixed lengths differ from words: a longer run is something else. 0: the whole run.
	max int
	// glued: the prefix is telling enough to be found within a word.
	glued bool
	// mixed: the body needs a digit and 16 bytes without - or _, or "sk-" would be any word with hyphens.
	mixed bool
}

func isUnder(b byte) bool { return isAlnum(b) || b == '_' }
func isURL64(b byte) bool { return isAlnum(b) || b == '_' || b == '-' }
func isToken(b byte) bool {
	return isURL64(b) || b == '.' || b == '~' || b == '+' || b == '/' || b == '='
}
func isDotted(b byte) bool { return isURL64(b) || b == '.' }
func isB32(b byte) bool    { return isUpper(b) || b >= '2' && b <= '7' }
func isHyphen(b byte) bool { return isAlnum(b) || b == '-' }

// builtin is a function so that starting the program doesn't build the table. Lengths are lower than the services use
// today: a token of a later, longer format must not slip through, and one that was cut shouldn't either.
func builtin() []tokenRule {
	var rules []tokenRule
	add := func(body func(byte) bool, min int, prefixes ...string) {
		for _, p := range prefixes {
			rules = append(rules, tokenRule{kind: APIKey, prefix: p, body: body, min: min, glued: len(p) >= 4})
		}
	}
	add(isAlnum, 30, "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_", "lin_api_", "ntn_")
	add(isUnder, 22, "github_pat_", "sbp_", "pscale_tkn_", "pscale_pw_")
	add(isURL64, 20, "glpat-", "gldt-", "glrt-", "glptt-", "glft-", "glsoat-", "glcbt-", "glagent-", "xai-", "pplx-", "GOCSPX-")
	add(isHyphen, 10, "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxe-", "xoxc-", "xoxd-", "xapp-")
	add(isHyphen, 10, "xoxe.")
	add(isToken, 20, "hooks.slack.com/services/")
	add(isURL64, 30, "AIza")
	add(isDotted, 20, "ya29.", "hvs.", "hvb.", "hvr.", "dt0c01.", "dt0s01.", "SG.")
	add(isAlnum, 16, "sk_live_", "sk_test_", "rk_live_", "rk_test_", "sk_prod_")
	add(isToken, 16, "whsec_")
	add(isAlnum, 30, "hf_", "gsk_", "r8_")
	add(isURL64, 50, "pypi-AgE")
	add(isHex, 32, "dop_v1_", "doo_v1_", "dor_v1_", "shpat_", "shpss_", "shpca_", "shppa_")
	add(isHex, 32, "dapi")
	add(isUnder, 20, "glsa_", "sntryu_", "NRAK-")
	add(isToken, 20, "glc_", "sntrys_", "ATATT3", "ATCTT3", "ATBB")
	add(isAlnum, 40, "AGE-SECRET-KEY-1")
	add(isToken, 20, "PRIVATE+KEY+") // golang.org/x/mod/sumdb/note: this program's own keys
	for _, p := range []string{"AKIA", "ASIA", "ABIA", "ACCA"} {
		rules = append(rules, tokenRule{kind: AWSKey, prefix: p, body: isB32, min: 16, max: 16})
	}
	return append(rules,
		tokenRule{kind: APIKey, prefix: "sk-", body: isURL64, min: 20, mixed: true},
		tokenRule{kind: APIKey, prefix: "SK", body: isHex, min: 32, max: 32},
	)
}

// probe is how far a token's body is judged; once it is taken for one, all of it goes.
const probe = 64

func (m *Masker) token(s string, i, floor int) (span, bool) {
	if s[i] == 'e' {
		if found, ok := jwt(s, i, floor); ok {
			return found, true
		}
	}
	if i+1 < len(s) && m.second[s[i]][s[i+1]/8]&(1<<(s[i+1]%8)) != 0 {
		rules := m.rules[s[i]]
		for r := range rules {
			if end := rules[r].match(s, i, floor); end > 0 {
				return span{i, end, rules[r].kind}, true
			}
		}
	}
	if isDigit(s[i]) && (i == floor || !isDigit(s[i-1])) { // "bot" stands before it in URLs
		return botToken(s, i)
	}
	return span{}, false
}

// match gives the end of the token at s[i], or 0.
func (r *tokenRule) match(s string, i, floor int) int {
	if !strings.HasPrefix(s[i:], r.prefix) || !r.glued && inWord(s, i, floor) {
		return 0
	}
	start := i + len(r.prefix)
	if r.body == nil {
		return start
	}
	head := s[start : start+run(s[start:], r.body, probe)]
	if len(head) < r.min || r.mixed && !looksRandom(head) {
		return 0
	}
	if r.max > 0 {
		if end := start + r.max; end == len(s) || !isAlnum(s[end]) {
			return end
		}
		return 0
	}
	return start + run(s[start:], r.body, len(s))
}

func looksRandom(s string) bool {
	digit, longest, length := false, 0, 0
	for i := range len(s) {
		digit = digit || isDigit(s[i])
		if length++; !isAlnum(s[i]) {
			length = 0
		}
		longest = max(longest, length)
	}
	return digit && longest >= 16
}

// jwt: the first part is base64url of {" and so begins with eyJ. Two more parts, or four of an encrypted one; the
// signature may be empty.
func jwt(s string, i, floor int) (span, bool) {
	if !strings.HasPrefix(s[i:], "eyJ") || inWord(s, i, floor) {
		return span{}, false
	}
	const maxHeader = 2048 // judged again at an eyJ after each hyphen within: bounded, or it is quadratic
	end := i + run(s[i:], isURL64, maxHeader)
	if end-i < 13 || end == len(s) || s[end] != '.' || run(s[end+1:], isURL64, 10) < 10 {
		return span{}, false
	}
	return span{i, end + run(s[end:], isDotted, len(s)), JWT}, true
}

// botToken is the form of Telegram's: an account number, a colon, 35 characters.
func botToken(s string, i int) (span, bool) {
	n := run(s[i:], isDigit, 12)
	if n < 8 || i+n == len(s) || s[i+n] != ':' {
		return span{}, false
	}
	body := run(s[i+n+1:], isURL64, probe)
	if body < 34 || body > 40 {
		return span{}, false
	}
	return span{i, i + n + 1 + body, APIKey}, true
}

// credentials follow the name of an HTTP authentication scheme. A digit or mere length tells them from a sentence about
// bearers.
func credentials(s string, i, floor int) (span, bool) {
	if inWord(s, i, floor) {
		return span{}, false
	}
	start := 0
	for _, scheme := range []string{"bearer", "basic"} {
		if n := len(scheme); len(s)-i > n && s[i+n] == ' ' && strings.EqualFold(s[i:i+n], scheme) {
			start = i + n + run(s[i+n:], func(b byte) bool { return b == ' ' }, 8)
		}
	}
	if start == 0 {
		return span{}, false
	}
	head := s[start : start+run(s[start:], isToken, probe)]
	digit := strings.ContainsAny(head, "0123456789=")
	if len(head) < 8 || !digit && len(head) < 24 {
		return span{}, false
	}
	return span{start, start + run(s[start:], isToken, len(s)), Authorization}, true
}
