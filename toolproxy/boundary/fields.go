// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"agentrun/internal/fold"
)

// Names are compared without case, width and punctuation: reasoningContent, reasoning_content and "Reasoning-Content" are
// one field. Those that are taken out are also found when they are written with look-alikes: see like.

// plaintextFields bear what people or models said (M-15).
const plaintextFields = "content contents text texts message messages body prompt prompts raw transcript transcripts plaintext html markdown " +
	"input inputs answer answers reply replies completion completions response responses description details title subject headline caption snippet snippets " +
	"excerpt excerpts quote quotes note notes comment comments document documents doc docs page pages pagecontent chunk chunks passage passages query question questions " +
	"arguments args refusal logprobs tokens tokenids delta post posts thread conversation history chat memo letter email mail attachment " +
	"attachments file files blob bytes payload base64 b64json audio image images url uri link links stdout stderr outputtext source code diff " +
	"stacktrace log logs"

// reasoningFields hold a chain of thought or the prompt behind it (M-17).
const reasoningFields = "reasoning reasoningcontent reasoningdetails reasoningtext reasoningsummary reasoningsteps reasoningitems " +
	"reasoningopaque reasoningsignature thinking thinkingblocks thinkingcontent thinkingsignature redactedthinking thought thoughts thoughtsignature thoughtsummary analysis " +
	"chainofthought cot scratchpad innermonologue internalmonologue intermediatesteps internalprompt internalprompts internalinstructions " +
	"systemprompt systeminstruction systeminstructions developerprompt encryptedcontent encryptedreasoning deliberation reflection"

// reasoningTypes are the `type` of blocks in lists that are reasoning as a whole.
const reasoningTypes = "thinking redactedthinking reasoning reasoningtext reasoningsummary summarytext thought"

// typeField is where a block says its type.
var typeField = names("type", nil)

// vectorFields may hold long lists of numbers; summaryFields one bounded text; roleFields short names.
const (
	vectorFields  = "embedding embeddings vector vectors centroid"
	summaryFields = "summary shortsummary"
	roleFields    = "role roles userrole userroles"
)

// nameSet holds names by what plainName makes of them.
type nameSet map[string]bool

func names(list string, more []string) nameSet {
	set := nameSet{}
	for _, n := range strings.Fields(list) {
		set[n] = true
	}
	for _, n := range more {
		set[plainName(n)] = true
	}
	return set
}

// forbidden is names for like: those of the operator's are also there as they are folded.
func forbidden(list string, more []string) nameSet {
	set := names(list, more)
	for _, n := range more {
		for _, cased := range [...]string{n, strings.ToLower(n), strings.ToUpper(n)} {
			set[plainName(fold.String(cased))] = true
		}
	}
	return set
}

// has compares letter by letter. It is for what is let through: a name that only looks like a known one is another name.
func (s nameSet) has(name string) bool { return s[plainName(name)] }

// like is for what is taken out: it also takes a name that is written with letters that look like those of a known one.
func (s nameSet) like(name string) bool {
	if s.has(name) {
		return true
	}
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return s.has(fold.String(name)) || s.has(fold.String(strings.ToLower(name)))
		}
	}
	return false
}

func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if 0xff01 <= r && r <= 0xff5e {
			r -= 0xfee0 // full width
		}
		if r < utf8.RuneSelf {
			if 'A' <= r && r <= 'Z' {
				return r + 'a' - 'A'
			}
			if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
				return r
			}
			return -1
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
}
