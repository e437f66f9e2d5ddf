// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Thin deletes the log of a run that ended well, unless its id is among the share that the policy keeps. The writer can't: it
// has given up its rights to the folder. A log that is still written, isn't there, or is of a run that failed stays.
func Thin(dir, run string, p Policy) (deleted bool, err error) {
	if err := p.Validate(); err != nil || !validID(run) {
		return false, fmt.Errorf("thin run logs: %.64q: want an id: %w", run, err)
	}
	if sampled(run, *p.withDefaults().Sample) {
		return false, nil
	}
	folder, err := openFolder(dir)
	if err != nil {
		return false, err
	}
	defer folder.Close()
	fd, err := unix.Openat(int(folder.Fd()), run+suffix, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		_, _, err = gone(err, run+suffix, "open")
		return false, err
	}
	f := os.NewFile(uintptr(fd), run+suffix)
	defer f.Close()
	if err := lock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("thin run logs: lock %s: %w", run, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("thin run logs: stat %s: %w", run, err)
	}
	if good, err := endedWell(f, st.Size); err != nil || !good || !ours(&st) {
		return false, err
	}
	if err := remove(folder, f, run+suffix); err != nil {
		return false, err
	}
	return true, folder.Sync()
}
