// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A limit of the host's that a run must not come near: how much is used, and how much there is.
type limit struct {
	name string
	now  func() (used, most float64, err error)
}

// hostLimits are those that the findings of attacks name, and their neighbours.
var hostLimits = []limit{
	{"tcp_mem pages", func() (float64, float64, error) {
		used, err := field("/proc/net/sockstat", "TCP:", "mem")
		return with(used, err, func() (float64, error) { return number("/proc/sys/net/ipv4/tcp_mem", 1) }) // where pressure begins
	}},
	{"udp_mem pages", func() (float64, float64, error) {
		used, err := field("/proc/net/sockstat", "UDP:", "mem")
		return with(used, err, func() (float64, error) { return number("/proc/sys/net/ipv4/udp_mem", 1) })
	}},
	{"open files", func() (float64, float64, error) {
		used, err := number("/proc/sys/fs/file-nr", 0)
		return with(used, err, func() (float64, error) { return number("/proc/sys/fs/file-max", 0) })
	}},
	{"processes", func() (float64, float64, error) {
		b, err := os.ReadFile("/proc/loadavg")
		_, rest, _ := strings.Cut(string(b), "/")
		tasks, _, _ := strings.Cut(rest, " ")
		used, perr := strconv.ParseFloat(tasks, 64)
		if err == nil {
			err = perr
		}
		return with(used, err, func() (float64, error) { return number("/proc/sys/kernel/pid_max", 0) })
	}},
	{"root's pending signals", func() (float64, float64, error) {
		b, err := os.ReadFile("/proc/self/status")
		_, rest, _ := strings.Cut(string(b), "SigQ:\t")
		var used, most float64
		if err == nil {
			_, err = fmt.Sscanf(rest, "%f/%f", &used, &most)
		}
		return used, most, err
	}},
	{"root's inotify instances", func() (float64, float64, error) { // 1 of 1: root could not make one more
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return 1, 1, nil
		}
		return 0, 1, unix.Close(fd)
	}},
	{"unreclaimable slab of a tenth of the memory", func() (float64, float64, error) {
		used, err := field("/proc/meminfo", "SUnreclaim:", "")
		all, err2 := field("/proc/meminfo", "MemTotal:", "")
		if err == nil {
			err = err2
		}
		return used, all / 10, err
	}},
	{"memory", func() (float64, float64, error) {
		free, err := field("/proc/meminfo", "MemAvailable:", "")
		all, err2 := field("/proc/meminfo", "MemTotal:", "")
		if err == nil {
			err = err2
		}
		return all - free, all, err
	}},
}

// limits is the nearest that each came to its maximum, by name; an error stands for one that can't be read.
type limits struct {
	nearest map[string]float64
	errs    map[string]error
}

// watch looks once a second.
func watch(ctx context.Context) limits {
	l := limits{map[string]float64{}, map[string]error{}}
	for tick := time.NewTicker(time.Second); ; {
		for _, h := range hostLimits {
			used, most, err := h.now()
			if err != nil || most <= 0 {
				l.errs[h.name] = err
				continue
			}
			l.nearest[h.name] = max(l.nearest[h.name], used/most)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return l
		case <-tick.C:
		}
	}
}

func (l limits) report() (bad []string) {
	fmt.Printf("limits of the host, the nearest of each second:")
	for _, h := range hostLimits {
		if err, ok := l.errs[h.name]; ok {
			bad = append(bad, fmt.Sprintf("%s can't be read: %v", h.name, err))
			continue
		}
		fmt.Printf(" %s %.0f %%;", h.name, 100*l.nearest[h.name])
		if l.nearest[h.name] > 0.8 {
			bad = append(bad, fmt.Sprintf("%s came to %.0f %% of the host's", h.name, 100*l.nearest[h.name]))
		}
	}
	fmt.Println()
	return bad
}

func with(used float64, err error, most func() (float64, error)) (float64, float64, error) {
	if err != nil {
		return 0, 0, err
	}
	m, err := most()
	return used, m, err
}

// number is word n of a file of numbers.
func number(file string, n int) (float64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	words := strings.Fields(string(b))
	if n >= len(words) {
		return 0, fmt.Errorf("%s has %d words", file, len(words))
	}
	return strconv.ParseFloat(words[n], 64)
}

// field is the number after a word of the line that begins with head; without a word, the number after the head.
func field(file, head, word string) (float64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != head {
			continue
		}
		for i := range words[:len(words)-1] {
			if words[i] == word || word == "" {
				return strconv.ParseFloat(words[i+1], 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s %s", file, head, word)
}
