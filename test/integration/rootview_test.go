// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// THREATS "root view"; M-2.

// tinyRoot is a supplied root with the probe in it and the folders a root has.
func tinyRoot(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for _, d := range []string{"proc", "dev", "tmp", "etc", "workspace", "bin", "run"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(probeBin)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "bin", "probe"), string(b), 0o755)
	write(t, filepath.Join(root, "etc", "mark"), "of the supplied root\n", 0o644)
	return root
}

func TestSuppliedRoot(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			root := tinyRoot(t)
			before := tree(t, root)
			r := run(t, opts{profile: profile, flags: []string{"--rootfs", root}}, "/bin/probe",
				"cat", "/etc/mark", ",", "ls", "/usr", ",", "create", "/etc/x", ",", "ls", "/proc/self/ns", ",", "create", "/tmp/sandbox/x", ",", "status", ",", "devices")
			r.want(t, r.exit, "exited")
			got := answers(r.stdout)
			if got["cat /etc/mark"] != "value=of the supplied root|" {
				t.Errorf("the file of the supplied root: got %s", got["cat /etc/mark"])
			}
			if got["ls /usr"] != "ENOENT" {
				t.Errorf("the host's /usr shows through: %s", got["ls /usr"])
			}
			if got["create /tmp/sandbox/x"] != "ok" {
				t.Errorf("scratch: got %s, want ok", got["create /tmp/sandbox/x"])
			}
			if !strings.Contains(got["devices"], "null c1:3") {
				t.Errorf("devices: got %s, want a minimal /dev", got["devices"])
			}
			if after := tree(t, root); after != before {
				t.Errorf("the supplied root was changed (M-2)\nbefore:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// A supplied root that has no name for the agent's ids is shown one, as by engines, in files that it has and everybody may read. What
// stands in the place of such a file, or below it on the host, is neither read nor changed.
func TestSuppliedRootKnowsTheAgent(t *testing.T) {
	needSandbox(t)
	const passwd, agent = "root:x:0:0:root:/root:/bin/sh", "agent:x:1000:1000:agent:/tmp/sandbox/home:/bin/sh"
	secret := write(t, filepath.Join(t.TempDir(), "secret"), "canary:x:1:1", 0o644)
	file := func(content string, mode os.FileMode) func(string) {
		return func(at string) { write(t, at, content, mode) }
	}
	for _, tt := range []struct {
		name    string
		make    func(at string)
		in, not string
	}{
		{"none of the id", file(passwd, 0o644), "root:/root:/bin/sh|" + agent, "none"},
		{"empty", file("", 0o644), "=" + agent, "none"},
		{"one of the id", file(passwd+"\nnode:x:1000:1000::/home/node:/bin/sh\n", 0o644), "node:x:1000", "agent:"},
		{"no file", func(string) {}, "ENOENT", "agent:"},
		{"nobody's to read", file(passwd, 0o600), "EACCES", "root"},
		{"a link out", func(at string) { _ = os.Symlink(secret, at) }, "ENOENT", "canary"},
		{"a pipe", func(at string) { _ = unix.Mkfifo(at, 0o644) }, "", "agent:"},
		{"too large", func(at string) { write(t, at, "", 0o644); _ = os.Truncate(at, 1<<21) }, "", "agent:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, profile := range []string{"ring3", "ring2"} {
				root := tinyRoot(t)
				tt.make(filepath.Join(root, "etc/passwd"))
				before := tree(t, root)
				argv := []string{"/bin/probe", "cat", "/etc/passwd"}
				if tt.in == "" {
					argv = []string{"/bin/probe", "status"}
				}
				r := run(t, opts{profile: profile, flags: []string{"--rootfs", root}}, argv...)
				got := answers(r.stdout)["cat /etc/passwd"]
				if r.status.State != "exited" || !strings.Contains(got, tt.in) || strings.Contains(got, tt.not) {
					t.Errorf("%s: %s (%s), got %q, want %q in it and not %q", profile, r.status.State, r.stderr, got, tt.in, tt.not)
				}
				if after := tree(t, root); after != before {
					t.Errorf("%s: the supplied root was changed\n%s\n%s", profile, before, after)
				}
			}
		})
	}
	own := write(t, filepath.Join(t.TempDir(), "own"), "of the operator", 0o644)
	root := tinyRoot(t)
	write(t, filepath.Join(root, "etc/passwd"), passwd, 0o644)
	r := run(t, opts{profile: "ring2", flags: []string{"--rootfs", root, "--ro-bind", own + ":/etc/passwd"}}, "/bin/probe", "cat", "/etc/passwd")
	if got := answers(r.stdout)["cat /etc/passwd"]; !strings.Contains(got, "of the operator") {
		t.Errorf("the operator's file is covered: %q\n%s", got, r.stderr)
	}
}

// M-2, M-7: a supplied root has a /run as images have, and the way out's sockets are in the sandbox's own.
func TestSuppliedRootWithAWayOut(t *testing.T) {
	p := newPlace(t)
	for _, ring := range []string{"1", "2", "3"} {
		root := tinyRoot(t)
		write(t, filepath.Join(root, "run", "of-the-root"), "x", 0o644)
		before := tree(t, root)
		r := p.do("exec", "--ring", ring, "--rootfs", root, "--", "/bin/probe", "ls", "/run", ",", "ls", "/run/agentrun")
		if got := answers(r.stdout); r.exit != 0 || strings.Contains(got["ls /run"], "of-the-root") || ring != "3" && !strings.Contains(got["ls /run/agentrun"], "tools.sock") {
			t.Errorf("ring %s: exit %d %v\n%s", ring, r.exit, got, r.stderr)
		}
		if after := tree(t, root); after != before {
			t.Errorf("ring %s: the supplied root was changed\n%s\n%s", ring, before, after)
		}
	}
}

// tree lists a folder with types, modes and owners: what a run must not change.
func tree(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*unixStat)
		rel, _ := filepath.Rel(root, path)
		b.WriteString(strings.Join([]string{rel, info.Mode().String(), itoa(st.Uid), itoa(st.Gid)}, " "))
		if info.Mode().IsRegular() {
			b.WriteString(" " + itoa(info.Size()))
		}
		b.WriteByte('\n')
		return nil
	})
	return b.String()
}

// Hostile roots: a link where the view will be mounted makes a careless
// runtime mount over, or create things in, the host (CVE-2019-19921,
// CVE-2021-30465, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881). The start
// must be refused with a word on what is wrong, or be harmless; in no case may
// the place the link leads to be touched.
func TestHostileRoot(t *testing.T) {
	needSandbox(t)
	for _, tt := range []struct {
		name   string
		at     string // the path in the root that becomes a link
		nested bool   // whether its parent stays
	}{
		{"proc", "proc", false}, {"dev", "dev", false}, {"sys", "sys", false}, {"tmp", "tmp", false}, {"workspace", "workspace", false},
		{"etc", "etc", false}, {"tmp-sandbox", "tmp/sandbox", true}, {"dev-null", "dev/null", true}, {"dev-pts", "dev/pts", true}, {"dev-shm", "dev/shm", true},
		{"dev-console", "dev/console", true}, {"proc-self", "proc/self", true}, {"etc-passwd", "etc/passwd", true}, {"etc-resolv", "etc/resolv.conf", true}, {"ptmx", "dev/ptmx", true},
	} {
		for kind, target := range map[string]func(string) string{
			"absolute": func(p string) string { return p },
			"relative": func(p string) string { return strings.Repeat("../", 30) + p[1:] },
			"proc":     func(string) string { return "/proc/self/root/etc" },
		} {
			t.Run(tt.name+" "+kind, func(t *testing.T) {
				root, victim := tinyRoot(t), t.TempDir()
				write(t, filepath.Join(victim, "canary"), "alive", 0o644)
				os.Chmod(victim, 0o777)
				link := filepath.Join(root, tt.at)
				if err := os.RemoveAll(link); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target(victim), link); err != nil {
					t.Fatal(err)
				}
				before, mounts := tree(t, victim), lines("/proc/self/mountinfo")
				got, r := try(t, opts{profile: "ring2", flags: []string{"--rootfs", root}}, "ok")
				_ = got
				if tree(t, victim) != before {
					t.Errorf("the link's target was changed:\n%s", tree(t, victim))
				}
				if now := lines("/proc/self/mountinfo"); len(now) != len(mounts) {
					t.Errorf("the host has %d mounts, had %d", len(now), len(mounts))
				}
				if r.exit == 125 && !strings.Contains(r.stderr, strings.Split(tt.at, "/")[0]) {
					t.Errorf("refused, but the message does not name %s:\n%s", tt.at, r.stderr)
				}
				if r.exit != 125 && r.exit != 3 {
					t.Errorf("got exit %d, want 125 (refused) or 3 (harmless)\n%s", r.exit, r.stderr)
				}
				if !tt.nested && r.exit != 125 {
					t.Errorf("a root whose /%s is a link was accepted, want a refusal", tt.at)
				}
			})
		}
	}
}

// A root where a mount point is no folder.
func TestMalformedRoot(t *testing.T) {
	needSandbox(t)
	for _, tt := range []struct{ name, at string }{{"proc", "proc"}, {"dev", "dev"}, {"tmp", "tmp"}} {
		t.Run(tt.name, func(t *testing.T) {
			root := tinyRoot(t)
			os.Remove(filepath.Join(root, tt.at))
			write(t, filepath.Join(root, tt.at), "a file", 0o644)
			_, r := try(t, opts{flags: []string{"--rootfs", root}}, "ok")
			if r.exit != 125 || !strings.Contains(r.stderr, tt.at) {
				t.Errorf("got exit %d, want 125 and the name %s\n%s", r.exit, tt.at, r.stderr)
			}
		})
	}
}

// CVE-2021-30465: the link appears between the check and the mount. A thread
// of the host swaps a folder with a link as fast as it can while sandboxes
// start from that root.
func TestRootSwappedWhileMounting(t *testing.T) {
	needSandbox(t)
	root, victim := tinyRoot(t), t.TempDir()
	write(t, filepath.Join(victim, "canary"), "alive", 0o644)
	os.Chmod(victim, 0o777)
	before := tree(t, victim)
	link := filepath.Join(root, "link")
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, d := range []string{"tmp", "proc", "dev", "workspace", "etc"} {
				select {
				case <-stop:
					return
				default:
				}
				unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, filepath.Join(root, d), unix.RENAME_EXCHANGE)
				unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, filepath.Join(root, d), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 20 {
		r := run(t, opts{profile: "ring1", flags: []string{"--rootfs", root}}, "/bin/probe", "ls", "/tmp", ",", "create", "/tmp/x", ",", "create", "/workspace/x", ",", "ls", "/workspace", ",", "ls", "/etc")
		for words, answer := range answers(r.stdout) {
			if strings.Contains(answer, "canary") {
				t.Errorf("%s shows the link's target: %s", words, answer)
			}
		}
	}
	close(stop)
	<-done
	if after := tree(t, victim); after != before {
		t.Errorf("the link's target was changed:\n%s", after)
	}
}

// The default view: what is there, and above all what is not (M-2).
func TestDefaultView(t *testing.T) {
	attempt(t, opts{}, []attack{
		{try: "ls /root", want: "ENOENT"},
		{try: "ls /home", want: "ENOENT"},
		{try: "ls /var", want: "ENOENT"},
		{try: "ls /sys", want: "value=devices"}, // made up
		{try: "ls /boot", want: "ENOENT"},
		{try: "ls /mnt", want: "ENOENT"},
		{try: "ls /srv", want: "ENOENT"},
		{try: "read /etc/shadow", want: "ENOENT"},
		{try: "read /etc/gshadow", want: "ENOENT"},
		{try: "read /etc/sudoers", want: "ENOENT"},
		{try: "read /etc/machine-id", want: "ENOENT"},
		{try: "read /etc/fstab", want: "ENOENT"},
		{try: "read /etc/ssh/sshd_config", want: "ENOENT"},
		{try: "read /etc/ssl/private", want: "ENOENT"},
		{try: "read /run/agentrun", want: "ENOENT", in: same("EISDIR", "ring1", "ring2")}, // a folder with tools.sock in it
		{try: "read /run/agentrun/locks", want: "ENOENT"},
		{try: "read /run/agentrun/uid-ranges", want: "ENOENT"},
		{try: "read /.dockerenv", want: "ENOENT"},
	})
	for _, profile := range allProfiles {
		t.Run(profile+" accounts", func(t *testing.T) {
			_, r := try(t, opts{profile: profile}, "cat /etc/passwd", "cat /etc/group", "cat /etc/hostname", "cat /etc/hosts", "id")
			passwd := value(t, r, "cat /etc/passwd")
			for _, line := range lines("/etc/passwd") {
				name, rest, _ := strings.Cut(line, ":")
				if name != "root" && name != "nobody" && strings.Contains(rest, "/home/") && strings.Contains(passwd, name+":") {
					t.Errorf("the host's user %s is shown", name)
				}
			}
			host, _ := os.Hostname()
			if v := value(t, r, "id"); strings.Contains(v, "host="+host) && host != "" {
				t.Errorf("the host's name is shown: %s", v)
			}
		})
	}
}

// The mounts as the kernel tells them: read-only, or nosuid and nodev; nothing
// of the host's own is writable.
func TestMountFlags(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			v := observe(t, opts{profile: profile}, "cat /proc/self/mountinfo")
			n := 0
			for _, line := range strings.Split(v, "|") {
				f := strings.Fields(line)
				if len(f) < 6 {
					continue
				}
				n++
				at, flags := f[4], ","+f[5]+","
				if !strings.Contains(flags, ",nosuid,") {
					t.Errorf("%s: %s: no nosuid", at, f[5])
				}
				if !strings.Contains(flags, ",nodev,") && !strings.HasPrefix(at, "/dev") {
					t.Errorf("%s: %s: no nodev", at, f[5])
				}
				writable := !strings.Contains(flags, ",ro,")
				scratch := strings.HasPrefix(at, "/tmp") || strings.HasPrefix(at, "/dev") || at == "/proc"
				switch {
				case !writable:
				case scratch && !strings.HasPrefix(at, "/dev/pts") && !strings.HasPrefix(at, "/proc"):
					if holds := profile == "ring1" || profile == "ring2"; strings.HasPrefix(at, "/tmp") && strings.Contains(flags, ",noexec,") == holds {
						t.Errorf("%s: %s: the scratch holds programs, want %v", at, f[5], holds)
					}
				case scratch:
				case profile == "ring1" && (at == "/" || strings.Contains(line, " - overlay ")): // its private root
				default:
					t.Errorf("%s is writable: %s", at, f[5])
				}
				if strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
					t.Errorf("%s is connected to other mounts: %s", at, line)
				}
			}
			if n < 3 {
				t.Errorf("mountinfo has %d mounts: %s", n, v)
			}
		})
	}
}

// /dev holds what programs need and nothing that leads to hardware.
func TestDevices(t *testing.T) {
	needSandbox(t)
	allowed := map[string]string{"null": "c1:3", "zero": "c1:5", "full": "c1:7", "random": "c1:8", "urandom": "c1:9", "tty": "c5:0", "ptmx": "c5:2"}
	for _, profile := range allProfiles {
		for _, dev := range strings.Split(observe(t, opts{profile: profile}, "devices"), "|") {
			name, number, _ := strings.Cut(dev, " ")
			if allowed[name] != number {
				t.Errorf("%s: device %s %s", profile, name, number)
			}
		}
	}
}
