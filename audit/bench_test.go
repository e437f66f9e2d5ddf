// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func check() *RingCheck {
	return &RingCheck{Action: "mail.send", AgentID: "did:example:agent-0001", AgentRing: Sandbox, EffScore: NumberOf(0.4375), Reason: "ring_insufficient", RequiredRing: Privileged, Rule: "ring_below_required", RunID: "pmpgnuygkfphzrlh"}
}

// Encode, link and hash one entry, as Memory does; the chain it grows is thrown away.
func BenchmarkEntry(b *testing.B) {
	var head Head
	var buf, data []byte
	r := check()
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if data, err = appendData(data[:0], r); err != nil {
			b.Fatal(err)
		}
		if buf, _, err = head.add(buf[:0], NodeChain, at, r.Kind(), data); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkMemoryAppend(b *testing.B) {
	m, err := NewMemory(NodeChain, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Append(check()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	line, err := entryOf(b, check()).Line()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(line)) + 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decode(line); err != nil {
			b.Fatal(err)
		}
	}
}

// Write without sync; the background sync every 50 ms runs as it does in use.
func BenchmarkAppendNoSync(b *testing.B) {
	l := openLog(b, b.TempDir(), Options{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Append(check()); err != nil {
			b.Fatal(err)
		}
	}
}

// The disk by itself: one write of an entry's size and a sync, again and again. What AppendSync is to be held against.
func BenchmarkDiskSync(b *testing.B) {
	fd, err := unix.Open(filepath.Join(b.TempDir(), "f"), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	line := make([]byte, 400)
	for b.Loop() {
		if _, err := unix.Write(fd, line); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(fd); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendSync(b *testing.B) {
	for _, writers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			l := openLog(b, b.TempDir(), Options{})
			var syncs atomic.Int64
			real := l.sys.sync
			l.sys.sync = func(fd int) error { syncs.Add(1); return real(fd) }
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := l.AppendSync(check()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/float64(syncs.Load()), "entries/sync")
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	m, err := NewMemory(NodeChain, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	for range 50_000 {
		if _, err := m.Append(check()); err != nil {
			b.Fatal(err)
		}
	}
	os.Mkdir(filepath.Join(dir, NodeChain), 0o700)
	if err := os.WriteFile(filepath.Join(dir, NodeChain, fileName(1)), m.Lines(), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(m.Lines())))
	b.ReportAllocs()
	for b.Loop() {
		if r := verify(b, dir, VerifyOptions{}); !r.Valid {
			b.Fatal(r.Problem)
		}
	}
}
