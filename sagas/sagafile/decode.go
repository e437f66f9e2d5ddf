// SPDX-License-Identifier: Apache-2.0

package sagafile

import (
	"encoding/json"
	"errors"
	"path/filepath"

	"agentrun/internal/read"
)

// Parse reads a file; its error is a *read.InvalidError. name is for messages; paths in it are relative to dir, which is absolute.
func Parse(name string, data []byte, dir string) (File, error) {
	n := read.YAML(read.Source{File: name, Max: MaxFileBytes}, data)
	var f File
	n.Into(&f)
	for i := range f.Steps {
		f.Steps[i].settle(dir)
	}
	var c checker
	c.check(&f)
	if n.Empty() {
		c.errs = []error{errors.New("empty: a saga has at least name and steps")}
	}
	if err := n.Done(c.errs...); err != nil {
		return File{}, err
	}
	return f, nil
}

// settle gives a step the form that it has when it comes back from the journal, from whichever folder it is resumed.
func (s *Step) settle(dir string) {
	for _, c := range []*Command{s.Execute, s.Undo} {
		if c != nil && c.Workspace != "" && !filepath.IsAbs(c.Workspace) {
			c.Workspace = filepath.Join(dir, c.Workspace)
		}
	}
	if b, err := json.Marshal(s.Input); err == nil && s.Input != nil {
		_ = json.Unmarshal(b, &s.Input) // it was written a line above
	}
}

// ReadNode implements read.Reader: a ring that isn't said is 3.
func (c *Command) ReadNode(n *read.Node) {
	type plain Command
	c.Ring = 3
	n.Into((*plain)(c))
}
