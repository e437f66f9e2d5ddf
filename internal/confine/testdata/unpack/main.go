// SPDX-License-Identifier: Apache-2.0

// Command unpack gives up what agentrun-image does, and then tries what must and what must not work. Each line of its output is
// "name: ok" or "name: error". It is built without cgo, as agentrun-image is.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/confine"
)

func main() {
	var o confine.UnpackOptions
	outside := flag.String("outside", "", "a folder with a file")
	read := flag.String("read", "", "")
	flag.StringVar(&o.Tree, "tree", "", "")
	flag.BoolVar(&o.Network, "network", false, "")
	flag.Parse()
	o.Read = []string{*read}
	threads()
	err := confine.Unpack(o)
	say("drop", err)
	if err != nil {
		os.Exit(1)
	}
	threads()
	works(o.Tree, *read, o.Network)
	refused(o.Tree, *outside)
}

func say(name string, err error) {
	text := "ok"
	if err != nil {
		text = err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			text = unix.ErrnoName(errno)
		}
	}
	fmt.Printf("%s: %s\n", name, text)
}

func threads() {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			goruntime.LockOSThread()
			defer goruntime.UnlockOSThread()
			time.Sleep(10 * time.Millisecond)
		})
	}
	wg.Wait()
}

func works(tree, read string, network bool) {
	in := func(names ...string) string { return filepath.Join(append([]string{tree}, names...)...) }
	say("work folder", os.Mkdir(in("d"), 0o755))
	say("work write", os.WriteFile(in("d", "f"), []byte("x"), 0o600))
	say("work symlink", os.Symlink("/etc/passwd", in("l")))
	say("work remove", errors.Join(os.WriteFile(in("x"), nil, 0o600), os.Remove(in("x")), os.Mkdir(in("y"), 0o700), os.Remove(in("y"))))
	say("work times", os.Chtimes(in("d", "f"), time.Unix(1, 0), time.Unix(1, 0)))
	f, err := os.Open(in("d", "f"))
	if err == nil {
		err = errors.Join(f.Chmod(0o640), f.Close())
	}
	say("work mode", err)
	say("work link between folders", os.Link(in("d", "f"), in("hard")))
	if os.Geteuid() == 0 {
		say("work owner", errors.Join(os.Lchown(in("d"), 5, 5), os.WriteFile(in("d", "g"), nil, 0o600)))
	}
	_, err = os.ReadFile(read)
	say("work read", err)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if network {
		say("work socket", err)
	} else {
		say("try socket", err)
	}
	_ = unix.Close(s)
}

func refused(tree, outside string) {
	file := filepath.Join(outside, "file")
	_, err := os.ReadFile(file)
	say("try read", err)
	_, err = os.ReadFile(filepath.Join(tree, "l"))
	say("try read by a link", err)
	_, err = os.ReadDir(outside)
	say("try list", err)
	say("try write", os.WriteFile(file, []byte("x"), 0o600))
	say("try make", os.WriteFile(filepath.Join(outside, "new"), nil, 0o600))
	say("try remove", os.Remove(file))
	say("try link in", os.Link(file, filepath.Join(tree, "stolen")))
	say("try link out", os.Link(filepath.Join(tree, "d", "f"), filepath.Join(outside, "left")))
	if os.Geteuid() == 0 {
		say("try own", os.Lchown(file, 7, 7))
		say("try date", os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)))
	}
	say("try chmod", os.Chmod(file, 0o777)) // fchmodat(2)
	if d, err := os.Open(tree); err == nil {
		say("try set-ID", unix.Fchmod(int(d.Fd()), 0o6755))
		d.Close()
	}
	say("try device", unix.Mknod(filepath.Join(tree, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	say("try pipe", unix.Mkfifo(filepath.Join(tree, "pipe"), 0o666))
	say("try rename", os.Rename(filepath.Join(tree, "hard"), filepath.Join(outside, "moved")))
	say("try mount", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	say("try namespace", unix.Unshare(unix.CLONE_NEWNS))
	say("try exec", exec.Command("/bin/true").Run())
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	say("try unix socket", err)
	_, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	say("try netlink", err)
	say("try user", unix.Setresuid(5, 5, 5))
	say("try kill", unix.Kill(os.Getppid(), 0))
	say("try trace", unix.PtraceAttach(os.Getppid()))
	say("try chroot", unix.Chroot(tree))
	_, err = os.ReadFile("/proc/self/environ")
	say("try environ", err)
}
