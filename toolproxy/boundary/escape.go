// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What stands in for a dangerous character. Each looks like the original to a reader, has no compatibility decomposition
// (so NFKC, which some tokenizers apply, doesn't bring the original back), and is itself left alone: escaping twice is
// escaping once. TestM16SubstitutesStay holds them to it.
const (
	angleOpen   = '‹' // U+2039
	angleClose  = '›' // U+203A
	squareOpen  = '⁅' // U+2045
	squareClose = '⁆' // U+2046
	colon       = '꞉' // U+A789
)

// Escape takes from text what models, terminals and people could mistake for something else than text, speakers' names at
// the start of lines excepted: in a tool's output "user: x" is mostly a configuration file. Wrap escapes those too.
func Escape(text string) (string, []string) { return escape(text, false) }

func escape(text string, roles bool) (string, []string) {
	e := escaper{in: text, roles: roles}
	e.run()
	if !e.changed {
		return text, nil
	}
	return e.out.String(), e.flags()
}

type escaper struct {
	in      string
	out     strings.Builder
	roles   bool
	changed bool
	token, role, hidden, terminal,
	lineStart bool
	prev rune // the character before, as it was
}

func (e *escaper) flags() []string {
	flags := []string{FlagEscaped}
	for _, f := range []struct {
		seen bool
		name string
	}{{e.token, FlagToken}, {e.role, FlagRole}, {e.hidden, FlagHidden}, {e.terminal, FlagTerminal}} {
		if f.seen {
			flags = append(flags, f.name)
		}
	}
	return Merge(flags, nil)
}

func (e *escaper) run() {
	e.out.Grow(len(e.in) + len(e.in)/16)
	e.lineStart = true
	for i := 0; i < len(e.in); {
		if e.lineStart && e.roles {
			if n := speaker(e.in[i:]); n > 0 {
				// The name goes out as it is but for what is special within; then the colon.
				e.out.WriteString(e.in[i : i+n])
				_, size := utf8.DecodeRuneInString(e.in[i+n:])
				e.replace(colon)
				e.role, e.lineStart, e.prev = true, false, ':'
				i += n + size
				continue
			}
		}
		i += e.step(i)
	}
}

// step handles the character at i and returns how many bytes it took.
func (e *escaper) step(i int) int {
	r, size := utf8.DecodeRuneInString(e.in[i:])
	e.lineStart = lineEnd(r)
	before, as := e.prev, sign(r)
	e.prev = r
	switch {
	case r == '\t' || r == '\n' || r == '\r':
		e.out.WriteRune(r)
	case r < 0x20 || r == 0x7f:
		e.terminal = true
		e.replace(picture(r))
	case r == utf8.RuneError && size == 1:
		e.replace(utf8.RuneError)
	case r == 0x85 || r == 0x2028 || r == 0x2029:
		e.replace('\n') // seen as a new line by some and not by others: now by all
	case e.hides(r, i, size):
		e.hidden = true
		return e.skipHidden(i)
	case as == '<' && opensTag(e.in[i+size:]):
		e.token = true
		e.replace(angleOpen)
	case as == '>' && sign(before) == '|':
		e.token = true
		e.replace(angleClose)
	case as == '[' && instructions().has(name(opened(e.in[i+size:]))):
		e.token = true
		e.replace(squareOpen)
	default:
		e.out.WriteRune(r)
	}
	return size
}

func (e *escaper) replace(r rune) {
	e.changed = true
	e.out.WriteRune(r)
}

// skipHidden replaces a run of characters that can't be seen by their number: a run may be megabytes.
func (e *escaper) skipHidden(i int) int {
	n, length := 0, 0
	for j := i; j < len(e.in); {
		r, size := utf8.DecodeRuneInString(e.in[j:])
		if !e.hides(r, j, size) {
			break
		}
		n, length, j = n+1, length+size, j+size
		e.prev = r
	}
	e.changed = true
	e.out.WriteString("⟦hidden " + strconv.Itoa(n) + "⟧")
	return length
}

// hides tells whether the character at i can't be seen and isn't needed to write a script or an emoji.
func (e *escaper) hides(r rune, i, size int) bool {
	if !Invisible(r) {
		return false
	}
	if r != 0x200c && r != 0x200d && !(0xfe00 <= r && r <= 0xfe0f) {
		return true
	}
	before, _ := utf8.DecodeLastRuneInString(e.in[:i])
	if r >= 0xfe00 { // one variation selector after what it can vary; more in a row are smuggled bytes
		return !joinable(before) && !('0' <= before && before <= '9') && before != '#' && before != '*'
	}
	after, _ := utf8.DecodeRuneInString(e.in[i+size:])
	return !(joinable(before) || before == 0xfe0f) || !joinable(after)
}

// joinable: letters of scripts that join, and emoji. Latin, Greek and Cyrillic need no joiners.
func joinable(r rune) bool {
	return r > 0x590 && r != utf8.RuneError && (unicode.IsLetter(r) || unicode.Is(unicode.So, r) || unicode.Is(unicode.Sk, r) && r >= 0x1f3fb ||
		unicode.IsMark(r) && !Invisible(r))
}

// Invisible tells of characters that are drawn as nothing at all, or only change how others are drawn: what text is hidden in (M-16). ASCII has
// none but its control characters, which are not among them.
func Invisible(r rune) bool {
	if r < 0x80 {
		return false
	}
	switch {
	case 0x80 <= r && r < 0xa0 && r != 0x85, r == 0x34f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, 0x180b <= r && r <= 0x180f,
		r == 0x2065, r == 0x3164, r == 0xffa0, 0xfe00 <= r && r <= 0xfe0f, 0xfff0 <= r && r <= 0xfffb, 0xe0000 <= r && r <= 0xe0fff,
		0x1d173 <= r && r <= 0x1d17a:
		return true
	}
	return unicode.Is(unicode.Cf, r) && !(0x600 <= r && r <= 0x605) && r != 0x6dd && r != 0x70f && r != 0x8e2
}

// picture shows a control character by its symbol (U+2400 block).
func picture(r rune) rune {
	if r == 0x7f {
		return 0x2421
	}
	return 0x2400 + r
}

func lineEnd(r rune) bool {
	return r == '\n' || r == '\r' || r == 0x85 || r == 0x2028 || r == 0x2029
}

// sign is the ASCII sign that templates use and r is read as, or r itself. TestM16SignsAreThoseOfFold holds it to package fold,
// which is too slow to be asked about each character. What Escape puts in isn't read as what it replaces.
func sign(r rune) rune {
	if r < utf8.RuneSelf {
		return r
	}
	switch r {
	case '＜', '﹤', '≮', '˂', 'ᐸ', 'ᚲ', '❮', '𝈶':
		return '<'
	case '＞', '﹥', '≯', '˃', 'ᐳ', '❯', '𖼿', '𝈷':
		return '>'
	case '［', '﹇':
		return '['
	case '｜', '¦', 'ǀ', '׀', '∣', '∤', '⏽', '￨', '￤', '𐞶':
		return '|'
	case '：', '﹕', '︓', 'ː', '˸', '։', '׃', '܃', '܄', '᛬', '᠃', '᠉', '⁚', '∶', 'ꓽ', '𐞁':
		return ':'
	case '／', '⁁', '⁄', '∕', '╱', '⟋', '⧶', '⧸', 'Ⳇ', '〳', '᜵', '𝈺':
		return '/'
	}
	return r
}

// opensTag looks behind a "<": a bar (<|im_start|>), another "<" (<<SYS>>), or one of the names, closing or not.
func opensTag(rest string) bool {
	rest = skip(rest, 3, unicode.IsSpace)
	switch r, size := utf8.DecodeRuneInString(rest); sign(r) {
	case '|':
		return true
	case '<':
		return tag(name(rest[size:]))
	}
	return tag(name(opened(rest)))
}

func tag(n string) bool { return tags().has(n) || strings.HasPrefix(key(n), "data-") }

// opened is what comes after a bracket, and after the slash of one that closes.
func opened(rest string) string {
	rest = skip(rest, 3, unicode.IsSpace)
	if r, size := utf8.DecodeRuneInString(rest); sign(r) == '/' {
		rest = skip(rest[size:], 3, unicode.IsSpace)
	}
	return rest
}

// The names that templates of open models, and instructions of closed ones, give a meaning; and ours.
var (
	tags = wordsOf("s bos eos pad unk sys inst system system_prompt user assistant developer human model " +
		"tool tools tool_call tool_calls tool_response tool_result tool_results tool_use function functions " +
		"function_call function_calls function_results invoke instruction instructions system-reminder " +
		"im_start im_end start_of_turn end_of_turn start_header_id end_header_id eot_id begin_of_text " +
		"think thinking thought thoughts reasoning scratchpad analysis data")
	instructions = wordsOf("inst sys system system_prompt available_tools tool_calls tool_results tool_content")
	speakers     = wordsOf("system assistant user human ai developer tool function instruction instructions response bot model " +
		"система асистент ассистент користувач пользователь інструкція инструкция")
)

// speaker returns the length of a speaker's name at the start of a line, up to its colon, or 0.
func speaker(line string) int {
	rest := skip(line, 12, func(r rune) bool { return strings.ContainsRune(" \t#*_>-", r) })
	n := name(rest)
	end := skip(rest[len(n):], 8, func(r rune) bool { return strings.ContainsRune(" \t*_", r) })
	if r, _ := utf8.DecodeRuneInString(end); sign(r) != ':' || !speakers().has(n) {
		return 0
	}
	return len(line) - len(end)
}

func prefixRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func skip(s string, most int, while func(rune) bool) string {
	for range most {
		r, size := utf8.DecodeRuneInString(s)
		if size == 0 || !while(r) {
			break
		}
		s = s[size:]
	}
	return s
}
