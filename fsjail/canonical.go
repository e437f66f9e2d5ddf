// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Canonical resolves a host path the operator named and says what it is. Build later opens the result
// without following any link, so a path that changes in between is refused, not followed.
func Canonical(name string) (string, os.FileInfo, error) { return new(Resolver).Canonical(name) }

// Resolver is Canonical for many paths of one plan: a folder that several of them are in is looked at once. It is for one plan, not
// for two: what it has seen of a folder, it doesn't look at again. The zero value is ready; it is for one goroutine.
type Resolver struct {
	folders map[string]folder
}

type folder struct {
	canonical string
	err       error
}

// maxFollowed bounds the links followed here; filepath.EvalSymlinks, which takes over, has the last word on chains and circles.
const maxFollowed = 8

// Canonical is as the function.
func (r *Resolver) Canonical(name string) (string, os.FileInfo, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", nil, err
	}
	return r.resolve(abs, 0)
}

// resolve takes a clean absolute path.
func (r *Resolver) resolve(name string, followed int) (string, os.FileInfo, error) {
	if name == "/" || followed > maxFollowed {
		return evalSymlinks(name)
	}
	dir, err := r.folder(filepath.Dir(name), followed)
	if err != nil {
		return "", nil, err
	}
	name = filepath.Join(dir, filepath.Base(name))
	info, err := os.Lstat(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return evalSymlinks(name) // says it in its own words
	case err != nil:
		return "", nil, err
	case info.Mode().Type() != fs.ModeSymlink:
		return name, info, nil
	}
	link, err := os.Readlink(name)
	// In a clean link text, whatever ".." there is comes first and is counted from a folder without links: Join is exact. In another
	// one it may stand behind a name that is a link itself.
	if err != nil || filepath.Clean(link) != link {
		return evalSymlinks(name)
	}
	if !filepath.IsAbs(link) {
		link = filepath.Join(dir, link)
	}
	return r.resolve(link, followed+1)
}

func (r *Resolver) folder(name string, followed int) (string, error) {
	if name == "/" {
		return name, nil
	}
	if f, ok := r.folders[name]; ok {
		return f.canonical, f.err
	}
	canonical, _, err := r.resolve(name, followed)
	if r.folders == nil {
		r.folders = map[string]folder{}
	}
	r.folders[name] = folder{canonical, err}
	return canonical, err
}

func evalSymlinks(name string) (string, os.FileInfo, error) {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return "", nil, err
	}
	info, err := os.Lstat(name)
	return name, info, err
}
