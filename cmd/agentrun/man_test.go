// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"agentrun/tools/man/page"
)

// manual is a page made of what this program says of itself.
func manual(t *testing.T, p page.Page) string {
	t.Helper()
	var roff bytes.Buffer
	err := p.Write(&roff, "agentrun version test", func(args ...string) (string, error) {
		var out bytes.Buffer
		app := newApp()
		app.Writer, app.ErrWriter = &out, &out
		err := app.Run(append([]string{"agentrun"}, args...))
		return out.String(), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return roff.String()
}

// sections are the texts below the headings of a page, with what troff reads turned into what it prints.
func sections(roff string) map[string]string {
	found := map[string]string{}
	plain := strings.NewReplacer(`\fB`, "", `\fR`, "", `\-`, "-", `\&`, "", `\(aq`, "'", `\(ga`, "`", `\(dq`, `"`)
	decoded := regexp.MustCompile(`\\\[u([0-9A-F]{4})\]`).ReplaceAllStringFunc(roff, func(s string) string {
		n, _ := strconv.ParseUint(s[3:7], 16, 16)
		return string(rune(n))
	})
	for _, part := range strings.Split(decoded, "\n.S")[1:] {
		heading, text, _ := strings.Cut(part, "\n")
		found[plain.Replace(heading)] = plain.Replace(text)
	}
	return found
}

// Every verb has a section of the page, and every flag of it that isn't hidden stands there, by each of its names.
func TestManPageHasEveryFlag(t *testing.T) {
	app := newApp()
	for _, p := range page.All {
		t.Run(p.Name, func(t *testing.T) {
			of, flags, verbs := "agentrun", app.Flags, app.Commands
			for _, verb := range p.Verbs {
				c := app.Command(verb)
				of, flags, verbs = of+" "+verb, c.Flags, c.Subcommands
			}
			found := sections(manual(t, p))
			verbs0, flags0 := 0, 0
			has := func(where, text string, flags []cli.Flag) {
				for _, f := range flags {
					if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
						if strings.Contains(text, "--"+f.Names()[0]) {
							t.Errorf("%s: --%s is hidden, and stands there", where, f.Names()[0])
						}
						continue
					}
					for _, name := range f.Names() {
						flags0++
						if dashed := strings.Repeat("-", min(2, len(name))) + name; !strings.Contains(text, dashed) {
							t.Errorf("%s: the page has no %s", where, dashed)
						}
					}
				}
			}
			var walk func(of string, verbs []*cli.Command)
			walk = func(of string, verbs []*cli.Command) {
				for _, c := range verbs {
					if c.Hidden {
						continue
					}
					verbs0++
					name, text := of+" "+c.Name, ""
					for heading, body := range found {
						if strings.HasPrefix(heading+" ", "S "+name+" ") {
							text += body
						}
					}
					if text == "" {
						t.Errorf("the page has no %s", name)
					}
					if c.Usage != "" && !strings.Contains(text, c.Usage) {
						t.Errorf("%s: the page doesn't say %q", name, c.Usage)
					}
					has(name, text, c.Flags)
					walk(name, c.Subcommands)
				}
			}
			has(of, found["H OPTIONS"], flags)
			walk(of, verbs)
			if verbs0 < 5 || flags0 < 3 {
				t.Errorf("got %d verbs and %d flags: a check of nothing is no check", verbs0, flags0)
			}
		})
	}
}

// nasty is help with what troff would take for its own.
const nasty = `NAME:
   x - says "it's" -1

USAGE:
   x [-a|--all]

DESCRIPTION:
   .TH no request
   'br neither \fBnor\fR \u001b
   C:\\~\^ ` + "`quoted`" + ` … – é

      .SH in a listing
      'sp \n(.l

OPTIONS:
   --all, -a  .all 'of' "them" \e
`

// A sign that troff takes for its own is told by it, or missing in what it prints.
func TestManPagesRender(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skipf("need: program groff: %v", err)
	}
	type row struct{ name, roff, want string }
	var signs bytes.Buffer
	if err := (page.Page{Name: "x"}).Write(&signs, "1", func(...string) (string, error) { return nasty, nil }); err != nil {
		t.Fatal(err)
	}
	rows := []row{{"signs", signs.String(), nasty}}
	for _, p := range page.All {
		rows = append(rows, row{p.Name, manual(t, p), p.Name + " - \nREADME.md, SECURITY.md and docs/ of the sources."})
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			var out, complaints bytes.Buffer
			cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=200n")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(row.roff), &out, &complaints
			if err := cmd.Run(); err != nil || complaints.Len() > 0 {
				t.Errorf("groff: %v\n%s", err, complaints.String())
			}
			printed := strings.Join(strings.Fields(strings.ReplaceAll(out.String(), "−", "-")), " ")
			for want := range strings.Lines(row.want) {
				// Headings are printed in another way; of an option and what it does each is looked for.
				for _, part := range strings.Split(strings.TrimSpace(want), "  ") {
					if !strings.HasSuffix(part, ":") && !strings.Contains(printed, part) {
						t.Errorf("got no %q in\n%.3000s", part, out.String())
					}
				}
			}
		})
	}
}

// Help that is none is an error, not half a page.
func TestManPageNeedsHelp(t *testing.T) {
	broken := errors.New("broken")
	for _, row := range []struct {
		name string
		say  func(...string) (string, error)
		want string
	}{
		{"none", func(...string) (string, error) { return "", nil }, "no name or no usage"},
		{"another form", func(...string) (string, error) { return "Usage: x [flags]\n", nil }, "no name or no usage"},
		{"the program fails", func(...string) (string, error) { return "", broken }, "broken"},
		{"a verb fails", func(args ...string) (string, error) {
			if len(args) > 1 {
				return "", broken
			}
			return "NAME:\n   x - y\n\nUSAGE:\n   x\n\nCOMMANDS:\n   verb  does\n", nil
		}, "broken"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := page.All[0].Write(&out, "1", row.say); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}
