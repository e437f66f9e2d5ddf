// SPDX-License-Identifier: Apache-2.0

// Package claim holds a thing for one process, by a lock on a file beside it, until Close or the end of the process, however that ends.
//
//	file, err := claim.Take("/var/lib/agentrun/homes/claude/lock")
//
// Share holds a thing with others who share it, against those who take it.
//
// Errors. ErrBusy: another has it, or is removing it. fs.ErrNotExist: the folder of the file isn't there.
//
// It binds only those who ask. Whoever removes the thing takes the claim first, and removes the file with it.
package claim

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy is what another has.
var ErrBusy = errors.New("another process has it")

// Take makes the file if there is none, and notes the time of the claim as the file's.
func Take(path string) (*os.File, error) { return hold(path, unix.F_WRLCK) }

// Share is Take for one of many.
func Share(path string) (*os.File, error) { return hold(path, unix.F_RDLCK) }

func hold(path string, how int16) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = ErrBusy
	}
	if err == nil {
		err = still(file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	Touch(file)
	return file, nil
}

// still tells whether what was locked is the file of that name: it may have been removed in between.
func still(file *os.File) error {
	locked, err := file.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Lstat(file.Name()); err != nil || !os.SameFile(locked, there) {
		return ErrBusy
	}
	return nil
}

// Touch notes that the thing is in use now.
func Touch(file *os.File) {
	now := time.Now()
	_ = os.Chtimes(file.Name(), now, now)
}

// Held tells whether somebody has the claim. It takes nothing: who asks for it at this instant must not meet us.
func Held(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	held := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &held) == nil && held.Type != unix.F_UNLCK
}
