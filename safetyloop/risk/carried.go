// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Many programs run another one that an option, a script or a variable names: tar --checkpoint-action=exec=id
// says no more at its front than "tar". lexicon/carriers.tsv has those ways. What isn't in it isn't found:
// this judges words, and a Makefile, a hook or a file that is named may hold anything.

// sedRuns takes the command e, and the flag e of s: both have sed run a shell, by sed(1).
var sedRuns = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|[;{]|^[0-9$,]+|^/[^/]*/)\s*e\s+\S|^[0-9$,]*s(/[^/]*/[^/]*/|\|[^|]*\|[^|]*\||#[^#]*#[^#]*#)[gpimI0-9]*e`)
})

// carried looks for another command within a command's arguments. Each row of the tables is tried on all of
// them, because an option may be given more than once, and the first may be the honest one. The arguments are
// put together first, as prose was cut at its equals signs; sed has no option for it, its scripts are looked
// through by a pattern of their own.
func (f *finder) carried(name string, args []string) {
	with, code := lexicon().carriers[name], lexicon().spawners[name]
	if with == nil && code == nil && name != "sed" && name != "gsed" {
		return
	}
	args = rejoined(args)
	for _, c := range with {
		if v, ok := c.value(args); ok {
			f.carries(name, name+" "+strings.TrimLeft(c.option+" "+v, "1 ")+": "+c.why)
			f.encoded(name, v)
		}
	}
	for i, a := range args {
		for _, c := range code {
			if a[0] == '-' && among(a, c.holds) || i > 0 && args[i-1][0] == '-' && among(a+"(", c.holds) {
				f.carries(name, name+": "+c.why)
			}
		}
		if (name == "sed" || name == "gsed") && sedRuns().MatchString(a) {
			f.carries(name, name+": a script that runs commands")
		}
	}
}

func (f *finder) carries(name, detail string) {
	f.act(verbRun, name)
	f.add(carriedCommand, detail)
}

// variable judges an assignment before a command, or by export.
func (f *finder) variable(name, value string) {
	for _, v := range lexicon().variables[name] {
		if v.fits(value) {
			f.carries(name, name+"="+value+": "+v.why)
			f.aim(name)
		}
	}
}

// value finds the option's, or that of the argument that is meant. Options come in four spellings,
// --name=value, --name value, -nvalue and -abn value, and any of them carries the same command; a reader that
// knew three would be gone round by the fourth. The first value that fits is taken, not the first there is:
// an honest one before it hides nothing.
func (c *carrier) value(args []string) (string, bool) {
	for i, a := range args {
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		name, v, assigned := strings.Cut(a, "=")
		switch {
		case c.option == "":
			v = a
		case c.option == "1":
			if v = a; a[0] == '-' || strings.Trim(a, "0123456789") == "" {
				continue
			}
			return v, c.fits(v)
		case a == "--":
			return "", false // what follows are no options of this command
		case long(c.option, name):
			if !assigned {
				v = next
			}
		case len(c.option) == 2 && strings.HasPrefix(a, c.option) && len(a) > 2:
			v = a[2:]
		case len(c.option) == 2 && cluster(a, c.option[1]):
			v = next
		default:
			continue
		}
		if c.fits(v) {
			return v, true
		}
	}
	return "", false
}

// cluster takes -K, and -sK: the last of several letters takes the value.
func cluster(a string, last byte) bool {
	return len(a) > 1 && a[0] == '-' && a[len(a)-1] == last &&
		!strings.ContainsFunc(a[1:], func(r rune) bool { return r >= utf8.RuneSelf || !letter(byte(r)) })
}

// long compares the name of an option of more than one letter; getopt_long(3) takes any beginning that is
// clear.
func long(option, name string) bool {
	switch {
	case len(option) <= 2:
		return false
	case strings.HasPrefix(option, "--"):
		return len(name) >= 5 && strings.HasPrefix(option, strings.ToLower(name))
	case option == "-encodedcommand": // PowerShell takes any beginning, in any case
		return len(name) > 1 && strings.HasPrefix(option, strings.ToLower(name))
	}
	return name == option
}

func (c *carrier) fits(value string) bool {
	value = strings.ToLower(strings.Trim(value, `'"`))
	if value == "" {
		return false
	}
	for _, u := range strings.Fields(c.usual) {
		rest, ok := strings.CutPrefix(value, u)
		if ok && (rest == "" || strings.IndexByte(" :", rest[0]) >= 0 || strings.HasSuffix(u, "/") || strings.HasSuffix(u, ":")) &&
			!strings.ContainsAny(value, ";|&`(") {
			return false
		}
	}
	return c.holds == "" || among(value, c.holds)
}

// among tells whether a value holds one of a list's texts; spaces in it don't count.
func among(value, list string) bool {
	value = strings.ReplaceAll(strings.ToLower(value), " ", "")
	for _, s := range strings.Fields(list) {
		if begins, ok := strings.CutPrefix(s, "^"); ok && strings.HasPrefix(value, begins) || !ok && strings.Contains(value, s) {
			return true
		}
	}
	return false
}

// encoded adds that a value can't be read by whoever confirms the hint, and reads it.
func (f *finder) encoded(name, value string) {
	if name == "powershell" || name == "pwsh" {
		f.add(disguised, "an encoded command")
		f.text(utf16(value), maxDepth)
	}
}

// utf16 reads what PowerShell's -EncodedCommand takes: base64 of UTF-16, little end first. Only ASCII is of
// interest.
func utf16(value string) string {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil || len(b)%2 != 0 {
		return ""
	}
	var out strings.Builder
	for i := 0; i < len(b); i += 2 {
		if b[i+1] == 0 && b[i] < utf8.RuneSelf {
			out.WriteByte(b[i])
		}
	}
	return out.String()
}

// rejoined puts together what the words of prose were cut at: --option = value.
func rejoined(args []string) []string {
	if !slices.Contains(args, "=") {
		return args
	}
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] != "=" || len(out) == 0 {
			out = append(out, args[i])
			continue
		}
		out[len(out)-1] += "="
		if i+1 < len(args) && args[i+1] != "=" {
			i++
			out[len(out)-1] += args[i]
		}
	}
	return out
}
