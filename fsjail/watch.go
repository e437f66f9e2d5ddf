// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Change is what became of a name below a watched folder.
type Change struct {
	Path   string // whole; of ChangesLost empty
	Kind   ChangeKind
	Folder bool
	Lost   int // of ChangesLost: at least so many
}

// ChangeKind of a Change. The zero value is none.
type ChangeKind string

// Kinds of changes. A rename is a removal and a creation.
const (
	Watching       ChangeKind = "watching"   // the first of all: from here on nothing is missed that isn't told as lost
	Created        ChangeKind = "created"    // also what is found in a folder that has just come
	ChangedContent ChangeKind = "written"    // content or length
	Attributes     ChangeKind = "attributes" // permissions, owner, times, number of links
	Removed        ChangeKind = "removed"
	Unwatched      ChangeKind = "unwatched" // a folder of whose content nothing is told: one too many, too deep or long, or closed to the agent
	ChangesLost    ChangeKind = "lost"      // more than can be told
)

const (
	mostWatched = 2048                   // folders of one watch: each holds some 2 KiB of the kernel's memory
	mostSeen    = 100_000                // names in them when it begins
	watchWindow = 100 * time.Millisecond // changes of one path in it are told once
	mostTold    = 100                    // changes, and folders that have come, in one window
	watchRest   = 9                      // times as long as it has worked it rests: the agent makes the work with one rename
	watchMask   = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// Watch tells what changes below a folder, on its file system, until ctx ends, the folder is removed, or send fails, which it waits for. The
// kernel keeps what comes meanwhile, up to its fs.inotify.max_queued_events.
//
// Each folder is opened with the agent's rights on a thread that is thrown away, as in all of Files; between two, nobody of ours is in the
// sandbox. Only what the agent may read at that moment is watched. The watches are the supervisor's, and in no count of the agent's.
func (f *Files) Watch(ctx context.Context, unsafeFolder string, send func(Change) error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	w := &watcher{
		files: f, top: path.Clean("/" + unsafeFolder), inotify: os.NewFile(uintptr(fd), "inotify"), fd: fd,
		below: map[int]string{}, told: map[Change]bool{}, send: send,
	}
	defer w.inotify.Close()
	if err := w.enter(""); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := send(Change{Path: w.top, Kind: Watching, Folder: true}); err != nil {
		return err
	}
	w.begun = true
	for {
		if err := w.flush(); err != nil || w.over {
			return err
		}
		w.rest(ctx)
		if err := w.window(ctx); err != nil {
			return err
		}
	}
}

type watcher struct {
	files   *Files
	top     string
	inotify *os.File
	fd      int
	below   map[int]string // what each watch is of, below top; of top itself empty
	begun   bool
	seen    int
	over    bool
	send    func(Change) error

	// Of one window.
	told   map[Change]bool
	queue  []Change
	lost   int
	enters int
	worked time.Duration
	since  time.Time // it has been working
}

// rest keeps it to a tenth of a processor, which no limit of the run's counts. The kernel collects meanwhile, and says what is too much.
func (w *watcher) rest(ctx context.Context) {
	much := watchRest*w.worked - watchWindow
	w.worked = 0
	if much <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(much):
	}
}

// window waits for something to come, and hears what comes within a window from then on.
func (w *watcher) window(ctx context.Context) error {
	buf := make([]byte, 64<<10)
	for end := (time.Time{}); ; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := w.inotify.SetReadDeadline(end); err != nil {
			return err
		}
		if ctx.Err() != nil { // its AfterFunc may have come before
			continue
		}
		n, err := w.inotify.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if ctx.Err() == nil {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		if end.IsZero() {
			end = time.Now().Add(watchWindow)
		}
		w.since = time.Now()
		err = w.events(buf[:n])
		w.worked += time.Since(w.since)
		if err != nil {
			return err
		}
		if w.over || !time.Now().Before(end) {
			return nil
		}
	}
}

// flush tells what was heard.
func (w *watcher) flush() error {
	if w.lost > 0 {
		w.queue = append(w.queue, Change{Kind: ChangesLost, Lost: w.lost})
	}
	for _, c := range w.queue {
		if err := w.send(c); err != nil {
			return err
		}
	}
	clear(w.told)
	w.queue, w.lost, w.enters = nil, 0, 0
	return nil
}

// undoes are the kinds that can come again behind one.
var undoes = map[ChangeKind][]ChangeKind{Created: {Removed}, Removed: {Created, ChangedContent, Attributes, Unwatched}}

// tell puts a change into the window's queue; again only when what it changed was removed or has come meanwhile.
func (w *watcher) tell(below string, kind ChangeKind, folder bool) {
	c := Change{Path: path.Join(w.top, below), Kind: kind, Folder: folder}
	if w.told[c] {
		return
	}
	if len(w.queue) >= mostTold {
		w.lost++
		return
	}
	for _, before := range undoes[kind] {
		delete(w.told, Change{Path: c.Path, Kind: before, Folder: folder})
	}
	w.told[c] = true
	w.queue = append(w.queue, c)
}

// events reads what the kernel says (inotify(7)).
func (w *watcher) events(b []byte) error {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(b))) //nolint:gosec // -1 at an overflow
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		in, known := w.below[wd]
		folder := mask&unix.IN_ISDIR != 0
		below := path.Join(in, name)
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			w.lost++
		case !known: // of one that was given up a moment ago
		case mask&unix.IN_IGNORED != 0:
			delete(w.below, wd)
			w.over = w.over || in == ""
		case name == "" && in != "": // of a folder itself: the one it is in tells, too
		case mask&(unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0:
			w.tell("", Removed, true)
			w.over = true
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			w.tell(below, Created, folder)
			if folder {
				if err := w.come(below); err != nil {
					return err
				}
			}
		case mask&unix.IN_MODIFY != 0:
			w.tell(below, ChangedContent, folder)
		case mask&unix.IN_ATTRIB != 0:
			w.tell(below, Attributes, folder)
		case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
			w.tell(below, Removed, folder)
			if folder {
				w.leave(below)
			}
		}
	}
	return nil
}

// leave gives up a folder that is somewhere else now, and all below it.
func (w *watcher) leave(below string) {
	for wd, in := range w.below {
		if in == below || strings.HasPrefix(in, below+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) //nolint:gosec // it may have gone by itself
			delete(w.below, wd)
		}
	}
}

// come watches a folder that has just come, unless it has gone again. Each takes a thread, and a look at all that is in it: of more than
// a few, or more than a window's work, it is told as lost.
func (w *watcher) come(below string) error {
	if w.enters++; w.enters > mostTold || w.worked+time.Since(w.since) > watchWindow {
		w.lost++
		return nil
	}
	err := w.enter(below)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.ESRCH): // the run is over
		return err
	}
	w.tell(below, Unwatched, true)
	return nil
}

// enter watches a folder and those in it. When the watch begins, one too many is an error.
func (w *watcher) enter(below string) error {
	return w.files.within(path.Join(w.top, below), func(dir *os.Root, base string) error {
		info, err := dir.Lstat(base)
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "watch", Path: base, Err: unix.ENOTDIR}
		}
		if err != nil {
			return err
		}
		sub, err := dir.OpenRoot(base + inIt)
		if err != nil {
			return err
		}
		defer sub.Close()
		return w.watch(sub, below, deviceOf(info), 0)
	})
}

func (w *watcher) watch(dir *os.Root, below string, device uint64, depth int) error {
	if len(w.below) >= mostWatched || depth > maxDepth {
		return fmt.Errorf("%d folders, or deeper than %d: %w", mostWatched, maxDepth, ErrTooMuch)
	}
	// A path is kept for each, and told with each change: 256 names of 255 bytes are 64 KiB, of which JSON may make six times as much.
	if len(below) > unix.PathMax {
		return &fs.PathError{Op: "watch", Path: path.Base(below), Err: unix.ENAMETOOLONG}
	}
	self, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer self.Close()
	// The thread's own folder: a name could have come to mean another one, and there is no /proc/self for it in here.
	if err := unix.Fchdir(int(self.Fd())); err != nil { //nolint:gosec // a descriptor
		return os.NewSyscallError("fchdir", err)
	}
	wd, err := unix.InotifyAddWatch(w.fd, ".", watchMask)
	if err != nil {
		return &fs.PathError{Op: "inotify_add_watch", Path: below, Err: err}
	}
	w.below[wd] = below
	list, err := namesOf(dir, mostSeen-min(w.seen, mostSeen))
	if err != nil {
		return err
	}
	if !w.begun {
		w.seen += len(list)
	}
	for _, name := range list {
		info, err := dir.Lstat(name)
		if err != nil {
			continue // gone meanwhile
		}
		at := path.Join(below, name)
		if w.begun {
			w.tell(at, Created, info.IsDir())
		}
		if !info.IsDir() || deviceOf(info) != device {
			continue
		}
		sub, err := dir.OpenRoot(name + inIt)
		if err == nil {
			err = w.watch(sub, at, device, depth+1)
			sub.Close()
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		case errors.Is(err, ErrTooMuch) && !w.begun:
			return err
		default:
			w.tell(at, Unwatched, true)
		}
	}
	return nil
}
