// SPDX-License-Identifier: Apache-2.0

// Package precheck asks the gateway's program, before a run starts, what it would refuse at the run's first connection: a mistake
// in what the run brings is told before anything starts, and a policy of the operator's is asked whether the run may be.
//
//	verdict, err := precheck.Ask(precheck.Question{Program: gateway, Start: start, Env: env, Named: file.Named, Folder: dir})
//
// The program takes as long to start as three warm starts of a run. A yes of which it says that it holds for every run that brings
// the same is kept in a folder, by the digest of all that it follows from: agentrun's version, the program, what the run brings
// (the configuration's text among it), the variables that secrets come from, and the files that the configuration names, by what
// stat(2) tells of them. A no, and what a policy said, is never kept.
//
// A kept yes spares a diagnosis and decides nothing: the gateway, which is given the same text, reads and refuses all of it again
// at its start. So a file that changes within one tick of the clock of its file system, or a system-wide list of authorities that
// becomes unreadable, costs the early word and no more.
//
// It fails closed: a folder or a file in it that others could have written, that is damaged or can't be read means that the
// program is asked. Errors are *read.InvalidError, with what is wrong, or tell why the program couldn't be asked.
package precheck

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/internal/kept"
	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// Question is about one run.
type Question struct {
	Program string      // the gateway's, by its absolute path
	Start   link.Start  // who runs, and what the run brings: all that the gateway would be told of it
	Env     []string    // as the gateway would have it
	Named   []string    // absolute paths that the configuration names
	Folder  string      // where a yes is kept; empty: nowhere
	Warn    func(error) // hears why nothing can be kept
}

// exitDenied is the code that the program ends with after a policy's no; the verdict is its output.
const exitDenied = 3

// Ask returns what the program says, or has said of what is the same.
func Ask(q Question) (link.Verdict, error) {
	yes := link.Verdict{Allowed: true}
	answers := kept.Folder{Path: q.Folder, Magic: "agentrun-checked\x00\x00\x00\x01", Max: 0, Files: 256}
	key, err := q.key()
	if err != nil {
		return link.Verdict{}, err
	}
	if q.Folder != "" {
		_, err := answers.Get(key)
		if err == nil {
			return yes, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			q.Warn(err)
		}
	}
	v, holds, err := q.ask()
	if err != nil || !v.Allowed {
		return v, err
	}
	// What changed meanwhile was perhaps not what the program saw.
	if again, err := q.key(); holds && q.Folder != "" && err == nil && again == key {
		if err := errors.Join(os.MkdirAll(q.Folder, 0o700), answers.Put(key, nil)); err != nil {
			q.Warn(err)
		}
	}
	return yes, nil
}

func (q Question) ask() (v link.Verdict, holds bool, err error) {
	text, err := json.Marshal(q.Start)
	if err != nil {
		return v, false, err
	}
	var complaint strings.Builder
	cmd := exec.Command(q.Program, "check")
	cmd.Env = append([]string{"GOTRACEBACK=single"}, q.Env...) // an empty list would be ours
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), &complaint
	answer, err := cmd.Output()
	if err == nil {
		return link.Verdict{Allowed: true}, string(answer) == link.Holds, nil
	}
	exited, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return v, false, err
	}
	if exited.ExitCode() == exitDenied && json.Unmarshal(answer, &v) == nil {
		v.Allowed = false
		return v, false, nil
	}
	invalid := &read.InvalidError{}
	for line := range strings.Lines(complaint.String()) {
		invalid.Problems = append(invalid.Problems, read.Problem{Message: strings.TrimSpace(line)})
	}
	if len(invalid.Problems) == 0 {
		return link.Verdict{}, false, fmt.Errorf("check of the gateway's configuration: %w", err) // killed
	}
	return link.Verdict{}, false, invalid
}

// key is the digest of all that an answer which holds follows from.
func (q Question) key() (kept.Key, error) {
	start := q.Start
	start.Caller, start.Ring = link.Caller{}, rings.Sandbox // what holds is true of everybody
	if k := q.Start.Caller.Key; k != nil {
		// But for this: the built-in policies hold a key to its capabilities, and to a role (M-9).
		start.Caller = link.Caller{Role: q.Start.Caller.Role, Key: &link.Key{May: k.May}}
	}
	sum := sha256.Sum256(start.Config.Text)
	start.Config.Text = sum[:]
	from := struct {
		Start      link.Start
		Program    []byte
		Env, Named [][]byte // not strings: as JSON, two that aren't UTF-8 could be one
	}{Start: start, Program: identity(q.Program)}
	for _, v := range q.Env {
		from.Env = append(from.Env, []byte(v))
	}
	for _, name := range q.Named {
		from.Named = append(from.Named, identity(name))
	}
	text, err := json.Marshal(from)
	return sha256.Sum256(text), err
}

// identity tells one state of a file from every other. A folder's content is not part of it: those that matter, of policies, make
// an answer that doesn't hold.
func identity(path string) []byte {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	who := fmt.Appendf(nil, "%s\x00%v %d %d %o %d %d", path, err, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return who
	}
	return fmt.Appendf(who, " %d %d %d", st.Size, st.Mtim, st.Ctim)
}
