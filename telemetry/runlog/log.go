// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/telemetry/mask"
)

const (
	suffix = ".jsonl"
	// maxID leaves room for the suffix: file systems take names of 255 bytes.
	maxID = 240

	// lineBytes and fileBytes bound a line and a file.
	lineBytes = 16 << 10
	fileBytes = 16 << 20
	// reserve is kept for what matters most when a file is full: errors, and how the run ended.
	reserve = 64 << 10

	// burst and perSecond bound what is written below level Error, in bytes: most lines tell of what an agent made fail, and it can
	// fail without end, run after run. What is left out is counted as what is too much for the file.
	burst     = 256 << 10
	perSecond = 2 << 10
)

// Options are how a run is logged.
type Options struct {
	// Level is the least that is written; nil: Info.
	Level slog.Leveler
	// Mask masks; nil: the built-in rules.
	Mask *mask.Masker
}

// Outcome is how a run ended.
type Outcome uint8

const (
	// Failed is the zero value: what nobody called a success isn't one.
	Failed Outcome = iota
	// Succeeded says that the log may go with the others.
	Succeeded
)

// Log is the log of one run. It is safe for concurrent use.
type Log struct {
	id      string
	options Options
	maxLine int   // lineBytes, or what a test sets
	maxFile int64 // fileBytes, likewise

	mu      sync.Mutex
	dir     *os.File
	file    *os.File
	size    int64
	dropped int
	used    float64 // of burst
	at      time.Time
	failed  bool // a record of level Error was written
	err     error
}

// ErrFinished is what writing gives after Finish.
var ErrFinished = errors.New("run log is finished")

// validID: ids of H-29, which are safe in file names but for their length.
func validID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		b := id[i]
		alnum := b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
		if !alnum && (i == 0 || i == len(id)-1 || strings.IndexByte("._:-", b) < 0) {
			return false
		}
	}
	return true
}

// Create makes dir (0700) if it isn't there, and the log of run in it. A log that exists is an error: runs have ids of
// their own.
func Create(dir, run string, o Options) (*Log, error) {
	if !validID(run) {
		return nil, fmt.Errorf("run log: %.64q is no id", run)
	}
	if o.Level == nil {
		o.Level = slog.LevelInfo
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("run log: %w", err)
	}
	folder, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(folder.Fd()), run+suffix, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		_ = folder.Close()
		return nil, fmt.Errorf("create log of run %s: %w", run, err)
	}
	l := &Log{id: run, options: o, maxLine: lineBytes, maxFile: fileBytes, dir: folder, file: os.NewFile(uintptr(fd), run+suffix)}
	// A sweeper may hold it for the moment it takes to see that the log is young.
	if err := lock(fd, unix.LOCK_EX); err != nil {
		_ = unix.Unlinkat(int(folder.Fd()), run+suffix, 0)
		_ = l.close()
		return nil, fmt.Errorf("lock log of run %s: %w", run, err)
	}
	return l, nil
}

func lock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openFolder opens dir and refuses one that others could have put names into.
func openFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("folder of run logs: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("folder of run logs: stat %s: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		_ = f.Close()
		return nil, fmt.Errorf("folder of run logs: %s has owner %d and mode %04o, want %d and 0700", dir, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return f, nil
}

// write appends one line, which ends with a newline. What doesn't fit is counted.
func (l *Log) write(line []byte, level slog.Level) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return ErrFinished
	}
	limit := l.maxFile - reserve
	if level >= slog.LevelError {
		l.failed = true
		limit += reserve / 2
	}
	if l.size+int64(len(line)) > limit || level < slog.LevelError && !l.takeLocked(len(line)) {
		l.dropped++
		return nil
	}
	return l.appendLocked(line)
}

func (l *Log) takeLocked(n int) bool {
	now := time.Now()
	l.used, l.at = max(l.used-max(now.Sub(l.at), 0).Seconds()*perSecond, 0), now
	if l.used+float64(n) > burst {
		return false
	}
	l.used += float64(n)
	return true
}

func (l *Log) appendLocked(line []byte) error {
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil {
		err = fmt.Errorf("write log of run %s: %w", l.id, err)
		if l.err == nil {
			l.err = err
		}
		// Half a line would swallow the next one.
		if n > 0 {
			_, _ = l.file.Write([]byte("\n"))
		}
	}
	return err
}

// endOK is the last line of a run that ended well. No record can look like it: they begin with their time or level.
const (
	endOK     = `{"run_ended":"ok"}` + "\n"
	endFailed = `{"run_ended":"error"}` + "\n"
)

// Finish writes how the run ended and closes the log. A run with a record of level Error, or whose log couldn't be
// written, failed whatever outcome says. Which logs are kept decides Thin.
func (l *Log) Finish(outcome Outcome) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return ErrFinished
	}
	if l.dropped > 0 {
		_ = l.appendLocked(fmt.Appendf(nil, "{\"dropped_records\":%d}\n", l.dropped))
	}
	end := endFailed
	if outcome == Succeeded && !l.failed && l.err == nil {
		end = endOK
	}
	_ = l.appendLocked([]byte(end))
	return errors.Join(l.err, l.close())
}

func (l *Log) close() error {
	err := errors.Join(l.file.Close(), l.dir.Close())
	l.file, l.dir = nil, nil
	return err
}

// sampled decides by the id alone, so that every process agrees.
func sampled(id string, share float64) bool {
	sum := sha256.Sum256([]byte(id))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11)/(1<<53) < share
}

// endedWell reads the last line.
func endedWell(f io.ReaderAt, size int64) (bool, error) {
	if size < int64(len(endOK)) {
		return false, nil
	}
	at := max(0, size-int64(len(endOK))-1)
	b := make([]byte, size-at)
	if _, err := f.ReadAt(b, at); err != nil {
		return false, err
	}
	return string(b) == endOK || string(b) == "\n"+endOK, nil
}
