// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func appendN(t testing.TB, a Appender, n int) []Entry {
	t.Helper()
	var all []Entry
	for i := range n {
		e, err := a.Append(&Refusal{Count: int64(i), RunID: "r", Syscall: "mount", Verdict: "EPERM"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func someRecord() Record { return &KillOrder{AgentID: "a", Reason: "manual", Trigger: "operator"} }

func openLog(t testing.TB, dir string, opt Options) *Log {
	t.Helper()
	l, err := Open(dir, NodeChain, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func readFile(t testing.TB, dir string, n int) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, NodeChain, fileName(n)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readAll reads the chain with Reader.
func readAll(t testing.TB, dir string) []Entry {
	t.Helper()
	r, err := OpenReader(dir, NodeChain)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []Entry
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l.Entry)
	}
}

// The log on disk and the chain in memory write the same bytes.
func TestLogWritesTheChain(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, Options{Now: fixed(at)})
	m := memoryOf(t)
	for _, r := range allExamples() {
		if k := r.Kind(); k == "repair" || k == "rotation" {
			if _, err := l.Append(r); err == nil {
				t.Errorf("anybody may write a %s", k)
			}
			continue
		}
		a, err := l.Append(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.Append(r)
		if err != nil || a != b {
			t.Fatalf("log %+v, memory %+v, %v", a, b, err)
		}
	}
	if got := readFile(t, dir, 1); !bytes.Equal(got, m.Lines()) {
		t.Errorf("file:\n%s\nmemory:\n%s", got, m.Lines())
	}
	if fi, err := os.Stat(filepath.Join(dir, NodeChain, fileName(1))); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if fi, err := os.Stat(filepath.Join(dir, NodeChain)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		l := openLog(t, dir, Options{})
		appendN(t, l, 3)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := l.Append(someRecord()); !errors.Is(err, ErrClosed) {
			t.Errorf("append after close: %v", err)
		}
		if err := l.Sync(); !errors.Is(err, ErrClosed) {
			t.Errorf("sync after close: %v", err)
		}
	}
	if r := verify(t, dir, VerifyOptions{}); !r.Valid || r.Entries != 15 {
		t.Errorf("%+v", r)
	}
}

func TestBadChainNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/a", "a.b", "a\n", "_a", "-a", "é", "a b", strings.Repeat("a", maxChain+1)} {
		if l, err := Open(t.TempDir(), name, Options{}); err == nil {
			l.Close()
			t.Errorf("%q is a chain", name)
		}
		if _, err := NewMemory(name, nil); err == nil {
			t.Errorf("%q is a chain in memory", name)
		}
		if _, err := Verify(t.TempDir(), name, VerifyOptions{}); err == nil {
			t.Errorf("%q is verified", name)
		}
	}
	// The longest session id that H-29 allows is longer than a file's name may be.
	long := SessionChain(strings.Repeat("s", 256))
	other := SessionChain(strings.Repeat("s", 255) + "t")
	dir := t.TempDir()
	for _, name := range []string{long, other} {
		l, err := Open(dir, name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(dir, name, VerifyOptions{}); err != nil || !r.Valid || r.Entries != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Many goroutines on two Logs of one chain: every entry once, in one chain, each goroutine's in its order.
func TestH25ConcurrentAppends(t *testing.T) {
	dir := t.TempDir()
	const writers, each = 32, 50
	logs := []*Log{openLog(t, dir, Options{RotateBytes: 64 << 10}), openLog(t, dir, Options{RotateBytes: 64 << 10})}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			last := int64(-1)
			for i := range each {
				add := logs[w%2].Append
				if i%10 == 0 {
					add = logs[w%2].AppendSync
				}
				e, err := add(&Refusal{Count: int64(i), RunID: fmt.Sprintf("r%d", w), Syscall: "mount", Verdict: "EPERM"})
				if err != nil || e.Seq <= last {
					t.Errorf("entry %d after %d, %v", e.Seq, last, err)
					return
				}
				last = e.Seq
			}
		})
	}
	wg.Wait()
	r := verify(t, dir, VerifyOptions{})
	if !r.Valid || r.Files < 3 {
		t.Fatalf("%+v", r)
	}
	next := map[string]int64{}
	for _, e := range readAll(t, dir) {
		if ref, ok := e.Data.(*Refusal); ok {
			if ref.Count != next[ref.RunID] {
				t.Fatalf("%s: %d, want %d", ref.RunID, ref.Count, next[ref.RunID])
			}
			next[ref.RunID]++
		}
	}
	for w := range writers {
		if n := next[fmt.Sprintf("r%d", w)]; n != each {
			t.Errorf("writer %d has %d entries, want %d", w, n, each)
		}
	}
}

// Two Logs take turns, over several files.
func TestH25TwoWritersTakeTurns(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		os.RemoveAll(filepath.Join(dir, NodeChain))
		var logs [2]*Log
		defer func() {
			for _, l := range logs {
				if l != nil {
					l.Close()
				}
			}
		}()
		n := int64(0)
		for range rapid.IntRange(1, 30).Draw(rt, "n") {
			i := rapid.IntRange(0, 1).Draw(rt, "who")
			if logs[i] == nil {
				l, err := Open(dir, NodeChain, Options{RotateBytes: 900})
				if err != nil {
					rt.Fatal(err)
				}
				logs[i] = l
			} else if rapid.IntRange(0, 4).Draw(rt, "close") == 0 {
				if err := logs[i].Close(); err != nil {
					rt.Fatal(err)
				}
				logs[i] = nil
				continue
			}
			if _, err := logs[i].Append(&KillOrder{AgentID: "a", Reason: "manual", Trigger: "operator"}); err != nil {
				rt.Fatal(err)
			}
			n++
		}
		r, err := Verify(dir, NodeChain, VerifyOptions{})
		if err != nil || !r.Valid || r.Entries != n+int64(r.Files-1) && r.Entries != n+int64(r.Files) {
			rt.Fatalf("%d appended: %+v, %v", n, r, err)
		}
	})
}

// fake counts syncs and fails on demand.
type fake struct {
	syncs            atomic.Int64
	failSync         atomic.Bool
	failWrite, short atomic.Bool
}

func (f *fake) calls() syscalls {
	return syscalls{
		sync: func(fd int) error {
			f.syncs.Add(1)
			if f.failSync.Load() {
				return unix.EIO
			}
			return unix.Fdatasync(fd)
		},
		write: func(fd int, b []byte) (int, error) {
			if f.failWrite.Load() {
				n, _ := unix.Write(fd, b[:len(b)/2])
				if n > 0 {
					f.short.Store(true)
				}
				return 0, unix.ENOSPC
			}
			if f.short.Load() {
				return unix.Write(fd, b[:1+len(b)/3])
			}
			return unix.Write(fd, b)
		},
	}
}

func openFake(t testing.TB, dir string, f *fake, opt Options) *Log {
	t.Helper()
	opt.Now = fixed(at)
	opt.SyncDelay = max(opt.SyncDelay, defaultSyncDelay)
	if opt.RotateBytes == 0 {
		opt.RotateBytes = defaultRotateBytes
	}
	l, err := open(dir, NodeChain, opt, f.calls())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// An append without sync is on disk within 100 ms, one with sync when it returns, and `always` makes every one of those.
func TestH28SyncTimes(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var f fake
		l := openFake(t, dir, &f, Options{})
		appendN(t, l, 10)
		time.Sleep(40 * time.Millisecond)
		appendN(t, l, 10)
		if n := f.syncs.Load(); n != 0 {
			t.Errorf("%d syncs after 40 ms, want 0: they cost", n)
		}
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if n := f.syncs.Load(); n != 1 {
			t.Errorf("%d syncs after 100 ms, want 1", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := f.syncs.Load(); n > 2 {
			t.Errorf("%d syncs in an idle hour", n)
		}
		before := f.syncs.Load()
		if _, err := l.AppendSync(someRecord()); err != nil || f.syncs.Load() != before+1 {
			t.Errorf("AppendSync: %d syncs, %v", f.syncs.Load()-before, err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := f.syncs.Load(); n != before+1 {
			t.Errorf("%d syncs for what was on disk", n-before-1)
		}
		appendN(t, l, 1)
		if err := l.Close(); err != nil || f.syncs.Load() != before+2 {
			t.Errorf("Close: %d syncs, %v", f.syncs.Load()-before-1, err)
		}
		time.Sleep(time.Second) // the timer of the last append finds a closed log
		synctest.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		var f fake
		l := openFake(t, t.TempDir(), &f, Options{})
		appendN(t, l, 1)
		l.Leave()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := f.syncs.Load(); n != 0 {
			t.Errorf("%d syncs of a log that is about to be closed", n)
		}
		if err := l.Close(); err != nil || f.syncs.Load() != 1 {
			t.Errorf("Close: %d syncs, %v", f.syncs.Load(), err)
		}
	})
	var f fake
	l := openFake(t, t.TempDir(), &f, Options{SyncAlways: true})
	defer l.Close()
	appendN(t, l, 3)
	if n := f.syncs.Load(); n != 3 {
		t.Errorf("always: %d syncs for 3 appends", n)
	}
}

// Writers that come while a sync runs share the next one.
func TestH28GroupCommit(t *testing.T) {
	var f fake
	l := openFake(t, t.TempDir(), &f, Options{})
	defer l.Close()
	release := make(chan struct{})
	var once sync.Once
	entered := make(chan struct{})
	real := l.sys.sync
	l.sys.sync = func(fd int) error {
		once.Do(func() { close(entered) })
		<-release
		return real(fd)
	}
	var wg sync.WaitGroup
	add := func() {
		if _, err := l.AppendSync(someRecord()); err != nil {
			t.Error(err)
		}
	}
	wg.Go(add)
	<-entered
	for range 20 {
		wg.Go(add)
	}
	for l.written.Load() < 2 || queued(l) > 0 { // all 21 are in the file
		time.Sleep(time.Millisecond)
	}
	for size := int64(0); size < 21; size = entriesIn(t, l) {
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if n := f.syncs.Load(); n != 2 {
		t.Errorf("%d syncs for 21 writers, of whom 20 came during the first; want 2", n)
	}
}

func queued(l *Log) int {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	return len(l.queue)
}

func entriesIn(t *testing.T, l *Log) int64 {
	b, err := os.ReadFile(filepath.Join(l.dir.path, fileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	return int64(bytes.Count(b, []byte("\n")))
}

// After an error of sync or write, nothing is granted any more until the log is reopened; then the chain is sound.
func TestH28FailClosed(t *testing.T) {
	for name, brk := range map[string]func(*fake){
		"sync":  func(f *fake) { f.failSync.Store(true) },
		"write": func(f *fake) { f.failWrite.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var f fake
			l := openFake(t, dir, &f, Options{})
			if _, err := l.AppendSync(someRecord()); err != nil {
				t.Fatal(err)
			}
			brk(&f)
			if e, err := l.AppendSync(someRecord()); !errors.Is(err, ErrBroken) || e.Data != nil {
				t.Errorf("got %v, %v", e, err)
			}
			f.failSync.Store(false)
			f.failWrite.Store(false)
			for _, add := range []func(Record) (Entry, error){l.Append, l.AppendSync} {
				if e, err := add(someRecord()); !errors.Is(err, ErrBroken) || e.Data != nil {
					t.Errorf("after the error: %v, %v", e, err)
				}
			}
			if err := l.Sync(); !errors.Is(err, ErrBroken) {
				t.Errorf("sync after the error: %v", err)
			}
			if err := l.Close(); !errors.Is(err, ErrBroken) {
				t.Errorf("close says nothing of it: %v", err)
			}
			l = openLog(t, dir, Options{})
			appendN(t, l, 1)
		})
	}
}

// Who goes on meanwhile learns later whether the disk has it, and the same whenever they ask: while the log is open, and when it is closed.
func TestH28SettledLater(t *testing.T) {
	for _, closed := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			var f fake
			l := openFake(t, t.TempDir(), &f, Options{})
			e, settled, err := l.AppendThen(someRecord())
			if err != nil || e.Seq != 0 {
				t.Fatalf("got entry %d, %v", e.Seq, err)
			}
			f.failSync.Store(fails)
			if closed {
				l.Close()
			}
			for range 2 {
				if err := settled(); errors.Is(err, ErrBroken) != fails || !fails && err != nil {
					t.Errorf("closed %v, disk fails %v: got %v", closed, fails, err)
				}
			}
			if _, settled, err := l.AppendThen(someRecord()); (closed || fails) && (err == nil || settled != nil) {
				t.Errorf("closed %v, disk fails %v: appended", closed, fails)
			}
			l.Close()
		}
	}
}

// A background sync that fails has nobody to tell; the next append does.
func TestH28BackgroundSyncFails(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var f fake
		l := openFake(t, dir, &f, Options{})
		appendN(t, l, 1)
		f.failSync.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := l.Append(someRecord()); !errors.Is(err, ErrBroken) || !errors.Is(err, unix.EIO) {
			t.Errorf("got %v", err)
		}
		l.Close()
	})
}

// The kernel may write less than asked for without an error.
func TestShortWrites(t *testing.T) {
	dir := t.TempDir()
	var f fake
	f.short.Store(true)
	l := openFake(t, dir, &f, Options{})
	appendN(t, l, 20)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, VerifyOptions{}); !r.Valid || r.Entries != 20 {
		t.Errorf("%+v", r)
	}
}

// tornChain is a chain that was torn twice, the second time while the first was being repaired.
func tornChain(t testing.TB) []byte {
	dir := t.TempDir()
	name := filepath.Join(dir, NodeChain, fileName(1))
	l := openLog(t, dir, Options{Now: fixed(at)})
	appendN(t, l, 2)
	l.Close()
	for _, torn := range []string{`{"chain":"no`, "x\n\x00y", `{`} {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexByte(torn, '\n'); i >= 0 {
			torn = torn[:i] + tornMark + torn[i:]
		}
		f.WriteString(torn)
		f.Close()
		l := openLog(t, dir, Options{Now: fixed(at)})
		appendN(t, l, 1)
		l.Close()
	}
	return readFile(t, dir, 1)
}

func TestH25TornChain(t *testing.T) {
	b := tornChain(t)
	r := verify(t, write(t, split(b)), VerifyOptions{})
	if !r.Valid || r.Repairs != 3 || r.Entries != 8 {
		t.Fatalf("%+v %v\n%s", r, r.Problem, b)
	}
	if !bytes.Contains(b, []byte(`{"chain":"no`+tornMark+"\n")) {
		t.Errorf("torn bytes are gone:\n%s", b)
	}
	// The torn bytes are part of what is verified, and so is that they are there.
	dir := write(t, nil)
	for i := range b {
		edited := bytes.Clone(b)
		edited[i] ^= 1
		if err := os.WriteFile(filepath.Join(dir, NodeChain, fileName(1)), edited, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir, VerifyOptions{}); r.Valid {
			t.Fatalf("byte %d of the torn chain changed: not found", i)
		}
	}
	for name, old := range map[string]string{"fragment deleted": `{"chain":"no` + tornMark + "\n", "repeated": "x" + tornMark + "\n"} {
		edited := bytes.Replace(b, []byte(old), nil, 1)
		if p := verify(t, write(t, split(edited)), VerifyOptions{}).Problem; p == nil || p.Code != Edited {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// A chain cut at any byte is picked up: what was whole stays, what wasn't is accounted for, and writing goes on. And cut
// again at any byte of that.
func TestH25RepairAtEveryByte(t *testing.T) {
	whole := bytes.Join(chainOf(t, 3), nil)
	dir := write(t, lines{})
	name := filepath.Join(dir, NodeChain, fileName(1))
	pickUp := func(b []byte) []byte {
		t.Helper()
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		opt := Options{Now: fixed(at), SyncDelay: time.Hour, RotateBytes: defaultRotateBytes}
		l, err := open(dir, NodeChain, opt, syscalls{write: unix.Write, sync: func(int) error { return nil }})
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		appendN(t, l, 1)
		l.Close()
		if r := verify(t, dir, VerifyOptions{}); !r.Valid {
			t.Fatalf("%q: %v", b, r.Problem)
		}
		got := readFile(t, dir, 1)
		if !bytes.HasPrefix(got, b) {
			t.Fatalf("%q: bytes were taken away: %q", b, got)
		}
		return got
	}
	for n := range whole {
		got := pickUp(whole[:n])
		if n%97 == 50 { // the repair itself cut, at each of its bytes
			for m := n; m < len(got); m++ {
				pickUp(got[:m])
			}
		}
	}
}

// Damage that no dying writer leaves stops the log; nothing is written over it.
func TestDamageStopsTheLog(t *testing.T) {
	c := chainOf(t, 3)
	m, _ := NewMemory(SessionChain("s"), fixed(at))
	foreign := extend(t, m, 2)
	rotation := memoryOf(t, &Rotation{Next: fileName(2)}).Lines()
	wrong := memoryOf(t, &Rotation{Next: fileName(3)}).Lines()
	for name, files := range map[string][]lines{
		"last line edited":       {{c[0], bytes.Replace(c[1], []byte("mount"), []byte("xount"), 1)}},
		"last line is no entry":  {{c[0], []byte("hello\n")}},
		"empty last line":        {{c[0], []byte("\n")}},
		"zeros":                  {{c[0], append(make([]byte, 100), '\n')}},
		"another chain":          {foreign},
		"next file gone":         {{rotation}},
		"next file named wrong":  {{wrong}, nil},
		"file without way to it": {c, c[2:]},
		"no entry at all":        {{[]byte(strings.Repeat("x", maxTorn+2*MaxLine))}},
	} {
		dir := write(t, files...)
		before := readFile(t, dir, 1)
		l, err := Open(dir, NodeChain, Options{})
		var d *DamagedError
		if !errors.As(err, &d) || d.File == "" || d.Reason == "" {
			t.Errorf("%s: got %v", name, err)
		}
		if err == nil {
			l.Close()
		}
		if !bytes.Equal(before, readFile(t, dir, 1)) {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

// While it is open: others truncate, remove, edit.
func TestDamageWhileOpen(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"truncated": func(f string) error { return os.Truncate(f, 100) },
		"removed":   os.Remove,
		"appended": func(f string) error {
			return os.WriteFile(f, append(must(os.ReadFile(f)), "garbage\n"...), 0o600)
		},
	} {
		dir := t.TempDir()
		l := openLog(t, dir, Options{})
		appendN(t, l, 2)
		if err := damage(filepath.Join(dir, NodeChain, fileName(1))); err != nil {
			t.Fatal(err)
		}
		_, err := l.Append(someRecord())
		var d *DamagedError
		if !errors.As(err, &d) || !errors.Is(err, ErrBroken) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestFoldersOfOthers(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, Options{})
	l.Close()
	chain := filepath.Join(dir, NodeChain)
	if err := os.Chmod(chain, 0o770); err != nil {
		t.Fatal(err)
	}
	var mode *ModeError
	if _, err := Open(dir, NodeChain, Options{}); !errors.As(err, &mode) || mode.Path != chain {
		t.Errorf("folder that others may write to: %v", err)
	}
	os.Chmod(chain, 0o700)
	file := filepath.Join(chain, fileName(1))
	for name, replace := range map[string]func() error{
		"link": func() error { return os.Symlink("/dev/null", file) },
		"fifo": func() error { return unix.Mkfifo(file, 0o600) },
		"dir":  func() error { return os.Mkdir(file, 0o700) },
	} {
		os.RemoveAll(file)
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(dir, NodeChain, Options{}); err == nil {
			l.Close()
			t.Errorf("%s in place of the file: accepted", name)
		}
	}
	os.RemoveAll(chain)
	os.Symlink(t.TempDir(), chain)
	if _, err := Open(dir, NodeChain, Options{}); err == nil {
		t.Error("link in place of the folder: accepted")
	}
}

// A rotation cut off after each of its steps.
func TestRotationCutOff(t *testing.T) {
	one := chainOf(t, 2)
	m := memoryOf(t)
	extend(t, m, 2)
	if _, err := m.Append(&Rotation{Next: fileName(2)}); err != nil {
		t.Fatal(err)
	}
	rotated := split(m.Lines())
	for name, files := range map[string][]lines{
		"new file made":          {one, nil},
		"rotation torn":          {{rotated[0], rotated[1], rotated[2][:20]}, nil},
		"rotation written":       {rotated, nil},
		"first entry there torn": {rotated, {[]byte(`{"chain"`)}},
	} {
		dir := write(t, files...)
		l := openLog(t, dir, Options{RotateBytes: 600})
		appendN(t, l, 4)
		if err := l.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r := verify(t, dir, VerifyOptions{})
		if !r.Valid || r.Files < 3 {
			t.Errorf("%s: %+v %v", name, r, r.Problem)
		}
	}
}

func FuzzTail(f *testing.F) {
	c := chainOf(f, 3)
	f.Add(bytes.Join(c, nil), true)
	f.Add(bytes.Join(c, nil)[5:], false)
	f.Add(tornChain(f), true)
	f.Add([]byte("x"+tornMark+"\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		e, good, err := parseTail(b, whole)
		if good < 0 || good > len(b) || err != nil && e.Kind != "" {
			t.Fatalf("%v, %d of %d, %v", e, good, len(b), err)
		}
		if err != nil {
			return
		}
		if e.Kind == "" {
			if !whole || good != 0 {
				t.Fatalf("no entry, good %d", good)
			}
		} else if line, err := e.Line(); err != nil || !bytes.HasSuffix(b[:good], append(line, '\n')) {
			t.Fatalf("entry %s is not what ends at %d, %v", line, good, err)
		}
		// All that is behind it is torn: lines with the mark, and at most one without end.
		for line := range bytes.Lines(b[good:]) {
			if bytes.HasSuffix(line, []byte("\n")) && !bytes.HasSuffix(line, []byte(tornMark+"\n")) {
				t.Fatalf("%q is neither entry nor torn", line)
			}
		}
	})
}
