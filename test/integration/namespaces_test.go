// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"strings"
	"testing"
)

// THREATS "namespaces and mounts"; M-1, M-2, M-4.

func TestNamespaces(t *testing.T) {
	var attacks []attack
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"} {
		attacks = append(attacks,
			attack{try: "unshare " + kind, want: "EPERM@unshare"},
			// The flags of clone3 lie behind a pointer: libc is told to fall
			// back to clone, where they are in a register.
			attack{try: "clone3 " + kind, want: "ENOSYS@clone3"},
			// Joining one's own namespace again is how rights over it are got.
			attack{try: "setns " + kind, want: "EPERM@setns"},
		)
		if kind != "time" { // clone can't make a time namespace: the bit is part of the signal
			attacks = append(attacks, attack{try: "clone " + kind, want: "EPERM@clone"})
		}
	}
	attacks = append(attacks,
		attack{try: "unshare user 1", want: "EPERM@unshare"}, // a 33rd bit beside the flag
		attack{try: "setns-pidfd 1", want: "EPERM@setns"},
		attack{try: "setns-pidfd 2", want: "EPERM@setns|ESRCH"}, // the agent's own pid, whatever it is
		// The namespaces of pid 1 (same user) must not even open.
		attack{try: "setns mnt 1", want: "EACCES"},
		attack{try: "setns user 1", want: "EACCES"},
	)
	attempt(t, opts{}, attacks)
}

func TestMounts(t *testing.T) {
	attempt(t, opts{}, []attack{
		{try: "mount tmpfs", want: "EPERM@mount"},
		{try: "mount proc", want: "EPERM@mount"},
		{try: "mount sysfs", want: "EPERM@mount"},
		{try: "mount overlay /tmp/sandbox lowerdir=/", want: "EPERM@mount"},
		{try: "mount-bind / /tmp/sandbox", want: "EPERM@mount"},
		{try: "mount-bind /proc/1/root /tmp/sandbox", want: "EPERM@mount"},
		{try: "mount-remount /", want: "EPERM@mount"},
		{try: "mount-remount /workspace", want: "EPERM@mount"},
		{try: "mount-remount /usr", want: "EPERM@mount"},
		{try: "mount-remount /proc", want: "EPERM@mount"},
		{try: "mount-propagation", want: "EPERM@mount"},
		{try: "umount /proc", want: "EPERM@umount2"},
		{try: "umount /tmp/sandbox", want: "EPERM@umount2"},
		{try: "umount /workspace", want: "EPERM@umount2"},
		{try: "umount /", want: "EPERM@umount2"},
		{try: "pivot_root", want: "EPERM@pivot_root"},
		{try: "chroot .", want: "EPERM@chroot"},
		{try: "chroot /tmp/sandbox", want: "EPERM@chroot"},
		// The new mount API, call by call.
		{try: "open_tree /", want: "EPERM@open_tree"},
		{try: "open_tree /proc", want: "EPERM@open_tree"},
		{try: "move_mount", want: "EPERM@move_mount"},
		{try: "fsopen tmpfs", want: "EPERM@fsopen"},
		{try: "fsopen cgroup2", want: "EPERM@fsopen"},
		{try: "fsconfig", want: "EPERM@fsconfig"},
		{try: "fsmount", want: "EPERM@fsmount"},
		{try: "fspick", want: "EPERM@fspick"},
		{try: "mount_setattr", want: "EPERM@mount_setattr"},
		// They list the mounts of the namespace with their host sources.
		{try: "statmount", want: "ENOSYS@statmount"},
		{try: "listmount", want: "ENOSYS@listmount"},
		// The shocker: an inode by number, past every mount.
		{try: "open_by_handle_at /", want: "EPERM@open_by_handle_at"},
		{try: "open_by_handle_at /usr", want: "EPERM@open_by_handle_at"},
		{try: "open_by_handle_at /workspace", want: "EPERM@open_by_handle_at"},
		{try: "name_to_handle_at /usr", want: "EPERM@name_to_handle_at"},
		// CVE-2022-0492.
		{try: "release_agent", want: "EPERM@mount"},
		{try: "mount cgroup /tmp/sandbox memory", want: "EPERM@mount"},
		{try: "mount cgroup2", want: "EPERM@mount"},
		{try: "mknod char", want: "EPERM@mknodat"},
		{try: "mknod block", want: "EPERM@mknodat"},
	})
}

// Every namespace of M-1 is the run's own, and none of two that live at the same
// time is the same.
func TestNamespacesAreOwn(t *testing.T) {
	needSandbox(t)
	host := map[string]bool{}
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"} {
		if ns, err := os.Readlink("/proc/self/ns/" + kind); err == nil {
			host[ns] = true
		}
	}
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var calls []*call
	for range 2 {
		c := prepare(t, opts{stdin: stdin}, "/probe", "ns", ",", "wait")
		c.startUntil(t, "ready")
		calls = append(calls, c)
	}
	hold.Close()
	seen := map[string]bool{}
	for _, c := range calls {
		got := strings.Split(value(t, c.finish(t), "ns"), "|")
		if len(got) != len(host) {
			t.Errorf("the sandbox shows %d namespaces, the host has %d kinds", len(got), len(host))
		}
		for _, ns := range got {
			if host[ns] {
				t.Errorf("the sandbox is in the host's %s (M-1)", ns)
			}
			if seen[ns] {
				t.Errorf("two runs share %s (M-1)", ns)
			}
			seen[ns] = true
		}
	}
}
