// SPDX-License-Identifier: Apache-2.0

// Package config reads the files that an operator configures a node by: config.yaml, and what of gateway.yaml the supervisor
// needs.
//
//	gw, err := config.ReadGateway("", nil, false) // /etc/agentrun/gateway.yaml, if there is one
//	start.Config = link.Config{Path: gw.Path, Text: gw.Text}
//
// Guarantees. A file is opened once, held to be its operator's alone (owner and mode, of the descriptor that is read), and from
// then on is a value: whoever needs something of it for the same run is given the value, never the path, so what the sandbox is
// built with, what is checked and what decides are one version of the file, whatever is put in its place meanwhile.
//
// Errors. fs.ErrPermission: somebody else could have written the file. fs.ErrNotExist: one that was named isn't there. What is
// wrong with its text is a *read.InvalidError. The gateway alone reads all of gateway.yaml and is strict about it.
//
// It does not protect against whoever may write the folders on the way to a file: the file must still be root's or the user's.
// Files that gateway.yaml names (secrets, policies, authorities) are read by the gateway at its start.
package config

import (
	"path/filepath"

	"agentrun/internal/read"
)

// File is a file as it was when it was read. The zero value is none.
type File struct {
	Path string // absolute
	Text []byte
}

// Read returns the file at path, of at most that many bytes.
func Read(path string, most int) (File, error) {
	text, err := read.File(path, read.OthersMayWrite, most)
	if err != nil {
		return File{}, err
	}
	path, err = filepath.Abs(path)
	return File{path, text}, err
}
