// SPDX-License-Identifier: Apache-2.0

package read

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// State reads what Replace has written: an object with exactly v's fields, of which "version" has to be this one. fs.ErrNotExist: there is
// none.
func State(path string, most, version int, v any) error {
	text, _, err := Regular(path, most)
	if err != nil {
		return err
	}
	var of struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(text, &of) == nil && of.Version != version {
		return fmt.Errorf("%s has version %d, and this agentrun knows %d", path, of.Version, version)
	}
	if err := Exactly(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Replace writes v as JSON to a file of ours, mode 0600, in a folder that nobody else writes. Whatever dies, the file is the old or the new,
// and when Replace returns nil the new one is on the disk. written, unless nil, is called in between.
func Replace(path string, v any, written func() error) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if written != nil {
		if err := written(); err != nil {
			return err
		}
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
