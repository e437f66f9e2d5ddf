// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The uid and gid ranges that runs are mapped to on the host. They start above the range systemd
// gives to containers (524288 to 0x6fffffff, "UIDs and GIDs on systemd systems") and end at the last id
// that is positive as a 32-bit number, because old tools still parse ids as such.
const (
	rangeBase  = 0x70000000
	rangeSize  = 65536
	rangeCount = 4096

	agentID = 1000 // the agent's uid and gid inside: an ordinary user, never 0
)

// idRange is a block of host ids that no other live run has (M-1).
type idRange struct {
	base int
	file *os.File
}

func (r *idRange) hostAgent() int { return r.base + agentID }

// hostGateway is the user that the run's gateway becomes: no other run's, and one that nobody inside can be, since that takes
// a capability.
func (r *idRange) hostGateway() int { return r.base + rangeSize - 1 }

// ErrNoIDs: as many runs are alive as there are id ranges.
var ErrNoIDs = fmt.Errorf("all %d uid ranges are in use by live runs", rangeCount)

// claimIDs takes a free range. The claim is an OFD lock on one byte of a file that all run folders of
// the machine share, so the kernel takes it back however the supervisor ends, and nothing is left to
// clean up. Ranges rotate: the uid of a run that just ended is the last to be given out again, so that
// a process which outlived its supervisor by an instant never shares it.
func claimIDs(dir string) (*idRange, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "uid-ranges"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	var last [2]byte
	_, _ = f.ReadAt(last[:], 0) // a fresh file starts at 0; two starts at once may read the same
	start := int(last[0]) | int(last[1])<<8
	for i := range rangeCount {
		n := (start + 1 + i) % rangeCount
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 + n), Len: 1}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			f.Close()
			return nil, os.NewSyscallError("fcntl F_OFD_SETLK", err)
		}
		if _, err := f.WriteAt([]byte{byte(n), byte(n >> 8)}, 0); err != nil {
			f.Close()
			return nil, err
		}
		return &idRange{base: rangeBase + n*rangeSize, file: f}, nil
	}
	f.Close()
	return nil, ErrNoIDs
}

func (r *idRange) release() error { return r.file.Close() }
