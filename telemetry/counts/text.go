// SPDX-License-Identifier: Apache-2.0

package counts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentrun/internal/mapped"
)

const (
	namespace  = "agentrun_"
	lostSeries = "series_lost_total"
)

type family struct {
	name, kind, help string
	unit             float64 // what a value is divided by
}

// families are all that there are, in the order in which they are told.
var families = []family{
	{"runs_started_total", "counter", "Runs whose start is on record, by ring.", 1},
	{"runs_total", "counter", "Runs that ended, by ring, state and cause.", 1},
	{"run_seconds", "histogram", "Wall-clock time of runs.", 1e9},
	{"start_seconds", "histogram", "Time from the first step of a launch to the exec.", 1e9},
	{"runs_refused_total", "counter", "Runs that were never begun, by why.", 1},
	{"crashes_collected_total", "counter", "Sandboxes that were cleaned up after their supervisor had died.", 1},
	{"kills_total", "counter", "Kills, by reason.", 1},
	{"breaches_total", "counter", "Breaches, by severity.", 1},
	{"calls_total", "counter", "Calls and connections that were let in, by kind and how they ended.", 1},
	{"denials_total", "counter", "What was refused, by kind and code.", 1},
	{"tokens_total", "counter", "Tokens of models, by direction.", 1},
	{"cost_total", "counter", "Cost booked, in the unit that plans are priced in.", 1e6},
	{"queue_seconds", "histogram", "Time that runs of the daemon waited for room.", 1e9},
	{"pool_taken_total", "counter", "Runs of the daemon, by whether a sandbox was ready.", 1},
	{lostSeries, "counter", "Counted here because the file of counters has no room for more series.", 1},
}

// Gauge is a number as it is now.
type Gauge struct {
	Name, Help string // without the namespace
	Value      float64
}

// Write writes the counters of a node, and the gauges, in the text format that Prometheus reads. A node that
// has counted nothing has the gauges only.
func Write(w io.Writer, stateDir string, gauges ...Gauge) error {
	told, err := read(filepath.Join(stateDir, fileName))
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range families {
		lines := told[f.name]
		if len(lines) == 0 {
			continue
		}
		head(&b, f.name, f.help, f.kind)
		for _, s := range lines {
			fmt.Fprintf(&b, "%s%s %s\n", namespace, s.name, f.text(s))
		}
	}
	for _, g := range gauges {
		head(&b, g.Name, g.Help, "gauge")
		fmt.Fprintf(&b, "%s%s %s\n", namespace, g.Name, strconv.FormatFloat(g.Value, 'g', -1, 64))
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func head(b *strings.Builder, name, help, kind string) {
	fmt.Fprintf(b, "# HELP %s%s %s\n# TYPE %s%s %s\n", namespace, name, help, namespace, name, kind)
}

type series struct {
	name  string
	value uint64
}

// text divides what is a sum; a histogram's buckets are counts.
func (f family) text(s series) string {
	if f.unit == 1 || f.kind == "histogram" && s.name != f.name+"_sum" {
		return strconv.FormatUint(s.value, 10)
	}
	return strconv.FormatFloat(float64(s.value)/f.unit, 'g', -1, 64)
}

// familyOf is the family of a series.
func familyOf(name string) string {
	name, _, _ = strings.Cut(name, "{")
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if f, ok := strings.CutSuffix(name, part); ok {
			return f
		}
	}
	return name
}

// read takes the series of a file, by their families.
func read(path string) (map[string][]series, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	defer file.Close()
	pages, err := mapping(file, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Munmap(pages) }()
	told := map[string][]series{}
	return told, mapped.Guard("the counters", func() {
		each(pages, func(name string, value *atomic.Uint64) {
			f := familyOf(name)
			if i := slices.IndexFunc(told[f], func(s series) bool { return s.name == name }); i >= 0 {
				told[f][i].value += value.Load() // made by two processes at once
				return
			}
			told[f] = append(told[f], series{name, value.Load()})
		})
	})
}
