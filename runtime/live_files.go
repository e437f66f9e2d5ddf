// SPDX-License-Identifier: Apache-2.0

package runtime

import "agentrun/fsjail"

// Files are those of the run, as its agent sees and may use them; also of one that is frozen. Those of a run that is over are gone: each
// call gives an error then.
func (v *Live) Files() (*fsjail.Files, error) {
	if v.life.Err() != nil {
		return nil, ErrEnded
	}
	agent := v.launch.ids.hostAgent()
	return fsjail.FilesOf(v.launch.agentFD, fsjail.IDs{UID: agent, GID: agent}, v.launch.guarded.shown()), nil
}

// Over is closed when no process of the run is left, before it is taken down.
func (v *Live) Over() <-chan struct{} { return v.life.Done() }

// Folder is where the agent was started: what a path that doesn't begin with a slash is below.
func (v *Live) Folder() string { return v.launch.plan.Cwd }
