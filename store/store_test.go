// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/store"
	"agentrun/store/storetest"
)

// TestMain lets the test binary be another process of agentrun: AGENTRUN_TEST_CHILD says which.
func TestMain(m *testing.M) {
	if dir := os.Getenv("AGENTRUN_TEST_DIR"); dir != "" {
		if err := child(os.Getenv("AGENTRUN_TEST_CHILD"), dir); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what, dir string) error {
	db, err := store.Open(dir, store.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch what {
	case "count": // says the number before and after each transaction
		for {
			var n int
			if err := db.Update(ctx, func(tx *store.Tx) error {
				if _, err := store.GetJSON(tx.Bucket("b"), "n", &n); err != nil {
					return err
				}
				n++
				return store.PutJSON(tx.Bucket("b"), "n", n)
			}); err != nil {
				return err
			}
			fmt.Println(n)
		}
	case "add":
		for range 25 {
			if err := db.Update(ctx, func(tx *store.Tx) error {
				var n int
				if _, err := store.GetJSON(tx.Bucket("b"), "n", &n); err != nil {
					return err
				}
				return store.PutJSON(tx.Bucket("b"), "n", n+1)
			}); err != nil {
				return err
			}
		}
	case "hold": // a transaction that lasts
		return db.Update(ctx, func(*store.Tx) error { fmt.Println("in"); _, _ = io.Copy(io.Discard, os.Stdin); return nil })
	case "lock": // and hands it to a child of its own, which outlives it
		l, err := db.TryLock("saga")
		if err != nil {
			return err
		}
		c := exec.Command("cat")
		c.Stdin = os.Stdin
		if os.Getenv("AGENTRUN_TEST_INHERIT") != "" {
			c.ExtraFiles = []*os.File{l.File()}
		}
		if err := c.Start(); err != nil {
			return err
		}
		fmt.Println("in")
		return c.Wait()
	}
	return nil
}

func start(t *testing.T, dir, what string, env ...string) (cmd *exec.Cmd, out *bufio.Reader, stdin io.WriteCloser) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "AGENTRUN_TEST_DIR="+dir, "AGENTRUN_TEST_CHILD="+what, "GORACE=atexit_sleep_ms=0")...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(pipe), stdin
}

func stateDir(t testing.TB) string { return filepath.Join(t.TempDir(), "state") }

func open(t testing.TB, dir string) *store.DB {
	t.Helper()
	db, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func count(t testing.TB, db store.Store) (n int) {
	t.Helper()
	if err := db.View(context.Background(), func(tx *store.Tx) error {
		_, err := store.GetJSON(tx.Bucket("b"), "n", &n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConformance(t *testing.T) {
	t.Run("DB", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) store.Store { return open(t, stateDir(t)) })
	})
	t.Run("Memory", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) store.Store { return store.NewMemory() })
	})
	t.Run("Faulty", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) store.Store { return &storetest.Faulty{Store: store.NewMemory()} })
	})
}

// What is still read while a process ends is read whole or not at all.
func TestCloseWaitsForTheTransaction(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), "state"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	inside, looks := make(chan struct{}), make(chan error)
	go func() {
		for first := true; ; first = false {
			err := db.View(t.Context(), func(tx *store.Tx) error {
				if first {
					close(inside)
				}
				_, err := store.GetJSON(tx.Bucket("b"), "n", new(int))
				return err
			})
			if err != nil {
				looks <- err
				return
			}
		}
	}()
	<-inside
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if err := <-looks; !strings.Contains(err.Error(), "bad file descriptor") {
		t.Errorf("a look after the end: %v", err)
	}
}

func TestManyProcesses(t *testing.T) {
	dir := stateDir(t)
	var cmds []*exec.Cmd
	for range 6 {
		cmd, _, _ := start(t, dir, "add") // all of them begin without a folder
		cmds = append(cmds, cmd)
	}
	for _, c := range cmds {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	if n := count(t, open(t, dir)); n != 6*25 {
		t.Errorf("got %d, want %d", n, 6*25)
	}
}

// SIGKILL at any moment: what was acknowledged is there, at most the one in flight besides.
func TestSIGKILL(t *testing.T) {
	dir := stateDir(t)
	acknowledged := 0
	for i := range 30 {
		cmd, out, _ := start(t, dir, "count")
		for range i%4 + 1 {
			line, err := out.ReadString('\n')
			if err != nil {
				t.Fatal(line, err)
			}
			if _, err := fmt.Sscan(line, &acknowledged); err != nil {
				t.Fatal(line, err)
			}
		}
		time.Sleep(time.Duration(i) * 100 * time.Microsecond) // spreads the moments; nothing depends on it
		_ = cmd.Process.Kill()
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				break
			}
			if _, err := fmt.Sscan(line, &acknowledged); err != nil {
				t.Fatal(line, err)
			}
		}
		_ = cmd.Wait()
		n := count(t, open(t, dir))
		if n != acknowledged && n != acknowledged+1 {
			t.Fatalf("kill %d: %d in the file, %d acknowledged", i, n, acknowledged)
		}
		acknowledged = n
	}
}

// opened is how many descriptors of this process are of a file.
func opened(t *testing.T, path string) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if at, err := os.Readlink(fd); err == nil && at == path {
			n++
		}
	}
	return n
}

func TestWaitsForAnotherProcess(t *testing.T) {
	dir := stateDir(t)
	_, out, stdin := start(t, dir, "hold")
	if line, err := out.ReadString('\n'); line != "in\n" {
		t.Fatal(line, err)
	}
	short, err := store.Open(dir, store.Options{LockTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	nothing := func(*store.Tx) error { return nil }
	for range 5 {
		if err := short.Update(t.Context(), nothing); !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want ErrBusy naming the file", err)
		}
	}
	if n := opened(t, filepath.Join(dir, "state.lock")); n != 1 {
		t.Errorf("%d threads wait for the lock, want 1", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	db := open(t, dir)
	if err := db.View(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	done := make(chan error)
	go func() { done <- db.Update(context.Background(), nothing) }()
	stdin.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A lock dies with its process, but not before the child that was given it.
func TestLockDiesWithItsHolders(t *testing.T) {
	for _, inherit := range []string{"", "1"} {
		dir := stateDir(t)
		cmd, out, stdin := start(t, dir, "lock", "AGENTRUN_TEST_INHERIT="+inherit)
		if line, err := out.ReadString('\n'); line != "in\n" {
			t.Fatal(line, err)
		}
		db := open(t, dir)
		if _, err := db.TryLock("saga"); !errors.Is(err, store.ErrBusy) {
			t.Fatalf("got %v, want ErrBusy", err)
		}
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
		if inherit != "" {
			if _, err := db.TryLock("saga"); !errors.Is(err, store.ErrBusy) {
				t.Errorf("the child lives: got %v, want ErrBusy", err)
			}
			stdin.Close() // ends cat
		}
		// The kernel closes a dead process's files a moment after wait(2) has it.
		var l *store.Lock
		err := store.ErrBusy
		for errors.Is(err, store.ErrBusy) {
			l, err = db.TryLock("saga") // the test's time limit is the bound
		}
		if err != nil {
			t.Fatal(err)
		}
		l.Unlock()
	}
}

func TestModesAndOwners(t *testing.T) {
	dir := stateDir(t)
	open(t, dir).Close()
	for name, mode := range map[string]os.FileMode{".": 0o700, "state.db": 0o600, "state.lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, want %v", name, info.Mode().Perm(), mode)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	cases := map[string]func() (undo func(), err error){
		"folder open to the group": func() (func(), error) { return func() { _ = os.Chmod(dir, 0o700) }, os.Chmod(dir, 0o750) },
		"file open to the world": func() (func(), error) {
			return func() { _ = os.Chmod(file("state.db"), 0o600) }, os.Chmod(file("state.db"), 0o602)
		},
		"lock open to the world": func() (func(), error) {
			return func() { _ = os.Chmod(file("state.lock"), 0o600) }, os.Chmod(file("state.lock"), 0o604)
		},
		"second name": func() (func(), error) {
			return func() { _ = os.Remove(file("x")) }, os.Link(file("state.db"), file("x"))
		},
		"link": func() (func(), error) {
			return func() { _ = os.Rename(file("y"), file("state.db")) },
				errors.Join(os.Rename(file("state.db"), file("y")), os.Symlink("y", file("state.db")))
		},
		"fifo": func() (func(), error) {
			return func() { _ = os.Rename(file("y"), file("state.db")) },
				errors.Join(os.Rename(file("state.db"), file("y")), unix.Mkfifo(file("state.db"), 0o600))
		},
	}
	if os.Geteuid() == 0 {
		cases["stranger's file"] = func() (func(), error) {
			return func() { _ = os.Lchown(file("state.db"), 0, 0) }, os.Lchown(file("state.db"), 1234, 0)
		}
		cases["stranger's folder"] = func() (func(), error) {
			return func() { _ = os.Lchown(dir, 0, 0) }, os.Lchown(dir, 1234, 0)
		}
	}
	for name, spoil := range cases {
		undo, err := spoil()
		if err != nil {
			t.Fatal(err)
		}
		err = use(dir)
		if _, ok := errors.AsType[*store.UnsafeError](err); !ok || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want an UnsafeError with the path", name, err)
		}
		undo()
	}
	if err := use(dir); err != nil {
		t.Error(err)
	}
}

func use(dir string) error {
	db, err := store.Open(dir, store.Options{LockTimeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(context.Background(), func(tx *store.Tx) error {
		err := tx.Bucket("b").Each("", func(string, []byte) error { return nil })
		if err != nil {
			return err
		}
		return tx.Bucket("b").Put("k", []byte("v"))
	})
}

// Damage of any kind is told as such, with the file's name and the way out, and nothing is begun anew.
func TestDamage(t *testing.T) {
	whole := func(t *testing.T) (dir string, raw []byte) {
		dir = stateDir(t)
		db := open(t, dir)
		err := db.Update(t.Context(), func(tx *store.Tx) error {
			for i := range 2000 {
				if err := tx.Bucket("b").Put(fmt.Sprint("key", i), []byte(strings.Repeat("v", 100))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		raw, err = os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		return dir, raw
	}
	fill := func(raw []byte, from, to int, b byte) []byte {
		for i := from; i < to; i++ {
			raw[i] = b
		}
		return raw
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"empty":            func([]byte) []byte { return nil },
		"first page only":  func(raw []byte) []byte { return raw[:4096] },
		"metas only":       func(raw []byte) []byte { return raw[:8192] },
		"cut in half":      func(raw []byte) []byte { return raw[:len(raw)/2] },
		"text":             func(raw []byte) []byte { return []byte(strings.Repeat("text", 10000)) },
		"both metas":       func(raw []byte) []byte { return fill(raw, 0, 8192, 0xff) },
		"all but metas":    func(raw []byte) []byte { return fill(raw, 8192, len(raw), 0xff) },
		"zeros but metas":  func(raw []byte) []byte { return fill(raw, 8192, len(raw), 0) },
		"schema of no one": func(raw []byte) []byte { return []byte(strings.ReplaceAll(string(raw), "schema1", "schema?")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, raw := whole(t)
			raw = spoil(raw)
			file := filepath.Join(dir, "state.db")
			if err := os.WriteFile(file, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err := use(dir)
				if _, ok := errors.AsType[*store.CorruptError](err); !ok || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "backup") {
					t.Errorf("got %v, want a CorruptError with file and way out", err)
				}
			}
			if info, err := os.Stat(file); err != nil || info.Size() != int64(len(raw)) {
				t.Errorf("the damaged file was touched: %v, %v", info, err)
			}
		})
	}
}

func TestNewerSchema(t *testing.T) {
	dir := stateDir(t)
	db := open(t, dir)
	file := filepath.Join(dir, "state.db")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(raw), "schema1", "schema2")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"open before": db.View(t.Context(), func(*store.Tx) error { return nil }), "open after": use(dir)} {
		if !errors.Is(err, store.ErrSchema) {
			t.Errorf("%s: got %v, want ErrSchema", name, err)
		}
	}
}

// A process that died while making the file leaves nothing that stops the next one.
func TestUnfinishedCreation(t *testing.T) {
	dir := stateDir(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.db.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := use(dir); err != nil {
		t.Error(err)
	}
}

func ExampleStore() {
	s := store.NewMemory()
	ctx := context.Background()
	_ = s.Update(ctx, func(tx *store.Tx) error { return store.PutJSON(tx.Bucket("agents"), "planner", 0.7) })
	_ = s.View(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket("agents"), "", func(id string, score float64) error {
			fmt.Println(id, score)
			return nil
		})
	})
	// Output: planner 0.7
}

func BenchmarkUpdate(b *testing.B) {
	bench := func(s store.Store) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Update(context.Background(), func(tx *store.Tx) error { return store.PutJSON(tx.Bucket("b"), "k", 1) }); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("DB", bench(open(b, stateDir(b))))
	b.Run("Memory", bench(store.NewMemory()))
}

func BenchmarkView(b *testing.B) {
	db := open(b, stateDir(b))
	if err := db.Update(context.Background(), func(tx *store.Tx) error { return store.PutJSON(tx.Bucket("b"), "n", 1) }); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		count(b, db)
	}
}
