// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry"
)

// localChat is the test model. It is no language model: it follows four fixed rules, so that examples and
// tests run without a provider and come out the same each time.
//
//   - After a tool's message it says what the tool answered.
//   - "call:NAME {json}" in the last user's message makes it call that function, if the request offers it. A
//     NAME without an exact match also finds the function that ends in it.
//   - "count:N" makes it count to N: a stream of any length.
//   - Everything else is answered with the prompt's length and digest.
type localChat struct {
	words []string
	call  *toolCall
	most  int64
	given int64
	end   bool
	used  usage
}

// newLocalChat decides what the model will say, and what it is for: the first rule that fits wins, in the
// order above, with a tool's message first, or a call that was asked for in an earlier message would be made
// again and again.
func newLocalChat(r *chatRequest, most int64) source {
	l := &localChat{most: most}
	role, text := lastText(r)
	messages := r.Messages.Reveal()
	for i := range messages {
		l.used.Prompt += int64(len(messages[i].Content)+3) / 4
	}
	switch name, args, n := directives(text); {
	case role == "tool":
		l.words = split("The tool answered: " + truncate(text, 500))
	case name != "" && offered(r, name) != "":
		sum := sha256.Sum256([]byte(name + args))
		index := int64(0)
		l.call = &toolCall{Index: &index, ID: "call_" + hex.EncodeToString(sum[:6]), Type: "function",
			Function: functionCall{offered(r, name), args}}
	case n > 0:
		for i := range min(n, most) {
			l.words = append(l.words, strconv.FormatInt(i+1, 10)+" ")
		}
	default:
		sum := sha256.Sum256([]byte(text))
		l.words = split(fmt.Sprintf("This is %s, a deterministic test model and not a language model. Your prompt has %d bytes and the digest %s.",
			TestModelName, len(text), hex.EncodeToString(sum[:4])))
	}
	return l
}

// lastText is the text of the last user's or tool's message. The request was checked before.
func lastText(r *chatRequest) (role, text string) {
	for _, m := range slices.Backward(r.Messages.Reveal()) {
		if m.Role != "user" && m.Role != "tool" {
			continue
		}
		list, _ := parts(m.Content, "content")
		for _, p := range list {
			text += p.Text
		}
		return m.Role, text
	}
	return "", ""
}

// directives finds what the text asks for. The arguments are the first JSON object after the name, and what
// follows it is left alone, since the text comes between delimiters. A number too large counts as far as the
// request's limit lets it.
func directives(text string) (name, args string, count int64) {
	if _, after, ok := strings.Cut(text, "call:"); ok {
		name, rest, _ := strings.Cut(after, " ")
		dec := jsontext.NewDecoder(strings.NewReader(rest))
		if v, err := dec.ReadValue(); err == nil && v.Kind() == '{' && functionName().MatchString(name) {
			return name, string(v), 0
		}
	}
	if _, after, ok := strings.Cut(text, "count:"); ok {
		digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
		count, _ = strconv.ParseInt(digits, 10, 32)
	}
	return "", "", count
}

// offered finds the function of the request that a name stands for: itself, or the last one that ends in it
// after an underscore, as MCP clients put the server's name in front.
func offered(r *chatRequest, name string) string {
	suffix := ""
	for _, t := range r.Tools.Reveal() {
		have := t.Function.Name
		if have == name {
			return have
		}
		if rest, ok := strings.CutSuffix(have, name); ok && strings.HasSuffix(rest, "_") {
			suffix = have
		}
	}
	return suffix
}

func split(text string) []string {
	var words []string
	for text != "" {
		i := strings.IndexByte(text, ' ') + 1
		if i == 0 {
			i = len(text)
		}
		words, text = append(words, text[:i]), text[i:]
	}
	return words
}

func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func (l *localChat) close() {}

// next gives out a few words at a time.
func (l *localChat) next() (event, error) {
	if l.end {
		return event{}, io.EOF
	}
	if l.call != nil {
		ev := event{said: telemetry.NewPlaintext(said{calls: []toolCall{*l.call}}), size: len(l.call.Function.Arguments)}
		l.given, l.call, l.words = int64(len(l.call.Function.Arguments)+3)/4, nil, nil
		l.finish(&ev, "tool_calls")
		return ev, nil
	}
	n := int(min(4, int64(len(l.words)), l.most-l.given))
	text := strings.Join(l.words[:n], "")
	ev := event{said: telemetry.NewPlaintext(said{text: text}), size: len(text)}
	l.words = l.words[n:]
	l.given += int64(n)
	switch {
	case len(l.words) == 0:
		l.finish(&ev, "stop")
	case l.given >= l.most:
		l.finish(&ev, "length")
	}
	return ev, nil
}

func (l *localChat) finish(ev *event, reason string) {
	l.end = true
	l.used.Completion = l.given
	l.used.Prompt = max(1, l.used.Prompt)
	ev.finish, ev.usage = reason, &l.used
}

// localDimensions of the test model's embeddings.
const localDimensions = 256

// localEmbedding hashes words and pairs of words into a vector of unit length: texts with words in common are
// near each other, and that is all. The same text has the same vector on every machine.
func localEmbedding(text string, dimensions int) []float64 {
	v := make([]float64, dimensions)
	add := func(token string, weight float64) {
		sum := sha256.Sum256([]byte(token))
		h := binary.BigEndian.Uint64(sum[:8])
		if h>>63 == 1 {
			weight = -weight
		}
		v[h%uint64(dimensions)] += weight
	}
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i, w := range words {
		add(w, 1)
		if i > 0 {
			add(words[i-1]+" "+w, 0.5)
		}
	}
	if len(words) == 0 {
		add("\x00"+text, 1)
	}
	length := 0.0
	for _, x := range v {
		length += x * x
	}
	if length == 0 { // opposite words in one place
		v[0], length = 1, 1
	}
	for i := range v {
		v[i] /= math.Sqrt(length)
	}
	return v
}
