// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

const (
	pemBegin, pemEnd, pemDashes = "-----BEGIN ", "-----END ", "-----"
	// maxLabel is the longest label looked at, "OPENSSH PRIVATE KEY" being 19.
	maxLabel = 64
	// maxKey is the longest key that is taken for one, in bytes: RSA of 16384 bits takes 13 KiB. A block without an end
	// is masked that far, and no further, as somebody may only have written about keys.
	maxKey = 32 << 10
)

// privateKey finds a block from its BEGIN on.
func privateKey(s string, i int) (span, bool) {
	body, ok := keyBegins(s, i)
	if !ok {
		return span{}, false
	}
	limit := min(len(s), body+maxKey)
	end := strings.Index(s[body:limit], pemEnd)
	if end < 0 {
		return span{i, limit, PrivateKey}, true
	}
	return span{i, pastLabel(s, body+end+len(pemEnd)), PrivateKey}, true
}

// keyBegins gives where the body begins after the BEGIN line at s[i].
func keyBegins(s string, i int) (int, bool) {
	if !strings.HasPrefix(s[i:], pemBegin) {
		return 0, false
	}
	start := i + len(pemBegin)
	label := s[start:min(len(s), start+maxLabel)]
	end := strings.Index(label, pemDashes)
	if end < 0 || !strings.Contains(label[:end], "PRIVATE KEY") {
		return 0, false
	}
	return start + end + len(pemDashes), true
}

func pastLabel(s string, i int) int {
	if n := strings.Index(s[i:min(len(s), i+maxLabel)], pemDashes); n >= 0 {
		return i + n + len(pemDashes)
	}
	return i
}

// keyOpen tells whether s ends within a private key.
func keyOpen(s string) bool {
	for {
		i := strings.LastIndex(s, pemBegin)
		if i < 0 {
			return false
		}
		if body, ok := keyBegins(s, i); ok {
			return !strings.Contains(s[body:], pemEnd)
		}
		s = s[:i]
	}
}
