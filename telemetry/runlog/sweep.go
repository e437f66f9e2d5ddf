// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a Policy (M-18: 24–72 h).
const (
	MinKeep       = 24 * time.Hour
	MaxKeep       = 72 * time.Hour
	MaxKeepErrors = 30 * 24 * time.Hour
	// skew is how far a clock may go back without a log counting as one from the future.
	skew = 5 * time.Minute
)

// Policy says how long logs are kept, from their last line on, and which. Zero fields are the defaults.
type Policy struct {
	Keep       time.Duration `yaml:"retention"`       // of runs that ended well: 24 to 72 hours; 0: 72 hours
	KeepErrors time.Duration `yaml:"error_retention"` // of all others: as long as Keep, to 30 days; 0: 7 days
	MaxMiB     int64         `yaml:"max_mib"`         // all logs together, see Sweep: 16 to a million; 0: 1024
	Sample     *float64      `yaml:"sample"`          // share of the logs of runs that ended well that is kept, 0 to 1; nil: all
}

// Bounds of a Policy's MaxMiB. The least holds one log of the greatest length.
const (
	minMiB     = fileBytes >> 20
	maxMiB     = 1_000_000
	defaultMiB = 1024
)

// ErrPolicy is wrapped by the errors of Validate.
var ErrPolicy = errors.New("retention of run logs")

func (p Policy) withDefaults() Policy {
	p.Keep = cmp.Or(p.Keep, MaxKeep)
	p.KeepErrors = cmp.Or(p.KeepErrors, 7*24*time.Hour)
	p.MaxMiB = cmp.Or(p.MaxMiB, defaultMiB)
	if p.Sample == nil {
		all := 1.0
		p.Sample = &all
	}
	return p
}

// Validate tells what is wrong with p, and everything that is.
func (p Policy) Validate() error {
	p = p.withDefaults()
	var errs []error
	if p.Keep < MinKeep || p.Keep > MaxKeep {
		errs = append(errs, fmt.Errorf("%w: keep %v, want %v to %v", ErrPolicy, p.Keep, MinKeep, MaxKeep))
	}
	if p.KeepErrors < p.Keep || p.KeepErrors > MaxKeepErrors {
		errs = append(errs, fmt.Errorf("%w: keep errors %v, want %v (as long as the others) to %v", ErrPolicy, p.KeepErrors, p.Keep, MaxKeepErrors))
	}
	if p.MaxMiB < minMiB || p.MaxMiB > maxMiB {
		errs = append(errs, fmt.Errorf("%w: max_mib %d, want %d to %d", ErrPolicy, p.MaxMiB, minMiB, maxMiB))
	}
	if s := *p.Sample; math.IsNaN(s) || s < 0 || s > 1 {
		errs = append(errs, fmt.Errorf("%w: sample %v, want 0 to 1", ErrPolicy, s))
	}
	return errors.Join(errs...)
}

// Swept says what Sweep did, in files; Freed is in bytes.
type Swept struct {
	Removed int
	Kept    int
	// InUse are logs that somebody writes; their age doesn't matter.
	InUse int
	// FromFuture are kept ones whose time was set to now, from where they age.
	FromFuture int
	// Foreign are names that are no logs of this program: left alone.
	Foreign int
	Freed   int64
}

type verdict uint8

const (
	foreign verdict = iota
	kept
	inUse
	fromFuture
	removed
)

// maxErrors bounds what is told about a folder of broken files.
const maxErrors = 16

// Sweep deletes the logs in dir that are older at now than p allows. Where the rest is more than MaxMiB, the oldest go
// before their time until it isn't: first those of runs that ended well, then the others. It goes on past errors; what it
// did is right in any case. A folder that doesn't exist has nothing to delete.
func Sweep(dir string, p Policy, now time.Time) (Swept, error) {
	var done Swept
	if err := p.Validate(); err != nil {
		return done, err
	}
	p = p.withDefaults()
	folder, err := openFolder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil
	}
	if err != nil {
		return done, err
	}
	defer folder.Close()
	// All names first: whether a folder that changes is read completely depends on the file system.
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return done, fmt.Errorf("sweep run logs: read %s: %w", dir, err)
	}
	w := &sweeper{folder: folder, policy: p, now: now}
	for _, name := range names {
		done.count(w.visit(name))
	}
	w.squeeze(&done)
	errs := w.errs
	if done.Removed > 0 {
		if err := folder.Sync(); err != nil {
			errs = append(errs, fmt.Errorf("sweep run logs: sync %s: %w", dir, err))
		}
	}
	return done, errors.Join(errs...)
}

func (s *Swept) count(did verdict, size int64) {
	switch did {
	case foreign:
		s.Foreign++
	case kept:
		s.Kept++
	case inUse:
		s.InUse++
	case fromFuture:
		s.Kept++
		s.FromFuture++
	case removed:
		s.Removed++
		s.Freed += size
	}
}

// sweeper is one sweep.
type sweeper struct {
	folder *os.File
	policy Policy
	now    time.Time
	room   room
	kept   []survivor // that may still be squeezed out
	errs   []error
}

// survivor is a log that is kept so far.
type survivor struct {
	name string
	age  time.Duration
	size int64
}

// room says whose time counts no more because there is too much.
type room uint8

const (
	enough room = iota
	noneForGood
	noneForAny
)

func (w *sweeper) visit(name string) (verdict, int64) {
	did, size, err := w.sweepOne(name)
	if err != nil && len(w.errs) < maxErrors {
		w.errs = append(w.errs, err)
	}
	return did, size
}

// squeeze deletes until no more is kept than the policy has room for.
func (w *sweeper) squeeze(done *Swept) {
	list, left := w.kept, int64(0)
	for _, l := range list {
		left += l.size
	}
	slices.SortFunc(list, func(a, b survivor) int { return cmp.Compare(b.age, a.age) })
	for w.room = noneForGood; w.room <= noneForAny; w.room++ {
		for _, l := range list {
			if left <= w.policy.MaxMiB<<20 {
				return
			}
			if did, size := w.visit(l.name); did == removed {
				left -= size
				done.Kept--
				done.count(did, size)
			}
		}
	}
}

// sweepOne judges one name. Everything it learns, it learns from the open file: a name may be another file by then.
func (w *sweeper) sweepOne(name string) (verdict, int64, error) {
	dir := w.folder
	id, ok := strings.CutSuffix(name, suffix)
	if !ok || !validID(id) {
		return foreign, 0, nil
	}
	// Looked at before it is opened: opening a device or a fifo does things. O_NONBLOCK for one put there in between.
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return gone(err, name, "stat")
	}
	if !ours(&st) {
		return foreign, 0, nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return gone(err, name, "open")
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := lock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return inUse, 0, nil
	} else if err != nil {
		return kept, 0, fmt.Errorf("sweep run logs: lock %s: %w", name, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return kept, 0, fmt.Errorf("sweep run logs: stat %s: %w", name, err)
	}
	if !ours(&st) {
		return foreign, 0, nil
	}
	return w.judge(f, &st)
}

// gone: another sweeper was faster, which is no error.
func gone(err error, name, op string) (verdict, int64, error) {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return foreign, 0, nil
	}
	return kept, 0, fmt.Errorf("sweep run logs: %s %s: %w", op, name, err)
}

// ours: what Create makes. A second name means that somebody else also thinks the file is theirs.
func ours(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && st.Nlink == 1 && st.Mode&0o077 == 0
}

func (w *sweeper) judge(f *os.File, st *unix.Stat_t) (verdict, int64, error) {
	age := w.now.Sub(time.Unix(st.Mtim.Unix()))
	if age < -skew {
		// The clock was ahead once, or is behind now. Left alone the file would stay until its time comes, maybe for ever.
		t := unix.NsecToTimeval(w.now.UnixNano())
		if err := unix.Futimes(int(f.Fd()), []unix.Timeval{t, t}); err != nil {
			return kept, 0, fmt.Errorf("sweep run logs: set time of %s: %w", f.Name(), err)
		}
		return fromFuture, 0, nil
	}
	doomed := age > w.policy.KeepErrors || w.room == noneForAny
	if !doomed && (age > w.policy.Keep || w.room == noneForGood) {
		good, err := endedWell(f, st.Size)
		if err != nil {
			return kept, 0, fmt.Errorf("sweep run logs: read %s: %w", f.Name(), err)
		}
		doomed = good
	}
	if !doomed {
		if w.room == enough {
			w.kept = append(w.kept, survivor{f.Name(), age, st.Size})
		}
		return kept, 0, nil
	}
	if err := remove(w.folder, f, f.Name()); err != nil {
		return kept, 0, err
	}
	return removed, st.Size, nil
}

// remove empties the file f, whose lock is held, and takes its name away, if that is still its name. Emptied first, as
// somebody may have it open, and as the blocks are then free even if the unlinking is interrupted. The caller syncs the
// folder, once for all.
func remove(dir, f *os.File, name string) error {
	var have, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &have); err != nil {
		return fmt.Errorf("delete run log: stat %s: %w", name, err)
	}
	if err := unix.Fstatat(int(dir.Fd()), name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("delete run log: stat %s: %w", name, err)
	}
	if have.Dev != named.Dev || have.Ino != named.Ino {
		return fmt.Errorf("delete run log: %s is another file now", name)
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("delete run log: empty %s: %w", name, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("delete run log: sync %s: %w", name, err)
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil {
		return fmt.Errorf("delete run log: %s: %w", name, err)
	}
	return nil
}
