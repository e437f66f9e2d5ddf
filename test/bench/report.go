// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is one run: everything a figure needs to be believed, beside the figures.
type Report struct {
	Date     time.Time `json:"date"`
	Command  string    `json:"command"`
	Quick    bool      `json:"quick"`
	Machine  Machine   `json:"machine"`
	Versions []Version `json:"versions"`
	Rows     []Row     `json:"rows"`
}

// Row is one line of the table.
type Row struct {
	Group    string       `json:"group"`
	Name     string       `json:"name"`
	Unit     string       `json:"unit,omitempty"`
	N        int          `json:"n"`
	Median   float64      `json:"median"`
	P10      float64      `json:"p10"`
	P90      float64      `json:"p90"`
	Min      float64      `json:"min"`
	CPU      float64      `json:"cpu_ms,omitempty"` // median of user and system time of the process and what it waited for
	Against  []Comparison `json:"against,omitempty"`
	Note     string       `json:"note,omitempty"`
	NotRun   string       `json:"not_run,omitempty"`  // why there are no figures
	Optional bool         `json:"optional,omitempty"` // then that is no failure
	Samples  []float64    `json:"samples,omitempty"`
}

func (r *Report) broken() bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.NotRun != "" && !row.Optional })
}

// publish prints the table and, with a prefix, writes it to two files as well.
func (r *Report) publish(w io.Writer, prefix string) error {
	if _, err := io.WriteString(w, r.markdown()); err != nil || prefix == "" {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(prefix), 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(prefix+".json", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(prefix+".md", []byte(r.markdown()), 0o644)
}

var head = []string{"what", "", "n", "median", "p10–p90", "min", "cpu", "against, round by round", "note"}

// markdown is padded, so that it reads as well in a terminal.
func (r *Report) markdown() string {
	table := [][]string{head}
	group := ""
	for _, row := range r.Rows {
		cells := row.cells()
		if cells[0] == group {
			cells[0] = ""
		} else {
			group = cells[0]
		}
		table = append(table, cells)
	}
	width := make([]int, len(head))
	for _, cells := range table {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c), 3)
		}
	}
	var b strings.Builder
	line := func(cells []string, fill string) {
		for i, c := range cells {
			b.WriteString("| " + c + strings.Repeat(fill, width[i]-utf8.RuneCountInString(c)) + " ")
		}
		b.WriteString("|\n")
	}
	line(table[0], " ")
	line(make([]string, len(head)), "-")
	for _, cells := range table[1:] {
		line(cells, " ")
	}
	b.WriteString("\n")
	m := r.Machine
	facts := []Version{
		{"date", r.Date.Format(time.RFC3339)},
		{"command", "`" + r.Command + "`"},
		{"machine", fmt.Sprintf("%s, %d cores, %s, %s", m.CPU, m.Cores, m.Memory, m.OS)},
		{"kernel", m.Kernel + ", cgroups " + m.Cgroups},
		{"load", m.LoadBefore + " before, " + m.LoadAfter + " after"},
	}
	if r.Quick {
		b.WriteString("Quick run: it shows that everything runs; the figures mean nothing.\n\n")
	}
	for _, f := range append(facts, r.Versions...) {
		fmt.Fprintf(&b, "- %s: %s\n", f.Name, f.Version)
	}
	return b.String()
}

func (r Row) cells() []string {
	if r.NotRun != "" {
		return []string{r.Group, escape(r.Name), "0", "–", "–", "–", "–", "", escape("not run: " + r.NotRun)}
	}
	figure := func(v float64) string { return fmt.Sprintf("%.*f", decimals(v), v) }
	cpu := "–"
	if r.CPU > 0 {
		cpu = figure(r.CPU) + " ms"
	}
	var against []string
	for _, c := range r.Against {
		against = append(against, c.text(r.Unit))
	}
	return []string{
		r.Group, escape(r.Name), fmt.Sprint(r.N), figure(r.Median) + " " + r.Unit,
		figure(r.P10) + "–" + figure(r.P90), figure(r.Min), cpu, strings.Join(against, ", "), escape(r.Note),
	}
}

// escape keeps foreign text, such as a peer's error, inside its cell.
func escape(s string) string {
	return strings.NewReplacer("|", "¦", "\n", " ", "\r", " ").Replace(s)
}
