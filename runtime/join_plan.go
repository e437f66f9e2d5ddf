// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// planJoin is the run's plan with another command: what is not said about that stays as it is.
func (l *launch) planJoin(ask *Join) (*Plan, error) {
	if err := ask.check(); err != nil {
		return nil, err
	}
	p := *l.plan
	p.TTY, p.Env = ask.TTY, slices.Clone(l.plan.Env)
	if ask.Cwd != "" {
		p.Cwd = path.Clean(ask.Cwd)
		setEnv(&p.Env, "PWD="+p.Cwd)
	}
	for _, kv := range ask.Env {
		setEnv(&p.Env, kv)
	}
	root, err := openJoinRoot(l.initPID)
	if err != nil {
		return nil, err
	}
	defer root.close()
	p.Command, err = looks(root.look).resolve(ask.Command, cmp.Or(getEnv(p.Env, "PATH"), defaultPath))
	return &p, err
}

func setEnv(env *[]string, kv string) {
	name, _, _ := strings.Cut(kv, "=")
	others := slices.DeleteFunc(*env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
	*env = append(others, kv)
}

func getEnv(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// joinRoot looks into the root of a live sandbox, as it is now, with what the agent has made there. Links
// lead nowhere but inside, whatever the agent puts in their place meanwhile (openat2(2), RESOLVE_IN_ROOT):
// what is found is held by descriptor.
type joinRoot struct {
	dir  *os.File
	seen []*os.File
}

func openJoinRoot(initPID int) (*joinRoot, error) {
	dir, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", initPID), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &joinRoot{dir: dir}, nil
}

func (r *joinRoot) close() {
	for _, f := range append(r.seen, r.dir) {
		f.Close()
	}
}

// joinLooks is how often a path is looked at anew that somebody renames meanwhile.
const joinLooks = 32

// look is a looks. The name is good until close.
func (r *joinRoot) look(inside string) (string, fs.FileInfo, error) {
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	below := cmp.Or(strings.TrimPrefix(path.Clean(inside), "/"), ".")
	fd, err := -1, error(unix.EAGAIN)
	for i := 0; i < joinLooks && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); i++ {
		fd, err = unix.Openat2(int(r.dir.Fd()), below, &how)
	}
	if err != nil {
		return "", nil, err
	}
	f := os.NewFile(uintptr(fd), inside)
	r.seen = append(r.seen, f)
	info, err := f.Stat()
	return fmt.Sprintf("/proc/self/fd/%d", fd), info, err
}
