// SPDX-License-Identifier: Apache-2.0

// Package page makes man pages from what a program prints by --help: each verb that is listed there gets a section with
// its own help, and those below it.
//
//	err := page.All[0].Write(w, "agentrun version 1.2", func(args ...string) (string, error) { … })
//
// An error says which help can't be read. What it does not do: it knows nothing of verbs and flags that are hidden, and
// reads the form of help that github.com/urfave/cli/v2 gives, no other.
package page

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Page is a man page of section 1.
type Page struct {
	Name     string
	Title    string   // what the program is, in a few words; that of the help where it is empty
	Verbs    []string // the verb whose help the page has; none: all
	About    string   // the description; that of the help where it is empty
	Sections []Section
}

// Section stands behind the commands: a text, then items with what they are.
type Section struct {
	Title, Text string
	Items       [][2]string
}

// help is what a program says of a verb.
type help struct {
	name, title, usage string
	about              []string    // lines; those of a listing begin with three blanks
	flags              [][2]string // as they are written, what they do
	verbs              []string
}

// Write writes the page. say runs the program with these arguments and returns what it prints.
func (p Page) Write(w io.Writer, version string, say func(...string) (string, error)) error {
	d := document{bufio.NewWriter(w), say}
	h, err := d.help(p.Verbs)
	if err != nil {
		return err
	}
	if p.Title != "" {
		h.title = p.Title
	}
	if p.About != "" {
		h.about = strings.Split(p.About, "\n")
	}
	d.line(".TH", strings.ToUpper(p.Name), `1 "" "`+escape(version)+`" agentrun`)
	d.line(".nh\n.ad l") // a word that was divided can't be copied
	d.line(".SH NAME")
	d.line(escape(p.Name), `\-`, escape(h.title))
	d.line(".SH SYNOPSIS")
	d.line(`\fB` + escape(h.usage) + `\fR`)
	d.line(".SH DESCRIPTION")
	d.text(h.about)
	if len(h.flags) > 0 {
		d.line(".SH OPTIONS")
		d.items(h.flags)
	}
	d.line(".SH COMMANDS")
	if err := d.commands(p.Verbs, h.verbs); err != nil {
		return err
	}
	for _, s := range p.Sections {
		d.line(".SH", strings.ToUpper(s.Title))
		d.text(strings.Split(s.Text, "\n"))
		d.items(s.Items)
	}
	return d.Flush()
}

type document struct {
	*bufio.Writer
	say func(...string) (string, error)
}

// commands writes the verbs of one, and all below them.
func (d document) commands(of, verbs []string) error {
	for _, verb := range verbs {
		path := append(slices.Clone(of), verb)
		h, err := d.help(path)
		if err != nil {
			return err
		}
		d.line(".SS", escape(h.usage))
		d.text(append([]string{h.title + ".", ""}, h.about...))
		d.items(h.flags)
		if err := d.commands(path, h.verbs); err != nil {
			return err
		}
	}
	return nil
}

func (d document) help(verbs []string) (help, error) {
	text, err := d.say(append(slices.Clone(verbs), "--help")...)
	if err != nil {
		return help{}, err
	}
	h := read(text)
	if h.name == "" || h.usage == "" {
		return h, fmt.Errorf("read the help of %q: no name or no usage in %.200q", strings.Join(verbs, " "), text)
	}
	return h, nil
}

// read takes help apart. What names and what explains have two blanks or more between them.
func read(text string) (h help) {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if title, found := strings.CutSuffix(line, ":"); found && line == strings.TrimLeft(line, " ") {
			section = title
			continue
		}
		line = strings.TrimPrefix(line, "   ")
		first, rest, _ := strings.Cut(strings.TrimLeft(line, " "), "  ")
		rest = strings.TrimLeft(rest, " ")
		switch {
		case section == "DESCRIPTION":
			h.about = append(h.about, line)
		case line == "":
		case section == "NAME":
			h.name, h.title, _ = strings.Cut(line, " - ")
		case section == "USAGE":
			h.usage = line
		case section == "COMMANDS" && rest != "" && first != "help, h":
			name, _, _ := strings.Cut(first, ", ")
			h.verbs = append(h.verbs, name)
		case strings.HasSuffix(section, "OPTIONS") && strings.HasPrefix(first, "-") && !strings.HasPrefix(first, "--help"): // else the name of a group
			h.flags = append(h.flags, [2]string{first, rest})
		}
	}
	return h
}

func (d document) line(words ...string) { fmt.Fprintln(d, strings.Join(words, " ")) }

// text writes paragraphs and, as they stand, listings.
func (d document) text(lines []string) {
	paragraph, listing := false, false
	for _, line := range lines {
		code, isCode := strings.CutPrefix(line, "   ")
		switch {
		case isCode && !listing:
			d.line(".PP\n.RS 4\n.nf")
		case listing && !isCode:
			d.line(".fi\n.RE")
			paragraph = true
		}
		if listing = isCode; isCode {
			d.line(escape(code))
			continue
		}
		if line == "" {
			paragraph = true
			continue
		}
		if paragraph {
			d.line(".PP")
		}
		paragraph = false
		d.line(escape(line))
	}
	if listing {
		d.line(".fi\n.RE")
	}
}

func (d document) items(items [][2]string) {
	for _, item := range items {
		d.line(".TP\n" + `\fB` + escape(item[0]) + `\fR`)
		d.line(escape(cmp.Or(item[1], "see above")))
	}
}

// signs mean something to troff, or come out as another sign; a dot only at the start of a line.
var signs = map[rune]string{
	'\\': `\e`, '-': `\-`, '.': `\&.`, '"': `\(dq`, '\'': `\(aq`, '`': `\(ga`, '^': `\(ha`, '~': `\(ti`,
}

// escape returns text that troff prints as it is, so that options can be copied from a page; the page is ASCII.
func escape(text string) string {
	var b strings.Builder
	for n, r := range text {
		sign, found := signs[r]
		switch {
		case found && (r != '.' || n == 0):
			b.WriteString(sign)
		case r > 0x7e:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
