// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// maxAccounts bounds a file of accounts in a supplied root.
const maxAccounts = 1 << 20

// The agent in /etc/passwd and /etc/group.
var agentUser, agentGroup = fmt.Sprintf("agent:x:%d:%d:agent:%s:/bin/sh\n", agentID, agentID, HomeDir), fmt.Sprintf("agent:x:%d:\n", agentID)

// accounts gives the agent a name in a supplied root that has none for its ids, as engines do: ssh, PostgreSQL, Node's os.userInfo and
// whoami end without. Where the run may write its root the files stay the root's, since a program that adds a user renames another over
// them.
func (l *launch) accounts() (list []fsjail.Entry, err error) {
	i := slices.IndexFunc(l.plan.Entries, func(e fsjail.Entry) bool { return e.Target == "/etc" && e.Kind == fsjail.Bind })
	if i < 0 {
		return nil, nil
	}
	for name, line := range map[string]string{"passwd": agentUser, "group": agentGroup} {
		text, ok := accountsIn(filepath.Join(l.plan.Entries[i].Source, name))
		if _, shown := view(l.plan.Entries).at("/etc/" + name); shown || !ok { // the operator's own
			continue
		}
		file := filepath.Join(l.dir, name)
		if err := os.WriteFile(file, []byte(text+line), 0o444); err != nil { //nolint:gosec // public inside
			return nil, fmt.Errorf("accounts of the root view: %w", err)
		}
		list = append(list, fsjail.Entry{Kind: fsjail.Bind, Target: "/etc/" + name, Source: file, IsFile: true, Why: "the root's, and the agent"})
	}
	return list, nil
}

// accountsIn reads a file of accounts; false: there is nothing to add to, as where somebody has the agent's id, or where it isn't
// everybody's to read.
func accountsIn(name string) (string, bool) {
	f := openPlain(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if f == nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Mode().Perm()&0o004 == 0 || info.Size() > maxAccounts {
		return "", false
	}
	b, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	text := string(b)
	for line := range strings.SplitSeq(text, "\n") {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[2] == fmt.Sprint(agentID) {
			return "", false
		}
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text, err == nil
}
