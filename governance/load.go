// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"agentrun/internal/read"
)

// maxFileBytes bounds a file of plans; the built-in one has 3 KiB, and the YAML parser is quadratic in places.
const maxFileBytes = 256 << 10

// Sources says where plans come from, besides the built-in ones.
type Sources struct {
	Files []string // of two plans or roles with one name the later file's counts, as a whole; missing files are empty
}

// DefaultFiles are /etc/agentrun/plans.yaml and agentrun/plans.yaml in the user's configuration folder.
func DefaultFiles(getenv func(string) string) []string {
	files := []string{"/etc/agentrun/plans.yaml"}
	// The XDG specification: relative paths are to be ignored.
	if x := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(x) {
		return append(files, filepath.Join(x, "agentrun/plans.yaml"))
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return append(files, filepath.Join(h, ".config/agentrun/plans.yaml"))
	}
	return files
}

// Load returns the built-in plans and those of the files. A file that is there and can't be read, that others could have written, or that has
// anything wrong in it, is an error: no plan is used in part.
func Load(s Sources) (Plans, error) {
	p := Builtin()
	for _, name := range s.Files {
		data, info, err := read.Regular(name, maxFileBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = read.Trusted(name, info)
		}
		if err != nil {
			return Plans{}, fmt.Errorf("plans: %w", err)
		}
		own, err := Parse(name, data)
		if err != nil {
			return Plans{}, err
		}
		maps.Copy(p.Plans, own.Plans)
		maps.Copy(p.Roles, own.Roles)
	}
	return p, nil
}
