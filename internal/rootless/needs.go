// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/subid"
)

// MissingError is one thing without which an ordinary user can't have sandboxes.
type MissingError struct {
	Name string // stable: userns, account, subordinate-ids, newuidmap, cgroup-delegation
	Why  string
	Get  string
}

func (e *MissingError) Error() string { return e.Name + ": " + e.Why }

// host is what is looked at before entering; tests bring their own.
type host struct {
	uid     int
	name    string // of the user's account; empty: there is none
	foreign bool   // the account is not in /etc/passwd, so usermod(8) can't change it
	// sysctl reads a file of /proc/sys; "" where there is none.
	sysctl func(name string) string
	read   func(name string) ([]byte, error)
	tool   func(name string) (string, error)
}

func thisHost() host {
	h := host{uid: os.Getuid(), sysctl: sysctl, read: os.ReadFile, tool: tool}
	if u, err := user.LookupId(strconv.Itoa(h.uid)); err == nil {
		h.name = u.Username
	} else {
		h.name, h.foreign = askedName(h.uid), true
	}
	return h
}

// askedName returns the name that the host's name services have for a user id; empty: none. This program is static and reads
// /etc/passwd alone, but newuidmap asks the name services: users of LDAP and of systemd's DynamicUser= have a name only there.
// getent(1) is the host's own way to ask them.
func askedName(uid int) string {
	at, err := tool("getent")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // a directory server that is away
	defer cancel()
	cmd := exec.CommandContext(ctx, at, "passwd", strconv.Itoa(uid))
	cmd.Env = []string{}
	answer, err := cmd.Output()
	if err != nil {
		return ""
	}
	return accountName(string(answer), uid)
}

// accountName returns the name in a line of passwd(5), if the line is of this user id.
func accountName(line string, uid int) string {
	f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
	if len(f) != 7 || f[2] != strconv.Itoa(uid) {
		return ""
	}
	return f[0]
}

func sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b))
}

// mapping is what newuidmap and newgidmap are asked for.
type mapping struct {
	uids, gids   subid.Range
	uidmap, gmap string // the programs
}

// Missing lists what stands in the way of Enter; nothing: nothing does.
func Missing() []*MissingError {
	_, missing := thisHost().mapping()
	return missing
}

func (h host) mapping() (m mapping, missing []*MissingError) {
	note := func(err *MissingError) {
		if err != nil {
			missing = append(missing, err)
		}
	}
	ranges := func(file string) subid.Range {
		r, err := h.ranges(file)
		note(err)
		return r
	}
	program := func(name string) string {
		at, err := h.tool(name)
		if err != nil {
			note(&MissingError{"newuidmap", err.Error(), "install the package uidmap (Debian, Ubuntu) or shadow-utils (Fedora)"})
		}
		return at
	}
	note(h.namespaces())
	note(h.account())
	m.uids, m.gids = ranges("/etc/subuid"), ranges("/etc/subgid")
	m.uidmap, m.gmap = program("newuidmap"), program("newgidmap")
	return m, missing
}

// join makes one error of them, on one line: a line end would be told as \n, since it could be somebody's.
func join(missing []*MissingError) (err error) {
	for _, m := range missing {
		if err == nil {
			err = m
			continue
		}
		err = fmt.Errorf("%w; %w", err, m)
	}
	return err
}

// namespaces: the switches of the kernel and of distributions that keep ordinary users from having user namespaces.
func (h host) namespaces() *MissingError {
	for _, s := range []struct{ name, off, get string }{
		{"user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"},
		{"kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1 (Debian)"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "an AppArmor profile for agentrun with the rule userns, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"},
	} {
		if h.sysctl(s.name) == s.off {
			return &MissingError{"userns", strings.ReplaceAll(s.name, "/", ".") + " is " + s.off, s.get}
		}
	}
	return nil
}

// account refuses a user without a name before newuidmap does: that one ends with "Cannot determine your user name".
func (h host) account() *MissingError {
	if h.name != "" {
		return nil
	}
	return &MissingError{
		"account", fmt.Sprintf("user id %d has no name in /etc/passwd or another name service, and newuidmap serves only users with one", h.uid),
		fmt.Sprintf("let `getent passwd %d` answer: an account (useradd), or the name service that has it (LDAP: libnss-ldapd or libnss-sss; DynamicUser=: libnss-systemd)", h.uid),
	}
}

func (h host) ranges(file string) (subid.Range, *MissingError) {
	who := h.name
	if who == "" {
		who = strconv.Itoa(h.uid)
	}
	get := "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + who + " (as root; a range that nobody else has)"
	if h.foreign { // usermod changes what is in /etc/passwd only
		get = "the line " + who + ":100000:65536 in /etc/subuid and in /etc/subgid (as root; a range that nobody else has)"
	}
	text, err := h.read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return subid.Range{}, &MissingError{"subordinate-ids", err.Error(), get}
	}
	list, err := subid.Of(string(text), h.name, uint32(h.uid)) //nolint:gosec // uids have 32 bits
	if err != nil {
		return subid.Range{}, &MissingError{"subordinate-ids", file + ": " + err.Error(), "correct that line"}
	}
	r, ok := subid.Largest(list)
	if !ok || r.Count < MinIDs {
		return r, &MissingError{"subordinate-ids", fmt.Sprintf("%s gives user %s %d ids in one range, want at least %d: agents would share the user's own id (M-1)", file, who, r.Count, MinIDs), get}
	}
	return r, nil
}

// tool finds a program that the system gave more rights than we have. Never in PATH: it would be the one thing here that somebody else
// could have chosen.
func tool(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/bin", "/run/wrappers/bin"} {
		at := filepath.Join(dir, name)
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			continue
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return "", fmt.Errorf("%s is not root's alone", at)
		}
		return at, nil
	}
	return "", fmt.Errorf("%s is not installed", name)
}
