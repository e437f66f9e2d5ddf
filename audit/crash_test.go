// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary run again as a writer: AUDIT_TEST_WRITER names what it does, the folder is its argument.
func TestMain(m *testing.M) {
	if what := os.Getenv("AUDIT_TEST_WRITER"); what != "" {
		if err := writer(what, os.Args[len(os.Args)-1]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func writer(what, dir string) error {
	switch what {
	case "many":
		return writeUntilKilled(dir)
	case "limit":
		limit, err := strconv.ParseUint(os.Getenv("AUDIT_TEST_LIMIT"), 10, 64)
		if err != nil {
			return err
		}
		signal.Ignore(syscall.SIGXFSZ)
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
		return writeUntilFull(dir)
	case "tmpfs":
		if err := unix.Mount("audit", dir, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		return fillAndFree(dir)
	}
	return errors.New("unknown AUDIT_TEST_WRITER")
}

// writeUntilKilled prints "ack SEQ HASH" for what AppendSync acknowledged and "app SEQ HASH" for what Append did.
func writeUntilKilled(dir string) error {
	// A kill hardly ever hits a single write(2) in its middle; this kernel finishes the page. So one writer of three
	// writes in small pieces.
	sys := syscalls{write: unix.Write, sync: unix.Fdatasync}
	if os.Getenv("AUDIT_TEST_PIECES") != "" {
		sys.write = func(fd int, b []byte) (int, error) { return unix.Write(fd, b[:min(len(b), 40)]) }
	}
	l, err := open(dir, NodeChain, Options{Now: time.Now, SyncDelay: defaultSyncDelay, RotateBytes: 20_000}, sys)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				add, word := l.Append, "app"
				if i%4 == 0 {
					add, word = l.AppendSync, "ack"
				}
				e, err := add(&Refusal{Count: int64(i), RunID: fmt.Sprintf("%d.%d", os.Getpid(), g), Syscall: "mount", Verdict: "EPERM"})
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				fmt.Printf("%s %d %s\n", word, e.Seq, e.Hash)
				mu.Unlock()
			}
		})
	}
	return <-errs
}

func start(t *testing.T, what, dir string, env ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", dir)
	cmd.Env = append(append(os.Environ(), "AUDIT_TEST_WRITER="+what, "GORACE=atexit_sleep_ms=0"), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if what == "tmpfs" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// Three processes append to one chain and are killed, one after the other, at moments nobody chose. Nothing that was
// acknowledged is lost or changed, and the chain is sound, with repairs where a line was cut.
func TestH28KillNineLoop(t *testing.T) {
	dir := t.TempDir()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	var mu sync.Mutex
	acked := map[int64]string{}
	for range rounds {
		var readers sync.WaitGroup
		var cmds []*exec.Cmd
		// The last of the three lives until it has acknowledged something, however busy the machine is; the others die wherever they are.
		spoke := make(chan struct{})
		speak := sync.OnceFunc(func() { close(spoke) })
		for i := range 3 {
			pieces := "AUDIT_TEST_PIECES="
			if i == 1 {
				pieces += "1"
			}
			cmd, out := start(t, "many", dir, pieces)
			cmds = append(cmds, cmd)
			readers.Go(func() {
				if i == 2 {
					defer speak()
				}
				scan := bufio.NewScanner(out)
				for scan.Scan() {
					word, rest, _ := strings.Cut(scan.Text(), " ")
					seq, hash, ok := strings.Cut(rest, " ")
					n, err := strconv.ParseInt(seq, 10, 64)
					if word == "error:" {
						t.Errorf("writer: %s", rest)
					}
					if !ok || err != nil || len(hash) != 64 {
						continue // cut off with its writer
					}
					mu.Lock()
					if before, twice := acked[n]; twice {
						t.Errorf("entry %d acknowledged twice: %s and %s", n, before, hash)
					}
					acked[n] = hash
					mu.Unlock()
					if i == 2 {
						speak()
					}
				}
			})
		}
		for i, cmd := range cmds {
			if i == 2 {
				<-spoke
			}
			time.Sleep(time.Duration(10+rand.IntN(40)) * time.Millisecond)
			cmd.Process.Kill()
		}
		readers.Wait()
		for _, cmd := range cmds {
			cmd.Wait()
		}
	}
	// A line cut off last is closed by the next writer.
	l := openLog(t, dir, Options{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := verify(t, dir, VerifyOptions{})
	if !r.Valid {
		t.Fatalf("%v", r.Problem)
	}
	found := 0
	for _, e := range readAll(t, dir) {
		if hash, ok := acked[e.Seq]; ok {
			if hash != e.Hash.String() {
				t.Fatalf("entry %d has hash %s, acknowledged was %s", e.Seq, e.Hash, hash)
			}
			found++
		}
	}
	if found != len(acked) || found == 0 {
		t.Errorf("%d of %d acknowledged entries are there", found, len(acked))
	}
	t.Logf("%d rounds of 3 writers: %d entries, %d acknowledged, %d repairs, %d files", rounds, r.Entries, len(acked), r.Repairs, r.Files)
}

// The disk is full at each byte in turn (RLIMIT_FSIZE: the kernel writes up to it, and then refuses). What was
// acknowledged stays, the log refuses from then on, and with room again the next opener repairs and goes on.
func TestH28DiskFullAtEveryByte(t *testing.T) {
	one := len(bytes.Join(chainOf(t, 1), nil))
	step := 23
	for limit := 1; limit < 3*one; limit += step {
		dir := t.TempDir()
		cmd, out := start(t, "limit", dir, fmt.Sprintf("AUDIT_TEST_LIMIT=%d", limit))
		text, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("limit %d: %v: %s", limit, err, text)
		}
		acked := bytes.Count(text, []byte("ack"))
		l := openLog(t, dir, Options{})
		appendN(t, l, 1)
		l.Close()
		r := verify(t, dir, VerifyOptions{})
		if !r.Valid || r.Entries < int64(acked)+1 {
			t.Fatalf("limit %d: %d acknowledged, %+v %v", limit, acked, r, r.Problem)
		}
	}
}

func writeUntilFull(dir string) error {
	l, err := Open(dir, NodeChain, Options{Now: fixed(at)})
	if err != nil {
		return err
	}
	for range 10 {
		e, err := l.AppendSync(&Refusal{Count: 1, RunID: "r0", Syscall: "mount", Verdict: "EPERM"})
		if err == nil {
			fmt.Println("ack", e.Seq)
			continue
		}
		if !errors.Is(err, ErrBroken) || !errors.Is(err, unix.EFBIG) {
			return fmt.Errorf("not the error of a full disk: %w", err)
		}
		if _, err := l.Append(someRecord()); !errors.Is(err, ErrBroken) {
			return fmt.Errorf("goes on after a full disk: %w", err)
		}
		// Opening again, with no more room, adds to what is torn, or can't even do that.
		for range 3 {
			if l, err := Open(dir, NodeChain, Options{Now: fixed(at)}); err == nil {
				if _, err := l.Append(someRecord()); err == nil {
					return errors.New("writes to a full disk")
				}
			}
		}
		return nil
	}
	return errors.New("the disk is never full")
}

// A file system that is really full, in a mount namespace of its own.
func TestH28DiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, to mount a small tmpfs")
	}
	cmd, out := start(t, "tmpfs", t.TempDir())
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func fillAndFree(dir string) error {
	// Room for what will be freed.
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 32<<10), 0o600); err != nil {
		return err
	}
	logs := filepath.Join(dir, "audit")
	acked := int64(0)
	for round := range 4 {
		l, err := Open(logs, NodeChain, Options{RotateBytes: 5000})
		for err == nil {
			if _, err = l.AppendSync(someRecord()); err == nil {
				acked++
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("round %d: want ENOSPC, got %w", round, err)
		}
		if l != nil {
			l.Close()
		}
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	l, err := Open(logs, NodeChain, Options{})
	if err != nil {
		return err
	}
	if _, err := l.AppendSync(someRecord()); err != nil {
		return err
	}
	r, err := Verify(logs, NodeChain, VerifyOptions{})
	if err != nil || !r.Valid || r.Entries < acked+1 {
		return fmt.Errorf("%d acknowledged: %+v %v %w", acked, r, r.Problem, err)
	}
	fmt.Println("entries", r.Entries, "repairs", r.Repairs, "files", r.Files)
	return nil
}
