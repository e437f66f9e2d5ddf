// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

type sample []time.Duration

func (s *sample) time(f func()) {
	t := time.Now()
	f()
	*s = append(*s, time.Since(t))
}

func (s sample) report(b *testing.B, name string) {
	if len(s) == 0 { // v2 has no further hierarchy
		return
	}
	slices.Sort(s)
	b.ReportMetric(float64(s[len(s)/2].Nanoseconds())/1e3, name+"-p50-µs")
	b.ReportMetric(float64(s[len(s)*9/10].Nanoseconds())/1e3, name+"-p90-µs")
}

// BenchmarkCreateRemove with the parent made and removed each time (a run alone), and standing (other runs live).
func BenchmarkCreateRemove(b *testing.B) {
	b.Run("alone", benchCreateRemove)
	b.Run("beside", func(b *testing.B) {
		g, err := Create(newName(), limits)
		if err != nil {
			b.Fatal(err)
		}
		defer clean(b, g)
		benchCreateRemove(b)
	})
}

func benchCreateRemove(b *testing.B) {
	var create, remove, parentGone sample
	for b.Loop() {
		var g *Group
		var err error
		create.time(func() { g, err = Create(newName(), limits) })
		if err != nil {
			b.Fatal(err)
		}
		remove.time(func() { err = g.Remove(context.Background()) })
		if err != nil {
			b.Fatal(err)
		}
		parentGone.time(func() { RemoveParentIfEmpty(parent) })
	}
	create.report(b, "create")
	remove.report(b, "remove")
	parentGone.report(b, "parent")
}

// addEach moves a process hierarchy by hierarchy and times the first move and the rest apart.
func addEach(b *testing.B, g *Group, pid int, first, rest *sample) {
	n := 0
	for _, h := range g.hiers {
		if !h.used {
			continue
		}
		s := rest
		if n == 0 {
			s = first
		}
		n++
		s.time(func() {
			if err := writeFile(filepath.Join(h.dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkAdd measures the moves alone, after a quiet gap between rounds.
func BenchmarkAdd(b *testing.B) {
	var first, rest, whole sample
	for b.Loop() {
		g, err := Create(newName(), limits)
		if err != nil {
			b.Fatal(err)
		}
		p := idle(b, "sleep")
		time.Sleep(60 * time.Millisecond)
		whole.time(func() { addEach(b, g, p.pid(), &first, &rest) })
		clean(b, g)
		p.cmd.Wait()
	}
	first.report(b, "first")
	rest.report(b, "rest")
	whole.report(b, "whole")
}

func BenchmarkKillOne(b *testing.B) {
	var kill, rm sample
	for b.Loop() {
		g, err := Create(newName(), limits)
		if err != nil {
			b.Fatal(err)
		}
		p := start(b, g, "sleep").expect("ready")
		kill.time(func() { _, err = g.Kill(context.Background()) })
		if err != nil {
			b.Fatal(err)
		}
		p.cmd.Wait()
		rm.time(func() { err = g.Remove(context.Background()) })
		if err != nil {
			b.Fatal(err)
		}
		RemoveParentIfEmpty(parent)
	}
	kill.report(b, "kill")
	rm.report(b, "remove")
}

func BenchmarkFreezeThaw(b *testing.B) {
	g, err := Create(newName(), limits)
	if err != nil {
		b.Fatal(err)
	}
	defer clean(b, g)
	start(b, g, "spin").expect("ready")
	var freeze, thaw sample
	for b.Loop() {
		freeze.time(func() { err = g.Freeze(context.Background()) })
		if err != nil {
			b.Fatal(err)
		}
		thaw.time(func() { err = g.Thaw(context.Background()) })
		if err != nil {
			b.Fatal(err)
		}
	}
	freeze.report(b, "freeze")
	thaw.report(b, "thaw")
}

func BenchmarkStats(b *testing.B) {
	g, err := Create(newName(), limits)
	if err != nil {
		b.Fatal(err)
	}
	defer clean(b, g)
	start(b, g, "sleep").expect("ready")
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			if _, err := g.Stats(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			if err := g.Verify(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("oom", func(b *testing.B) {
		for b.Loop() {
			if _, err := g.OOMKills(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCreateSteps(b *testing.B) {
	h, _ := host()
	var ng, mk, ap, ve sample
	for b.Loop() {
		name := newName()
		var g *Group
		ng.time(func() { g = newGroup(h, "", name) })
		mk.time(func() {
			for _, hi := range g.hiers {
				if hi.used {
					mkdirGroup(hi, name)
				}
			}
		})
		ap.time(func() { g.applyLocked(limits, Limits{}) })
		ve.time(func() { g.verifyLocked(limits, Limits{}) })
		g.Remove(context.Background())
		RemoveParentIfEmpty(parent)
	}
	ng.report(b, "newgroup")
	mk.report(b, "mkdir")
	ap.report(b, "apply")
	ve.report(b, "verify")
}
