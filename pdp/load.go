// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"agentrun/internal/read"
)

// policySuffix of the files in a folder that count.
const policySuffix = ".cedar"

// Load returns the set of policies of a file, or of a folder's *.cedar files (not of its subfolders; names with a dot in front
// are left out). An empty path gives the built-in policies alone. What is wrong comes as a *read.InvalidError.
func Load(path string) (*Set, error) {
	if path == "" {
		return Compile(nil)
	}
	names, err := policyFiles(path)
	if err != nil {
		return nil, asProblems(path, err)
	}
	var files []File
	for _, name := range names {
		text, info, err := read.Regular(name, MaxPolicyFile)
		if err == nil {
			err = notForEveryone(info)
		}
		if err != nil {
			return nil, asProblems(name, err)
		}
		files = append(files, File{name, text})
	}
	return Compile(files)
}

func asProblems(name string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return read.Problems{{File: name, Message: err.Error()}}.Err()
}

var errNoPolicyFile = errors.New("there is no " + policySuffix + " file in it")

// policyFiles are sorted by name, as ReadDir gives them: the revision depends on it.
func policyFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	if err := notForEveryone(info); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), policySuffix) && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	switch {
	case len(names) == 0:
		return nil, errNoPolicyFile
	case len(names) > MaxFiles:
		return nil, fmt.Errorf("%d policy files, at most %d are allowed", len(names), MaxFiles)
	}
	return names, nil
}

// Whoever may write the policies decides them. A file that everybody may write is nobody's decision.
func notForEveryone(info fs.FileInfo) error {
	if info.Mode().Perm()&0o002 != 0 && (!info.IsDir() || info.Mode()&fs.ModeSticky == 0) {
		return fmt.Errorf("everybody may write it (mode %v)", info.Mode().Perm())
	}
	return nil
}

// fingerprint changes when a file does, as far as one can know without reading it. The change time is part of it because,
// unlike the modification time, no program can set it back.
func fingerprint(path string) (string, error) {
	names, err := policyFiles(path)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%q %d %d %v", name, info.Size(), info.ModTime().UnixNano(), info.Mode())
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(&b, " %d %d %d.%d", st.Dev, st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}
