// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestS5Folds proves what hints and patterns are made equal by.
func TestS5Folds(t *testing.T) {
	for in, want := range map[string]string{
		"": "", " \t\n": "", "Delete  ALL\n\tusers ": "delete all users", "plain": "plain",
		"ｄｅｌｅｔｅ＿ａｌｌ":                               "delete_all",
		"dеlеtе_аll":                               "delete_all", // Cyrillic е, а
		"𝐝𝐞𝐥𝐞𝐭𝐞 𝔞𝕝𝓵":                               "delete all",
		"ⓓⓔⓛⓔⓣⓔ 🅐🅛🅛 🄳🅳🇩":                           "delete all ddd",
		"ᴅᴇʟᴇᴛᴇ ꜱʜᴇʟʟ":                             "delete shell",
		"ΡRΟDUCΤΙΟΝ":                               "production", // Greek capitals
		"dél\u0301ète":                             "delete",
		"d\u0336e\u0336l\u0336":                    "del",
		"dr\u200bop\u2060_\ufefft\u00adable\ufe0f": "drop_table",
		"\u202erm\u202c -rf":                       "rm -rf",
		"rm\u00a0\u2003-rf\u2028/":                 "rm -rf /",
		"rm\u2800-rf\u3164/":                       "rm -rf /",
		"rm –rf ∕etc⁄passwd":                       "rm -rf /etc/passwd",
		"“quoted” ‘text’":                          `"quoted" 'text'`,
		"ab\x1b[31mcd\x1b[0m\x07e\x00f":            "abcdef",
		"x\xffy":                                   "x\ufffdy",
		"ſecret":                                   "secret",
		"r\U000e0061m":                             "rm",
		"խոս":                                      String("խոս"),
	} {
		if got := String(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestS5Split(t *testing.T) {
	for in, want := range map[string]string{
		"deleteUser": "delete_user", "HTTPRequest": "http_request", "fs.deleteFile now": "fs.delete_file now", "DELETE ALL": "delete all", "DeleteAllUsers2Go": "delete_all_users2_go",
		"dеleteUser": "delete_user", "a": "a", "AB": "ab", "ABc": "a_bc", "GitHub": "git_hub",
	} {
		if got := Read(in).Split; got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got, want := Read("RM  -Rf /\r\n ls\tx").Clean, "RM -Rf /\nls x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestS5Hidden(t *testing.T) {
	for in, want := range map[string]Hidden{
		"read the file":          {},
		"naïve café":             {},
		"читать файл":            {}, // another script isn't hiding
		"Ελλάδα file":            {},
		"thumbs 👍\ufe0f👩\u200d💻": {}, // nor is a picture that is written with joiners
		"dеlete":                 {Alike: 1},
		"de\u200blete":           {Invisible: 1},
		"\u202erm":               {Bidi: 1},
		"a\U000e0072\U000e006d":  {Tags: 2},
		"𝐫𝐦":                     {Styled: 2},
		"a\xff":                  {Invalid: 1},
		"a\x1b[1mb":              {Invisible: 1},
	} {
		if got := Read(in).Hidden; got != want {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
		if got := Read(in).Hidden.Any(); got != (want != Hidden{}) {
			t.Errorf("%q: got %v", in, got)
		}
	}
	if got := Read("flag \U000e0072\U000e006d\U000e007f").Shadow; got != "rm" {
		t.Errorf("got %q, want what the tags spell", got)
	}
}

// Each character alone must be stable, and so must any text of them: a pattern is folded once, a hint perhaps twice.
func TestS5Idempotent(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if r == 0x32400 {
			r = 0xe0000 // nothing is assigned between
		}
		if r == 0xe1000 {
			break // private use
		}
		if once := String(string(r)); String(once) != once {
			t.Errorf("%U: %q becomes %q", r, once, String(once))
		}
	}
	odd := rapid.SampledFrom([]rune("aIlZ _-.\u200b\u0301\u0345\u034f\u1100\u1161\u11a8İıẞſﷺΗησςеА\u202e\u0f71\u0f72\U000e0061\ufffd\u00a0\u2028\x1b[m\x00"))
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringOf(odd)).Draw(t, "s")
		stable(t, s)
	})
}

func stable(t interface{ Fatalf(string, ...any) }, s string) {
	r := Read(s)
	if again := Read(r.Folded); again.Folded != r.Folded {
		t.Fatalf("%q: folded %q, again %q", s, r.Folded, again.Folded)
	}
	if again := Read(r.Split); again.Split != r.Split {
		t.Fatalf("%q: split %q, again %q", s, r.Split, again.Split)
	}
	if again := Read(r.Clean); again.Clean != r.Clean || again.Folded != r.Folded {
		t.Fatalf("%q: clean %q, again %q", s, r.Clean, again.Clean)
	}
	if String(s) != r.Folded {
		t.Fatalf("%q: String %q, Read %q", s, String(s), r.Folded)
	}
	if k := Skeleton(r.Folded); Skeleton(k) != k {
		t.Fatalf("%q: skeleton %q isn't stable", s, k)
	}
	if !utf8.ValidString(r.Folded) || strings.Contains(r.Folded, "  ") || strings.TrimSpace(r.Folded) != r.Folded {
		t.Fatalf("%q: got %q", s, r.Folded)
	}
}

// Each number of the table can be read and stands there once: one that can't would be left out in silence.
func TestAlikes(t *testing.T) {
	seen := map[string]bool{}
	for row := range strings.Lines(alikeRows) {
		as, numbers, is := strings.Cut(row, "\t")
		if strings.HasPrefix(row, "# ") && !is {
			continue
		}
		if len(as) != 1 || as[0] <= ' ' || as[0] > '~' || numbers == "\n" {
			t.Errorf("%q: want an ASCII character, a tab and numbers", row)
		}
		for _, number := range strings.Fields(numbers) {
			if r, err := strconv.ParseInt(number, 16, 32); err != nil || r < utf8.RuneSelf || r > utf8.MaxRune || seen[number] {
				t.Errorf("%q: %s is there twice, or no number of another script's character", as, number)
			}
			seen[number] = true
		}
	}
	if len(seen) != len(alikes()) || len(seen) < 841 {
		t.Errorf("%d characters are told, %d are known, want 841 or more of both", len(seen), len(alikes()))
	}
}

// A long hint is read whole, and costs no more than its length.
func TestS5Whole(t *testing.T) {
	for _, unit := range []string{"a", "\ufdfa", "\u0301", "\U000e0061", "A b", "\x1b["} {
		s := strings.Repeat(unit, (64<<10)/len(unit)) + " RM"
		r := Read(s)
		if unit != "\x1b[" && !strings.HasSuffix(r.Folded, "rm") {
			t.Errorf("%q: the end is missing: %.40q", unit, r.Folded)
		}
		if len(r.Folded) > 18*len(s) {
			t.Errorf("%q: %d bytes became %d", unit, len(s), len(r.Folded))
		}
	}
	if allocs := testing.AllocsPerRun(10, func() { _ = String("reading a file") }); allocs != 0 {
		t.Errorf("got %v allocations for a text that is folded already, want none", allocs)
	}
}

func FuzzFold(f *testing.F) {
	for _, s := range []string{"", "Delete\u00a0ALL", "dеlete", "\x1b[3", "\ufdfa\u0345\u0301", "\U000e0001a", "x\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { stable(t, s) })
}

func BenchmarkString(b *testing.B) {
	for _, row := range []struct{ name, text string }{
		{"english", "The quick brown fox asks what 6*7 is, and <b>why</b>. "},
		{"ukrainian", "Швидкий лис питає, скільки буде 6*7, і <b>чому</b> — їжак. "},
		{"chinese", "敏捷的狐狸问六乘七是多少,还有为什么。"},
		{"korean", "이전의 모든 지시를 무시하지 않는다. "},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := strings.Repeat(row.text, 1<<14/len(row.text))
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				String(s)
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	s := strings.Repeat("calling write_file on project/config.json ", 240) + "dеlete"
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		Read(s)
	}
}
