// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"agentrun/internal/read"
)

// attackList is test/attack/classes.yaml, whose head says what each field means. What isn't in it isn't in
// the page.
type attackList struct {
	Alike   map[string]string `yaml:"alike"`
	Classes []struct {
		Class   string      `yaml:"class"`
		Note    string      `yaml:"note"`
		Attacks []attackRow `yaml:"attacks"`
	} `yaml:"classes"`
}

type attackRow struct {
	What     string   `yaml:"what"`
	Tests    []string `yaml:"tests"`
	Findings []string `yaml:"findings"`
	Controls []string `yaml:"controls"`
	Wall     string   `yaml:"wall"`
	Record   bool     `yaml:"record"`
	Alike    string   `yaml:"alike"`
	Not      string   `yaml:"not"`
	Absent   string   `yaml:"absent"`
}

type findingList struct {
	Findings []finding `yaml:"findings"`
}

type finding struct {
	ID    string   `yaml:"id"`
	What  string   `yaml:"what"`
	Tests []string `yaml:"tests"`
}

// rootRings are the columns of a row's cell. An ordinary user is refused ring 1 by name, so there is nothing
// to attack.
var rootRings = []string{"ring1", "ring2", "ring3", "strict"}

// state is how an attack ended in one ring and place. Greater is worse, and the worst of several counts.
type state int

const (
	untried state = iota
	lacking       // the machine lacks what the attack needs
	held
	works // and is meant to: the row says where that stands
	broken
)

// seen is what the streams say of one row in one cell.
type seen struct {
	state    state
	recorded bool // by the filter, for at least one try
	quietly  bool // by a wall that keeps no record, or a test that looks at the record itself
}

func (s *seen) add(o seen) {
	s.state = max(s.state, o.state)
	s.recorded = s.recorded || o.recorded
	s.quietly = s.quietly || o.quietly
}

// told is what one test said by t.Attr: how an attack ended, or only that it started a sandbox of a ring.
type told struct {
	test, ring, by, how string
}

type attackPage struct {
	*table
	list     attackList
	findings []finding
	told     map[string]map[string][]told // platform, package
	machine  map[string]string            // by platform
	tools    map[string]string            // by platform, user, ring and program: what a judging program said
	onlyHost map[string]bool              // tests that test/vm/suite.sh leaves to the host
	commit   string
	open     int // cells without a test, or without a reason
}

// attacksCommand writes docs/attacks.md from the same streams as report.
func attacksCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("attacks", flag.ContinueOnError)
	root := flags.String("root", ".", "the source tree")
	commit := flags.String("commit", "unknown", "what was tested")
	names := flags.Bool("tests", false, "print the packages and tests that the page is made of, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := attackPage{
		table: newTable(), told: map[string]map[string][]told{}, commit: *commit,
		machine: map[string]string{}, tools: map[string]string{},
	}
	if err := p.load(*root); err != nil {
		return err
	}
	if *names {
		p.printTests(out)
		return nil
	}
	for _, arg := range flags.Args() {
		platform, file, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want PLATFORM=FILE", arg)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		platform, read := p.reader(platform)
		err = errors.Join(read(platform, bytes.NewReader(b)), p.listen(platform, bytes.NewReader(b)))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return p.write(out)
}

func (p *attackPage) load(root string) error {
	var found findingList
	for name, into := range map[string]any{"classes.yaml": &p.list, "findings.yaml": &found} {
		b, err := os.ReadFile(root + "/test/attack/" + name)
		if err != nil {
			return err
		}
		n := read.YAML(read.Source{File: name, Max: 1 << 20}, b)
		n.Into(into)
		if err := n.Done(); err != nil {
			return err
		}
	}
	p.findings = found.Findings
	b, err := os.ReadFile(root + "/test/vm/suite.sh")
	if err != nil {
		return err
	}
	p.onlyHost = map[string]bool{}
	for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(string(b), -1) {
		p.onlyHost[name] = true
	}
	return nil
}

// listen collects what tests said of themselves.
func (p *attackPage) listen(platform string, in io.Reader) error {
	if p.told[platform] == nil {
		p.told[platform] = map[string][]told{}
	}
	return scan(in, func(_ []byte, e event, _ bool) error {
		words := strings.SplitN(e.Value, " ", 3)
		switch {
		case e.Action != "attr":
		case e.Key == "machine":
			p.machine[platform] = e.Value
		case e.Key == "tool" && len(words) == 3:
			name, text, _ := strings.Cut(words[2], ": ")
			p.tools[strings.Join([]string{platform, words[1], words[0], name}, " ")] = text
		case (e.Key == "cell" || e.Key == "ring") && len(words) >= 2:
			t := told{test: e.Test, ring: words[0], by: words[1]}
			if e.Key == "cell" && len(words) == 3 {
				t.how = words[2]
			}
			p.told[platform][e.Package] = append(p.told[platform][e.Package], t)
		}
		return nil
	})
}

// source is a test as the lists name it: "TestX" or "TestX: words of some of its tries" of the integration
// suite, or "path/x_test.go: TestX" of any package.
type source struct{ pkg, test, only string }

func parseSource(s string) source {
	first, rest, two := strings.Cut(s, ": ")
	if two && strings.HasSuffix(first, "_test.go") {
		return source{"agentrun/" + path.Dir(first), rest, ""}
	}
	return source{integration, first, strings.ReplaceAll(rest, " ", "_")}
}

// sources are a row's own tests and those of the findings that belong to it.
func (p *attackPage) sources(r attackRow) []source {
	tests := slices.Clone(r.Tests)
	for _, f := range p.findings {
		if slices.Contains(r.Findings, f.ID) {
			tests = append(tests, f.Tests...)
		}
	}
	var all []source
	for _, t := range tests {
		all = append(all, parseSource(t))
	}
	return all
}

// try is the part of a test's name after the place and the ring, for tables of attacks.
func try(test string) string {
	for _, place := range []string{"/in/", "/rootless/"} {
		if _, rest, ok := strings.Cut(test, place); ok {
			_, words, _ := strings.Cut(rest, "/")
			return words
		}
	}
	return ""
}

func (s source) covers(t told) bool {
	if t.test != s.test && !strings.HasPrefix(t.test, s.test+"/") {
		return false
	}
	words := try(t.test)
	return s.only == "" || words == s.only || strings.HasPrefix(words, s.only+"_")
}

// outcomeOf a test with the tests below it; a failure of its own doesn't hide behind them.
func (p *attackPage) outcomeOf(pkg, test, platform string) (outcome, bool) {
	c, met := p.on(id{pkg, test}, platform)
	return c.outcome, met
}

// cells are what the streams of a platform say of a row, by who ran it and the ring; and the row's word as a
// whole.
func (p *attackPage) cells(r attackRow, platform string) (map[string]map[string]*seen, seen) {
	cells := map[string]map[string]*seen{"root": {}, "rootless": {}}
	var whole seen
	for _, s := range p.sources(r) {
		top, met := p.outcomeOf(s.pkg, s.test, platform)
		if !met {
			continue
		}
		if top == skipped {
			whole.add(seen{state: lacking})
			continue
		}
		exact := slices.ContainsFunc(p.told[platform][s.pkg], func(t told) bool {
			return t.how != "" && s.covers(t)
		})
		blamed := false // a failure that belongs to a ring is told there
		for _, t := range p.told[platform][s.pkg] {
			if !s.covers(t) || r.control(t) || exact != (t.how != "") || cells[t.by] == nil {
				continue
			}
			now := seen{state: held, quietly: true, recorded: r.Record}
			switch o, _ := p.outcomeOf(s.pkg, t.test, platform); {
			case o <= failed:
				now, blamed = seen{state: broken}, true
			case o == skipped:
				now = seen{state: lacking}
			case t.how == "works":
				now = seen{state: works}
			case t.how == "filter":
				now = seen{state: held, recorded: true}
			case t.how == "refused":
				now = seen{state: held, quietly: true}
			}
			if cells[t.by][t.ring] == nil {
				cells[t.by][t.ring] = &seen{}
			}
			cells[t.by][t.ring].add(now)
		}
		switch {
		case top <= failed && !blamed:
			whole.add(seen{state: broken})
		case top == passed:
			whole.add(seen{state: held, quietly: true, recorded: r.Record})
		}
	}
	return cells, whole
}

// control says that a try is no attack but what must work beside it.
func (r attackRow) control(t told) bool {
	return slices.ContainsFunc(r.Controls, func(c string) bool {
		return source{test: t.test, only: strings.ReplaceAll(c, " ", "_")}.covers(t)
	})
}

// text says how an attack ended: which wall held, and by a dot that it is on record.
func (r attackRow) text(s seen) string {
	switch s.state {
	case broken:
		return "**FAILED**"
	case works:
		if r.Not == "" {
			return "**works**"
		}
		return "works"
	case lacking:
		return "n/a"
	case untried:
		return ""
	}
	switch {
	case r.Record:
		return r.Wall + " ●"
	case s.recorded && s.quietly && r.Wall == "filter":
		return "filter ◐"
	case s.recorded && s.quietly:
		return "filter ●, " + r.Wall
	case s.recorded:
		return "filter ●"
	}
	return r.Wall
}

// cell is a platform's and user's word on a row: one text if all rings agree, else each with its rings.
func (p *attackPage) cell(r attackRow, platform, by string) string {
	if r.Absent != "" {
		return "–"
	}
	cells, whole := p.cells(r, platform)
	if whole.state == broken {
		return "**FAILED**"
	}
	rings := rootRings
	if by == "rootless" {
		rings = rootRings[1:]
	}
	// No ring has a word of its own: the attack isn't on a sandbox.
	if len(cells["root"])+len(cells["rootless"]) == 0 && whole.state != untried && by == "root" {
		return r.text(whole)
	}
	var order []string
	said := map[string][]string{}
	for _, ring := range rings {
		word := ""
		if c := cells[by][ring]; c != nil {
			word = r.text(*c)
		}
		if word == "" {
			switch {
			case p.alike(r, platform):
				word = "="
			case whole.state == lacking:
				word = "n/a"
			default:
				word = "**open**"
			}
		}
		if said[word] == nil {
			order = append(order, word)
		}
		said[word] = append(said[word], strings.Replace(strings.TrimPrefix(ring, "ring"), "strict", "s", 1))
	}
	p.open += len(said["**open**"]) + len(said["**works**"])
	if len(order) == 1 {
		return order[0]
	}
	var parts []string
	for _, word := range order {
		parts = append(parts, strings.Join(said[word], " ")+": "+word)
	}
	return strings.Join(parts, "; ")
}

// alike says that a cell in which nothing was tried may stand for others in which it was, and held.
func (p *attackPage) alike(r attackRow, platform string) bool {
	holds := func(platform string) bool {
		_, whole := p.cells(r, platform)
		return whole.state == held
	}
	return r.Alike != "" && holds(platform) || platform == "vm" && p.leftToHost(r) && holds("host")
}

// leftToHost says that all tests of a row are those which test/vm/suite.sh leaves out, with its reasons, or
// of packages that know no kernel.
func (p *attackPage) leftToHost(r attackRow) bool {
	all := p.sources(r)
	return len(all) > 0 && !slices.ContainsFunc(all, func(s source) bool {
		return s.pkg == integration && !p.onlyHost[s.test]
	})
}

// columns are the places that a page has: the two kernels, each as root and as an ordinary user.
var columns = []struct{ platform, by string }{
	{"host", "root"}, {"vm", "root"}, {"host", "rootless"}, {"vm", "rootless"},
}

func (p *attackPage) write(out io.Writer) error {
	var body strings.Builder
	rows, bad := 0, 0
	for _, c := range p.list.Classes {
		fmt.Fprintf(&body, "\n## %s\n\n", upperFirst(c.Class))
		if c.Note != "" {
			fmt.Fprintf(&body, "%s\n\n", strings.TrimSpace(c.Note))
		}
		line(&body, "attack", "host, root", "VM, root", "host, user", "VM, user", "tried by")
		line(&body, "---", "---", "---", "---", "---", "---")
		for _, r := range c.Attacks {
			words := []string{r.What}
			for _, col := range columns {
				word := p.cell(r, col.platform, col.by)
				bad += strings.Count(word, "**FAILED**")
				words = append(words, word)
			}
			rows++
			line(&body, append(words, p.by(r))...)
		}
	}
	p.writeTools(&body)
	fmt.Fprintf(&body, "\n## Findings\n\nWhat a round of attacks found at commit d43d3b1, with the tests that failed there.\n\n")
	line(&body, "finding", "what", "tests", "host", "VM")
	line(&body, "---", "---", "---", "---", "---")
	tested := 0
	for _, f := range p.findings {
		host, vm := p.finding(f, "host"), p.finding(f, "vm")
		if len(f.Tests) > 0 {
			tested++
		}
		bad += strings.Count(host+vm, "**FAILED**")
		var names []string
		for _, t := range f.Tests {
			_, name, _ := strings.Cut(t, ": ")
			names = append(names, "`"+name+"`")
		}
		line(&body, f.ID, f.What, strings.Join(names, ", "), host, vm)
	}
	fmt.Fprintf(out, pageHead, p.commit, p.machine["host"], p.machine["vm"],
		rows, len(p.list.Classes), p.open, bad, tested, len(p.findings))
	for _, code := range slices.Sorted(maps.Keys(p.list.Alike)) {
		fmt.Fprintf(out, "- *%s*: %s\n", code, p.list.Alike[code])
	}
	if _, err := io.WriteString(out, body.String()); err != nil {
		return err
	}
	if bad > 0 {
		return errFailed
	}
	return nil
}

// writeTools says what the programs of the last class said, one line for each and the ring.
func (p *attackPage) writeTools(body *strings.Builder) {
	fmt.Fprintf(body, "\n")
	line(body, "said", "host, root", "VM, root", "host, user", "VM, user")
	line(body, "---", "---", "---", "---", "---")
	for _, name := range []string{"amicontained", "cdk"} {
		for _, ring := range rootRings {
			words := []string{name + ", " + ring}
			for _, col := range columns {
				words = append(words, p.tools[strings.Join([]string{col.platform, col.by, ring, name}, " ")])
			}
			line(body, words...)
		}
	}
}

// pageHead is the page above its classes, for fmt.
//
//go:embed attacks.txt
var pageHead string

// by names a row's tests, and the reasons for what isn't held or tried.
func (p *attackPage) by(r attackRow) string {
	var names []string
	for _, s := range p.sources(r) {
		if name := "`" + s.test + "`"; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	words := strings.Join(names, ", ")
	for _, f := range r.Findings {
		words = strings.TrimPrefix(words+"; "+f, "; ")
	}
	if r.Alike != "" {
		words += "; =: *" + r.Alike + "*"
	}
	if r.Not != "" {
		words += "; works: “" + r.Not + "”"
	}
	if r.Absent != "" {
		words += r.Absent
	}
	return words
}

// finding is a platform's word on a finding's tests.
func (p *attackPage) finding(f finding, platform string) string {
	word := ""
	for _, t := range f.Tests {
		s := parseSource(t)
		o, met := p.outcomeOf(s.pkg, s.test, platform)
		switch {
		case met && o <= failed:
			return "**FAILED**"
		case met && o == passed:
			word = "passed"
		case met && o == skipped && word == "":
			word = "n/a"
		case !met && platform == "vm" && word == "" && (s.pkg != integration || p.onlyHost[s.test]):
			word = "="
		}
	}
	if word == "" {
		return "**open**"
	}
	return word
}

// printTests prints a package and a pattern for its -run a line: what the page is made of.
func (p *attackPage) printTests(out io.Writer) {
	tests := map[string]map[string]bool{}
	note := func(s source) {
		if tests[s.pkg] == nil {
			tests[s.pkg] = map[string]bool{}
		}
		top, _, _ := strings.Cut(s.test, "/")
		tests[s.pkg][top] = true
	}
	for _, c := range p.list.Classes {
		for _, r := range c.Attacks {
			for _, s := range p.sources(r) {
				note(s)
			}
		}
	}
	for _, f := range p.findings {
		for _, t := range f.Tests {
			note(parseSource(t))
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		fmt.Fprintf(out, "./%s ^(%s)$\n", short(pkg), strings.Join(slices.Sorted(maps.Keys(tests[pkg])), "|"))
	}
}

func line(b *strings.Builder, cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
