// SPDX-License-Identifier: Apache-2.0

package sagafile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const maxProblems = 100

// Problem is one thing wrong with a file.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // from 1; 0: of the whole file
	Path    string `json:"path,omitempty"` // as steps[2].execute.ring
	Message string `json:"message"`
}

func (p Problem) String() string {
	s := p.File
	if p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
	}
	if p.Path != "" {
		s += ": " + p.Path
	}
	return s + ": " + p.Message
}

// InvalidError is a file that isn't a saga.
type InvalidError struct{ Problems []Problem }

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a file. name is for messages; paths in it are relative to dir, which is absolute.
func Parse(name string, data []byte, dir string) (File, error) {
	d := &decoder{file: name, dir: dir, lines: map[string]int{}}
	var f File
	if root := d.document(data); root != nil {
		d.saga(root, &f)
		d.check(&f)
	}
	if err := d.result(); err != nil {
		return File{}, err
	}
	return f, nil
}

// decoder walks the nodes by itself: the library's strict mode stops being strict at types (it reads yes, 0600 and ~ as
// this or that) and knows no field paths.
type decoder struct {
	file, dir string
	problems  []Problem
	lines     map[string]int // by path
	failed    []string       // paths with a problem: what follows from it isn't told again
}

func (d *decoder) result() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return &InvalidError{d.problems}
}

func (d *decoder) report(line int, path, format string, args ...any) {
	d.failed = append(d.failed, path)
	switch {
	case len(d.problems) < maxProblems:
		d.problems = append(d.problems, Problem{d.file, line, path, fmt.Sprintf(format, args...)})
	case len(d.problems) == maxProblems:
		d.problems = append(d.problems, Problem{File: d.file, Line: math.MaxInt32, Message: "and more problems"})
	}
}

// reportAt finds the line of path or of what encloses it.
func (d *decoder) reportAt(path, format string, args ...any) {
	if slices.Contains(d.failed, path) {
		return
	}
	for p := path; p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		if line := d.lines[p]; line > 0 {
			d.report(line, path, format, args...)
			return
		}
	}
	d.report(0, path, format, args...)
}

func (d *decoder) document(data []byte) *yaml.Node {
	switch {
	case len(data) > MaxFileBytes:
		d.report(0, "", "larger than %d KiB", MaxFileBytes>>10)
		return nil
	case !utf8.Valid(data):
		d.report(0, "", "not UTF-8")
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("empty: a saga has at least name and steps")
		}
		d.syntax(err)
		return nil
	}
	if err := dec.Decode(&next); err == nil {
		d.report(next.Line, "", "second document: one saga a file")
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return nil
	}
	if len(doc.Content) != 1 {
		d.report(0, "", "empty: a saga has at least name and steps")
		return nil
	}
	return doc.Content[0]
}

// syntax takes the line out of "yaml: line 7: did not find …".
func (d *decoder) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if num, after, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(num); err == nil {
				line, msg = n, after
			}
		}
	}
	d.report(line, "", "%s", msg)
}

// field decodes one key of a mapping.
type field struct {
	key    string
	decode func(n *yaml.Node, path string)
}

func (d *decoder) saga(n *yaml.Node, f *File) {
	d.mapping(n, "", []field{
		{"name", func(n *yaml.Node, p string) { d.text(n, p, &f.Name) }},
		{"agent", func(n *yaml.Node, p string) { d.text(n, p, &f.Agent) }},
		{"session", func(n *yaml.Node, p string) { d.text(n, p, &f.Session) }},
		{"steps", func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) {
				f.Steps = append(f.Steps, Step{})
				d.stepNode(n, p, &f.Steps[len(f.Steps)-1])
			})
		}},
	})
}

func (d *decoder) stepNode(n *yaml.Node, path string, s *Step) {
	command := func(c **Command) func(*yaml.Node, string) {
		return func(n *yaml.Node, p string) { *c = &Command{Ring: 3}; d.commandNode(n, p, *c) }
	}
	d.mapping(n, path, []field{
		{"id", func(n *yaml.Node, p string) { d.text(n, p, &s.ID) }},
		{"execute", command(&s.Execute)},
		{"undo", command(&s.Undo)},
		{"execute_api", func(n *yaml.Node, p string) { d.text(n, p, &s.ExecuteAPI) }},
		{"undo_api", func(n *yaml.Node, p string) { d.text(n, p, &s.UndoAPI) }},
		{"input", func(n *yaml.Node, p string) {
			if v, ok := d.any(n, p, 0).(map[string]any); ok {
				s.Input = v
			} else {
				d.reportAt(p, "want a mapping (key: value), got %s", describe(n))
			}
		}},
		{"idempotent", func(n *yaml.Node, p string) { d.boolean(n, p, &s.Idempotent) }},
		{"max_retries", func(n *yaml.Node, p string) { s.MaxRetries = new(int); d.whole(n, p, s.MaxRetries) }},
		{"retry_delay_seconds", func(n *yaml.Node, p string) { s.RetryDelay = new(float64); d.decimal(n, p, s.RetryDelay) }},
		{"step_timeout_seconds", func(n *yaml.Node, p string) {
			s.StepTimeout = new(float64)
			d.decimal(n, p, s.StepTimeout)
		}},
	})
}

func (d *decoder) commandNode(n *yaml.Node, path string, c *Command) {
	d.mapping(n, path, []field{
		{"command", func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) {
				c.Command = append(c.Command, "")
				d.anyText(n, p, &c.Command[len(c.Command)-1])
			})
		}},
		{"ring", func(n *yaml.Node, p string) { d.whole(n, p, &c.Ring) }},
		{"profile", func(n *yaml.Node, p string) { d.text(n, p, &c.Profile) }},
		{"workspace", func(n *yaml.Node, p string) {
			d.text(n, p, &c.Workspace)
			if c.Workspace != "" && !filepath.IsAbs(c.Workspace) {
				// Resolved here: Resume may be called from another folder.
				c.Workspace = filepath.Join(d.dir, c.Workspace)
			}
		}},
	})
}

// plain notes the line, and refuses what makes one text mean another.
func (d *decoder) plain(n *yaml.Node, path string) bool {
	d.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.report(n.Line, path, "anchors and aliases are not part of the format")
	case n.Style&yaml.TaggedStyle != 0:
		d.report(n.Line, path, "tag %.40s: tags are not part of the format", n.Tag)
	default:
		return true
	}
	return false
}

func (d *decoder) mapping(n *yaml.Node, path string, fields []field) {
	if !d.plain(n, path) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.report(n.Line, path, "want a mapping (key: value), got %s", describe(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		at, ok := d.key(n.Content[i], path, seen)
		if !ok {
			continue
		}
		f := slices.IndexFunc(fields, func(f field) bool { return f.key == n.Content[i].Value })
		if f < 0 {
			known := make([]string, len(fields))
			for i, f := range fields {
				known[i] = f.key
			}
			d.report(n.Content[i].Line, at, "unknown key; known: %s", strings.Join(known, ", "))
			continue
		}
		fields[f].decode(n.Content[i+1], at)
	}
}

func (d *decoder) key(key *yaml.Node, path string, seen map[string]int) (at string, ok bool) {
	if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 || key.Tag != "!!str" || len(key.Value) > maxName {
		d.report(key.Line, path, "a key must be a plain word")
		return "", false
	}
	at = key.Value
	if path != "" {
		at = path + "." + at
	}
	if first, dup := seen[key.Value]; dup {
		d.report(key.Line, at, "given twice, first on line %d", first)
		return "", false
	}
	seen[key.Value] = key.Line
	return at, true
}

func (d *decoder) list(n *yaml.Node, path string, item func(*yaml.Node, string)) {
	if !d.plain(n, path) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.report(n.Line, path, "want a list, got %s", describe(n))
		return
	}
	if len(n.Content) > maxArgs {
		d.report(n.Line, path, "%d entries, want at most %d", len(n.Content), maxArgs)
		return
	}
	for i, c := range n.Content {
		item(c, fmt.Sprintf("%s[%d]", path, i))
	}
}

// text takes printable text; anyText what YAML can carry, for arguments. A number needs quotes: 010 and 1_000 would
// otherwise reach the program as written by one reader and as meant by another.
func (d *decoder) text(n *yaml.Node, path string, s *string) {
	if d.anyText(n, path, s); *s != "" && !printable(*s, MaxFileBytes) {
		d.reportAt(path, "contains a control character")
	} else if *s == "" {
		d.reportAt(path, "empty")
	}
}

func (d *decoder) anyText(n *yaml.Node, path string, s *string) {
	if !d.plain(n, path) {
		return
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		d.report(n.Line, path, "want text, got %s", describe(n))
		return
	}
	*s = n.Value
}

func (d *decoder) boolean(n *yaml.Node, path string, b *bool) {
	if !d.plain(n, path) {
		return
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
		d.report(n.Line, path, "want true or false, got %s", describe(n))
		return
	}
	*b = n.Value == "true"
}

func (d *decoder) whole(n *yaml.Node, path string, i *int) {
	if !d.plain(n, path) {
		return
	}
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || strconv.Itoa(v) != n.Value {
		d.report(n.Line, path, "want a whole number, got %s", describe(n))
		return
	}
	*i = v
}

func (d *decoder) decimal(n *yaml.Node, path string, f *float64) {
	if !d.plain(n, path) {
		return
	}
	v, ok := number(n)
	if !ok {
		d.report(n.Line, path, "want a decimal number, got %s", describe(n))
		return
	}
	*f = v
}

// number takes digits with at most one point and a sign, no exponents, infinities, octals, hex or underscores.
func number(n *yaml.Node) (float64, bool) {
	digits := strings.TrimPrefix(n.Value, "-")
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || digits == "" || len(digits) > 30 ||
		strings.Trim(digits, "0123456789.") != "" || strings.ContainsAny(digits, "+-eExXoOinaINA_") ||
		len(digits) > 1 && digits[0] == '0' && digits[1] != '.' {
		return 0, false
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// any decodes an API's input to what JSON has.
func (d *decoder) any(n *yaml.Node, path string, depth int) any {
	if !d.plain(n, path) {
		return nil
	}
	if depth > maxInputDepth {
		d.report(n.Line, path, "nested deeper than %d", maxInputDepth)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		m, seen := map[string]any{}, map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if at, ok := d.key(n.Content[i], path, seen); ok {
				m[n.Content[i].Value] = d.any(n.Content[i+1], at, depth+1)
			}
		}
		return m
	case yaml.SequenceNode:
		l := []any{}
		d.list(n, path, func(n *yaml.Node, p string) { l = append(l, d.any(n, p, depth+1)) })
		return l
	}
	return d.scalar(n, path)
}

func (d *decoder) scalar(n *yaml.Node, path string) any {
	switch n.Tag {
	case "!!str":
		return n.Value
	case "!!bool":
		var b bool
		d.boolean(n, path, &b)
		return b
	case "!!int", "!!float":
		var f float64
		d.decimal(n, path, &f)
		return f
	case "!!null":
		return nil
	}
	d.report(n.Line, path, "want what JSON has, got %s", describe(n))
	return nil
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!str":
		return fmt.Sprintf("text %.40q", n.Value)
	}
	return fmt.Sprintf("%s %.40q", strings.TrimPrefix(n.Tag, "!!"), n.Value)
}
