// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	socketsDir = "control"
	suffix     = ".sock"
	maxName    = 80          // with the folder's descriptor before it, a socket's path stays within 107 bytes (unix(7))
	newSocket  = ".new.sock" // no name begins with a dot
)

// ErrInUse: another supervisor answers on the socket.
var ErrInUse = errors.New("a live supervisor has this socket")

func checkName(name string) error {
	ok := len(name) >= 1 && len(name) <= maxName && name[0] != '.'
	for _, c := range []byte(name) {
		ok = ok && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	if !ok {
		return fmt.Errorf("%.100q is no name of a supervisor: want 1 to %d of a-z A-Z 0-9 . _ -, no dot first", name, maxName)
	}
	return nil
}

// folder is the folder of sockets, held open so that it is the same one in every step.
type folder struct{ f *os.File }

func (d folder) fd() (n int) {
	if raw, err := d.f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = int(fd) }) //nolint:gosec // a descriptor
	}
	return n
}

// path leads to a name in the folder whatever lies above it, and is short.
func (d folder) path(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.fd(), name) }

func (d folder) Close() { d.f.Close() }

// openFolder opens the folder for looking names up, which takes no right to read it.
func openFolder(runDir string) (folder, error) {
	f, err := os.OpenFile(filepath.Join(runDir, socketsDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	return folder{f}, err
}

// Listen makes the socket <runDir>/control/<name>.sock and listens on it. The socket of a dead supervisor is replaced; with a
// live one the error is ErrInUse. Closing the listener removes it.
//
// Its mode is 0600; 0660 with the group, if a gives access to one. Two groups can't be told by a mode without access control
// lists, which not every file system has: then it is 0666, and the credentials alone decide, as they do in every case. The
// folder is 0711, so that names can't be listed; 0755 as soon as somebody gives a group access, whose members must find the
// sockets. Then the run folder itself lets others through (0711); what is in it has modes of its own.
func Listen(runDir, name string, a Access) (net.Listener, error) {
	l, err := listen(runDir, name, a)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", filepath.Join(runDir, socketsDir, name+suffix), err)
	}
	return l, nil
}

func listen(runDir, name string, a Access) (net.Listener, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	d, err := makeFolder(runDir, a)
	if err != nil {
		return nil, err
	}
	l, err := d.listen(name+suffix, a)
	if err != nil {
		d.Close()
		return nil, err
	}
	return l, nil
}

// makeFolder makes or takes the folder. It must be ours alone to write: whoever can put a socket there is the supervisor to
// all who look for it.
func makeFolder(runDir string, a Access) (folder, error) {
	mode, runMode := fs.FileMode(0o711), fs.FileMode(0o700)
	if gid, several := a.group(); gid > 0 || several {
		mode, runMode = 0o755, 0o711
	}
	path := filepath.Join(runDir, socketsDir)
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return folder{}, err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return folder{}, err
	}
	for _, dir := range []struct {
		path string
		mode fs.FileMode
	}{{runDir, runMode}, {path, mode}} {
		if err := widen(dir.path, dir.mode); err != nil {
			return folder{}, err
		}
	}
	return openFolder(runDir)
}

// widen adds to a folder's mode and never takes away: other supervisors use the same one.
func widen(path string, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	have := info.Mode().Perm()
	if int(st.Uid) != os.Geteuid() || have&0o022 != 0 {
		return fmt.Errorf("%s: owner %d, mode %04o: others could put sockets of their own there", path, st.Uid, have)
	}
	if have|mode == have {
		return nil
	}
	return f.Chmod(have | mode)
}

// lock keeps two supervisors from taking one name, and Sweep from removing a socket that is just being made. The kernel
// takes it back when its holder dies.
func (d folder) lock() (unlock func(), err error) {
	// The folder itself, in a description of its own: a file would be left behind, or be removed under somebody's lock.
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open the folder of control sockets", err)
	}
	for {
		if err = unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("flock the folder of control sockets", err), unix.Close(fd))
	}
	return func() { unix.Close(fd) }, nil
}

// listen makes the socket under another name, with its mode and with somebody listening, and then moves it to where it is
// looked for: at no instant is it there with the umask's mode, or refusing connections as a dead one does.
func (d folder) listen(file string, a Access) (net.Listener, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.mustBeFree(file); err != nil {
		return nil, err
	}
	if err := unix.Unlinkat(d.fd(), newSocket, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, os.NewSyscallError("unlink "+newSocket, err)
	}
	f, err := d.bind(a)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd(), newSocket, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, os.NewSyscallError("stat", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	if err := unix.Renameat(d.fd(), newSocket, d.fd(), file); err != nil {
		return nil, errors.Join(os.NewSyscallError("rename", err), l.Close())
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // by path, and whose it is by then isn't asked
	}
	return &listener{Listener: l, dir: d, file: file, dev: st.Dev, ino: st.Ino}, nil
}

func (d folder) mustBeFree(file string) error {
	alive, err := d.alive(file)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case alive:
		return ErrInUse
	}
	return nil
}

// alive tells whether somebody listens on a socket. Only a refused connection says no: a full queue, for one, is somebody's.
func (d folder) alive(file string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd(), file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, os.NewSyscallError("stat "+file, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false, fmt.Errorf("%s is no socket", file)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: d.path(file)})
	return !errors.Is(err, unix.ECONNREFUSED), nil
}

func (d folder) bind(a Access) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), newSocket) //nolint:gosec // a descriptor
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: d.path(newSocket)}); err != nil {
		err = os.NewSyscallError("bind", err)
	} else if err = d.give(a); err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// give sets the new socket's group and mode. Nobody listens yet, so nobody can have connected under the umask's.
func (d folder) give(a Access) error {
	mode := uint32(0o600)
	gid, several := a.group()
	if several {
		mode = 0o666
	} else if gid > 0 {
		mode = 0o660
		if err := unix.Fchownat(d.fd(), newSocket, -1, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("give to group %d: %w", gid, err)
		}
	}
	// The name was made by us a moment ago in a folder that only we write.
	return os.NewSyscallError("chmod", unix.Fchmodat(d.fd(), newSocket, mode, 0))
}

type listener struct {
	net.Listener
	dir  folder
	file string
	dev  uint64
	ino  uint64
}

// Close removes the socket first: while somebody listens on it nobody else takes the name.
func (l *listener) Close() error {
	var st unix.Stat_t
	if unix.Fstatat(l.dir.fd(), l.file, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == l.dev && st.Ino == l.ino {
		unix.Unlinkat(l.dir.fd(), l.file, 0)
	}
	err := l.Listener.Close()
	if err == nil {
		l.dir.Close()
	}
	return err
}

// names are those that sockets in the folder have. A folder that isn't there has none.
func names(runDir string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(runDir, socketsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found []string
	for _, e := range list {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && e.Type()&fs.ModeSocket != 0 && checkName(name) == nil {
			found = append(found, name)
		}
	}
	return found, err
}

// Sweep removes the sockets on which nobody listens: what killed supervisors left. It returns their names.
func Sweep(runDir string) (removed []string, err error) {
	list, err := names(runDir)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	d, err := openFolder(runDir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, name := range list {
		alive, aerr := d.alive(name + suffix)
		if errors.Is(aerr, unix.ENOENT) || aerr == nil && alive {
			continue
		}
		if aerr == nil {
			aerr = os.NewSyscallError("unlink", unix.Unlinkat(d.fd(), name+suffix, 0))
		}
		if aerr != nil {
			err = errors.Join(err, fmt.Errorf("sweep control socket %s: %w", name, aerr))
			continue
		}
		removed = append(removed, name)
	}
	return removed, err
}

// dial connects to a supervisor, and makes sure that it is one: root, or the user who asks. Whoever else listens there could
// show a list of his making, and be told what to do.
func dial(ctx context.Context, runDir, name string) (net.Conn, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	d, err := openFolder(runDir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", d.path(name+suffix))
	if err != nil {
		return nil, err
	}
	if err := checkSupervisor(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func checkSupervisor(c net.Conn) error {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) //nolint:gosec // a descriptor
	if err := errors.Join(cerr, err); err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d listens there, want root or user %d", cred.Uid, os.Geteuid())
	}
	return nil
}
