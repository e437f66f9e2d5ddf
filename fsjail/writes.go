// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Writes hears which files are written through mounts of a sandbox (fanotify(7), FAN_MARK_MOUNT). Runs that share a folder have mounts of
// their own, so it tells the writes of one from those of another. It takes CAP_SYS_ADMIN in the host's user namespace.
type Writes struct {
	fan  *os.File
	done chan struct{}
	last map[uint64]Written // by inode
	more bool
	asks int   // closings that are still looked at: an agent that closes on and on is not to keep the host's processor
	left int64 // bytes that are still summed
}

// Written is what a file held when it was closed after writing.
type Written struct {
	Sum [sha256.Size]byte // SHA-256 of its first MiB, and of its size where that isn't all
	At  time.Time
}

const (
	maxWritten = 1 << 14   // files of a run
	maxSummed  = 1 << 20   // bytes of a file
	maxAsks    = 1 << 16   // closings of a run
	maxAll     = 256 << 20 // bytes of a run
)

// WatchWrites watches the mounts at a path and below. The caller calls End.
func (l *Live) WatchWrites(at string) (*Writes, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fanotify_init", err)
	}
	w := &Writes{fan: os.NewFile(uintptr(fd), "fanotify"), done: make(chan struct{}), last: map[uint64]Written{}, asks: maxAsks, left: maxAll}
	for _, m := range l.mounts {
		if m.at == at || strings.HasPrefix(m.at, at+"/") {
			if err := w.mark(m.fd); err != nil {
				w.fan.Close()
				return nil, fmt.Errorf("%s: %w", m.at, err)
			}
		}
	}
	l.writes = w
	go w.listen()
	return w, nil
}

func (w *Writes) mark(mount int) error {
	raw, err := w.fan.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.FanotifyMark(int(fd), unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_CLOSE_WRITE, unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", mount))
	}); cerr != nil {
		return nil // closed, the only error: a bound was met, and nobody listens
	}
	return os.NewSyscallError("fanotify_mark", err)
}

func (w *Writes) listen() {
	defer close(w.done)
	b := make([]byte, 64<<10)
	for {
		n, err := w.fan.Read(b)
		if err != nil {
			return
		}
		if w.take(b[:n]); w.asks < 0 || w.left < 0 {
			w.more = true
			w.fan.Close() // nobody listens on
			return
		}
	}
}

// take reads events (struct fanotify_event_metadata).
func (w *Writes) take(b []byte) {
	for len(b) >= int(unsafe.Sizeof(unix.FanotifyEventMetadata{})) {
		var e unix.FanotifyEventMetadata
		if _, err := binary.Decode(b, binary.NativeEndian, &e); err != nil || int(e.Event_len) > len(b) || e.Event_len < uint32(e.Metadata_len) {
			w.more = true
			return
		}
		b = b[e.Event_len:]
		if e.Fd < 0 { // the queue was full
			w.more = true
			continue
		}
		w.asks--
		w.file(os.NewFile(uintptr(e.Fd), "written"))
	}
}

func (w *Writes) file(f *os.File) {
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if _, known := w.last[st.Ino]; !known && len(w.last) >= maxWritten {
		w.more = true
		return
	}
	if w.left -= min(st.Size, maxSummed); w.asks < 0 || w.left < 0 {
		w.more = true
		return
	}
	h := sha256.New()
	if n, err := io.Copy(h, io.LimitReader(f, maxSummed)); err != nil || n < st.Size {
		fmt.Fprintf(h, "%d", st.Size)
	}
	w.last[st.Ino] = Written{[sha256.Size]byte(h.Sum(nil)), time.Now()}
}

// End stops watching, and tells what was written last to each file, by inode; more: not all of it. Call it when no process of the
// sandbox lives: the kernel has queued each event before the close that it is about returned.
func (w *Writes) End() (last map[uint64]Written, more bool) {
	if w == nil {
		return nil, false
	}
	err := w.fan.SetReadDeadline(time.Unix(1, 0)) // fails where listen has met a bound
	<-w.done
	if err != nil {
		return w.last, true
	}
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(int(w.fan.Fd()), b)
		if err != nil || n == 0 {
			if !errors.Is(err, unix.EAGAIN) {
				w.more = true
			}
			break
		}
		w.take(b[:n])
	}
	w.fan.Close()
	return w.last, w.more
}
