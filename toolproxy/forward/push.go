// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"agentrun/toolproxy/egress"
)

// push counts the references that a push over HTTP changes, for the record: what an agent has published is what people look for
// first. It reads the list of commands at the beginning of the request (gitprotocol-pack(5), "Reference Update Request"), and nothing
// of the objects behind it. It decides nothing. What it can't read, servers can: a list that is packed by gzip, or signed.
type push struct {
	repository string
	refs       atomic.Int64
	odd        atomic.Bool // there is more than refs

	line []byte // begun and not yet whole
	over bool
}

const (
	pushService    = "/git-receive-pack"
	maxPushRecord  = 200 // bytes of a repository's path
	shortestUpdate = 40 + 1 + 40 + 1
)

// pushTo returns nil for what is no push; nil counts nothing.
func pushTo(a egress.Ask) *push {
	repository, ok := strings.CutSuffix(a.Path.String(), pushService)
	if !ok || a.Method != "POST" {
		return nil
	}
	return &push{repository: repository[:min(len(repository), maxPushRecord)]}
}

// read is given the request's body as it goes up. A line is "LLLL" in hexadecimal, which counts itself, and its text; 0000 ends the
// commands.
func (p *push) read(b []byte) {
	if p == nil || p.over {
		return
	}
	for p.line = append(p.line, b...); len(p.line) >= 4; {
		size, err := strconv.ParseUint(string(p.line[:4]), 16, 16)
		if err != nil || size <= 4 {
			p.line, p.over = nil, true
			if err != nil || size != 0 {
				p.odd.Store(true)
			}
			return
		}
		if uint64(len(p.line)) < size {
			return
		}
		if isUpdate(p.line[4:size]) {
			p.refs.Add(1)
		} else if bytes.HasPrefix(p.line[4:size], []byte("push-cert")) {
			p.odd.Store(true)
		}
		p.line = p.line[size:]
	}
}

// isUpdate tells "OLD NEW NAME" from the lines about shallow clones and certificates. Ids are SHA-1, or SHA-256.
func isUpdate(line []byte) bool {
	return len(line) > shortestUpdate && line[40] == ' ' && line[81] == ' ' || len(line) > 130 && line[64] == ' ' && line[129] == ' '
}

// String is empty for what changes no reference, as git's first try is, by which it asks whether it may.
func (p *push) String() string {
	switch {
	case p == nil:
		return ""
	case p.odd.Load():
		return ", push to " + p.repository + " that can't be read"
	case p.refs.Load() == 0:
		return ""
	}
	return fmt.Sprintf(", push of %d refs to %s", p.refs.Load(), p.repository)
}
