// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
)

const insideWatch = "/opt/ringwatch"

// ringChanges times elevations and demotions: until the API answers, and until the agent can, or last could, fork and write.
func (b *bench) ringChanges() ([]Row, error) {
	work := filepath.Join(b.dir, "workspace")
	if err := os.Mkdir(work, 0o777); err != nil {
		return nil, err
	}
	if err := os.Chmod(work, 0o777); err != nil { // the umask
		return nil, err
	}
	var rows []Row
	for _, l := range []struct{ name, mode, n string }{
		{"idle", "idle", "0"}, {"2 threads computing", "burn", "2"}, {"20 children", "children", "20"}, {"fork storm", "storm", "4"},
	} {
		took, err := b.changesUnder(work, l.mode, l.n)
		for _, what := range changeFigures {
			if len(took[what.name]) == 0 {
				continue
			}
			row := took.row(what.name, "ms", nil)
			row.Name = what.name + ", " + l.name
			row.Note = fmt.Sprintf("p99 %.2f ms; %s", quantile(row.Samples, 0.99), what.note)
			if ended := len(took[changesEnded]); ended > 0 {
				row.Note += fmt.Sprintf("; %d runs more were ended instead", ended)
			}
			rows = append(rows, row)
		}
		if err != nil {
			return rows, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return rows, nil
}

// changesEnded counts the runs that came to no figures.
const changesEnded = "ended"

var changeFigures = []struct{ name, note string }{
	{"elevation, answered", "the ring holds for all of the run"},
	{"elevation, seen inside", "the first fork and the first open for writing that work"},
	{"demotion, answered", "the ring holds for all of the run"},
	{"demotion, last seen inside", "the last fork or open for writing that worked"},
}

func (b *bench) changesUnder(work, mode, n string) (samples, error) {
	took := samples{}
	phase := rand.New(rand.NewPCG(2, 3))
	// Somewhere in a period of the quota.
	rest := func() { time.Sleep(time.Duration(phase.IntN(100)) * time.Millisecond) }
	for range b.size.changes {
		if b.ctx.Err() != nil {
			return took, b.ctx.Err()
		}
		figures, err := b.change(work, mode, n, rest)
		for range 4 {
			if !errors.Is(err, io.EOF) || b.ctx.Err() != nil {
				break
			}
			took.add(changesEnded, 1) // agentrun ends a run that a busy machine doesn't get into its ring in time
			figures, err = b.change(work, mode, n, rest)
		}
		if err != nil {
			return took, err
		}
		for i, f := range figures {
			took.add(changeFigures[i].name, f)
		}
	}
	return took, nil
}

// change elevates and demotes one run. Each pair has a run of its own, because what its watcher is refused adds up to a breach.
func (b *bench) change(work, mode, n string, rest func()) (_ []float64, err error) {
	// Ring 3's own limits: a run that uses its quota up is the case of interest.
	h, r, err := b.holdLive([]string{
		b.agentrun, "exec", "--no-daemon", "--ring", "3", "--workspace", work,
		"--ro-bind", b.path("ringwatch") + ":" + insideWatch, "--", insideWatch, "/workspace/probe", mode, n,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = h.cmd.Process.Signal(unix.SIGTERM) // it waits for ever, and its exit code tells of the signal
		_ = h.release()
	}()
	var figures []float64
	for _, turn := range []struct {
		do   func() error
		seen string
	}{
		{func() error { _, err := r.Elevate(b.ctx, r.id, onLoan, ""); return err }, "ready"},
		{func() error { return r.Revoke(b.ctx, r.id, "", "") }, "closed"},
	} {
		rest()
		began := time.Now()
		if err := turn.do(); err != nil {
			if refused := (*control.Error)(nil); errors.As(err, &refused) && refused.Code == control.CodeEnded {
				err = errors.Join(err, io.EOF)
			}
			return nil, err
		}
		answered := time.Since(began).Seconds() * 1e3
		seen, err := h.until(turn.seen, began)
		if err != nil {
			return nil, err
		}
		figures = append(figures, answered, seen)
	}
	return figures, nil
}

// until reads what the watcher says up to a word, and gives the latest time it named, in milliseconds since began. It is 0
// where nothing worked since.
func (h *holder) until(word string, began time.Time) (float64, error) {
	latest := began.UnixNano()
	for {
		line, err := h.line()
		if err != nil {
			return 0, fmt.Errorf("the watcher says no more, before %q: %w", word, err)
		}
		what, at, dated := strings.Cut(strings.TrimSpace(line), " ")
		if what == word {
			return float64(latest-began.UnixNano()) / 1e6, nil
		}
		var t int64
		if _, err := fmt.Sscan(at, &t); !dated || err != nil {
			return 0, errors.Join(fmt.Errorf("the watcher says %q", line), err)
		}
		latest = max(latest, t)
	}
}
