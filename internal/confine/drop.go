// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Defaults of Options' zero values.
const (
	DefaultFiles   = 4096 // descriptors: two for each connection, and a reserve
	DefaultThreads = 512
	minFiles       = 32
	minThreads     = 16
)

// Options say what is left after Drop.
type Options struct {
	// UID and GID to become. 0 is refused. No other run may have them: RLIMIT_NPROC and signals go by user.
	UID, GID int
	// Read are files and folders that may be read, beside what name resolution, certificates and time zones need. One that
	// doesn't exist is an error.
	Read []string
	// Write are folders in which files may be made, written and removed.
	Write []string
	// Unix lets the process make unix sockets, and so connect to any on the host whose permissions let its user. Inherited
	// ones work without.
	Unix bool
	// Files bounds open descriptors; 0: DefaultFiles.
	Files uint64
	// Threads bounds threads of UID; 0: DefaultThreads. A Go program that can't make one ends.
	Threads uint64
	// BestEffort goes on where the kernel has no Landlock. WARNING: which files a taken-over gateway may read is then up to
	// the permissions of its user alone, and everything that is readable for all is.
	BestEffort bool

	tree    string // Unpack's
	offline bool
}

func (o Options) filled() (Options, error) {
	if o.Files == 0 {
		o.Files = DefaultFiles
	}
	if o.Threads == 0 {
		o.Threads = DefaultThreads
	}
	var errs []error
	if o.UID <= 0 || o.GID <= 0 {
		errs = append(errs, fmt.Errorf("user %d, group %d: want both above 0", o.UID, o.GID))
	}
	if o.Files < minFiles || o.Threads < minThreads {
		errs = append(errs, fmt.Errorf("%d files, %d threads: want at least %d and %d", o.Files, o.Threads, minFiles, minThreads))
	}
	for _, path := range append(append([]string{}, o.Read...), o.Write...) {
		if !strings.HasPrefix(path, "/") {
			errs = append(errs, fmt.Errorf("path %q: want an absolute one", path))
		}
	}
	return o, errors.Join(errs...)
}

// step is one right given up. The order is an argument: see steps.
type step struct {
	name string
	do   func() error
}

// Drop gives everything up. It must be called before anything hostile is read; other goroutines may run.
func Drop(o Options) error {
	o, err := o.filled()
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("confine: only root has something to give up")
	}
	domain, err := openDomain(o)
	if err != nil {
		return fmt.Errorf("confine: landlock: %w", err)
	}
	defer domain.close()
	for _, s := range steps(o, domain) {
		if err := s.do(); err != nil {
			return fmt.Errorf("confine: %s: %w", s.name, err)
		}
	}
	return nil
}

// steps in their order. Limits, securebits and the bounding set need capabilities, so they come before the user changes;
// the change itself empties the permitted, effective and ambient sets (capabilities(7), "Effect of user ID changes").
// Setting ids resets the dumpable flag to fs.suid_dumpable (prctl(2)), so that flag comes after. no_new_privs is what lets
// a process without capabilities restrict itself, so it comes before Landlock and seccomp. Threads are looked at while /proc
// can still be opened. seccomp is last: it refuses all of the above.
func steps(o Options, domain *domain) []step {
	return []step{
		{"limits", func() error { return limit(o) }},
		{"securebits", func() error {
			return everyThread("prctl(PR_SET_SECUREBITS)", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureBits)
		}},
		{"bounding set", emptyBoundingSet},
		{"groups", func() error { return wrap("setgroups(2)", syscall.Setgroups(nil)) }},
		{"group", func() error { return wrap("setresgid(2)", syscall.Setresgid(o.GID, o.GID, o.GID)) }},
		{"user", func() error { return wrap("setresuid(2)", syscall.Setresuid(o.UID, o.UID, o.UID)) }},
		{"capabilities", emptyCapabilities},
		{"no_new_privs", func() error {
			return everyThread("prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
		}},
		{"dumpable", func() error { return wrap("prctl(PR_SET_DUMPABLE)", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)) }},
		// On all threads: the flag is a thread's, and a thread of Go's may end. It is here because the change of user has
		// cleared what the parent had set (prctl(2)).
		{"parent's death", func() error {
			return everyThread("prctl(PR_SET_PDEATHSIG)", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
		}},
		{"threads", func() error { return checkThreads(o) }},
		{"landlock", domain.enter},
		{"seccomp", func() error { return installFilter(o) }},
	}
}

// secureBits of capabilities(7), each with its lock: uid 0 means nothing, capabilities don't survive a change of user,
// ambient ones can't be raised. linux/securebits.h.
const secureBits = 1<<0 | 1<<1 | // SECBIT_NOROOT
	1<<5 | // SECBIT_KEEP_CAPS off, and locked
	1<<6 | 1<<7 // SECBIT_NO_CAP_AMBIENT_RAISE

func limit(o Options) error {
	for _, l := range []struct {
		what int
		most uint64
	}{
		{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NOFILE, o.Files}, {unix.RLIMIT_NPROC, o.Threads}, {unix.RLIMIT_MEMLOCK, 0}, {unix.RLIMIT_MSGQUEUE, 0},
	} {
		// Not syscall.Setrlimit: for RLIMIT_NOFILE that is remembered and given to children; and prlimit(2) acts on the process.
		if err := unix.Prlimit(0, l.what, &unix.Rlimit{Cur: l.most, Max: l.most}, nil); err != nil {
			return fmt.Errorf("prlimit(2) resource %d: %w", l.what, err)
		}
	}
	return nil
}

// emptyBoundingSet goes on until the kernel knows no more capabilities (EINVAL), which is right for newer kernels too.
func emptyBoundingSet() error {
	for c := uintptr(0); c < 64; c++ {
		err := everyThread("prctl(PR_CAPBSET_DROP)", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_AUDIT_READ {
			return nil
		}
		if err != nil {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	return nil
}

// emptyCapabilities also takes the inheritable set, which a change of user leaves alone (CVE-2022-29162).
func emptyCapabilities() error { return capabilities(0) }

// everyThread makes one system call on all threads of the process while none of them runs Go code. Credentials, filters and
// domains belong to threads (credentials(7)), and the kernel gives new threads those of the one that made them; so between
// two calls no thread is left behind. With cgo it gives ENOTSUP, as threads of C are unknown to it.
func everyThread(what string, number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.AllThreadsSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return fmt.Errorf("%s on all threads: %w: build with CGO_ENABLED=0", what, errno)
	}
	return fmt.Errorf("%s: %w", what, errno)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
