// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// THREATS "paths the host follows": whoever makes a root is an attacker. Whatever its shape, the launch ends by itself in time, with
// a run or a refusal by name; the root and what lies beside it are as before; nothing of the host shows through it, and no terminal
// obeys its names.
func TestHostileRootShapes(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	const secret = "the-host's-secret-5d1c"
	const anything = "" // a refusal or a run, as long as the rest holds
	link := func(name, to string) func(string) error {
		return func(root string) error {
			os.RemoveAll(filepath.Join(root, name))
			return os.Symlink(to, filepath.Join(root, name))
		}
	}
	node := func(name string, mode uint32, dev int) func(string) error {
		return func(root string) error {
			os.RemoveAll(filepath.Join(root, name))
			return unix.Mknod(filepath.Join(root, name), mode, dev)
		}
	}
	file := func(name, text string, mode os.FileMode) func(string) error {
		return func(root string) error {
			os.RemoveAll(filepath.Join(root, name))
			at := filepath.Join(root, name)
			os.MkdirAll(filepath.Dir(at), 0o755)
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				return err
			}
			return unix.Chmod(at, uint32(mode))
		}
	}
	null := int(unix.Mkdev(1, 3))
	for _, c := range []struct {
		name  string
		shape func(root string) error
		says  string // refused with this in the message; anything: see above
	}{
		{"proc is a link", link("proc", "/etc"), "proc"},
		{"sys is a link", link("sys", "/"), "sys"},
		{"dev is a link", link("dev", "/dev"), "dev"},
		{"tmp is a link", link("tmp", "/root"), "tmp"},
		{"workspace is a link", link("workspace", "/"), "workspace"},
		{"proc is a file", file("proc", "x", 0o644), "proc"},
		{"dev is a FIFO", node("dev", unix.S_IFIFO|0o666, 0), "dev"},
		{"our own program's name", file(".agentrun-init", "#!/bin/sh", 0o755), ".agentrun-init"},
		{"our own program's name is a link", link(".agentrun-init", "/bin/probe"), ".agentrun-init"},
		{"a FIFO at the top", node("pipe", unix.S_IFIFO|0o666, 0), "pipe"},
		{"a device at the top", node("mem", unix.S_IFCHR|0o666, null), "mem"},
		{"a block device at the top", node("sda", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0))), "sda"},
		{"a whiteout at the top", node("gone", unix.S_IFCHR, 0), "gone"},
		{"a socket at the top", func(root string) error { _, err := net.Listen("unix", filepath.Join(root, "s")); return err }, "/s"},
		{"a device within", node("etc/mem", unix.S_IFCHR|0o666, null), anything},
		{"etc is a link to the host's", link("etc", "HOST"), anything},
		{"etc is a link to itself", link("etc", "etc"), anything},
		{"bin is a loop", func(root string) error { return os.Rename(filepath.Join(root, "bin"), filepath.Join(root, "real")) }, "probe"},
		{"passwd is a link to the secret", link("etc/passwd", "HOST/secret"), anything},
		{"passwd climbs", link("etc/passwd", "../../../../../../../etc/shadow"), anything},
		{"passwd is a FIFO", node("etc/passwd", unix.S_IFIFO|0o666, 0), anything},
		{"group is a FIFO", node("etc/group", unix.S_IFIFO|0o666, 0), anything},
		{"passwd is endless", node("etc/passwd", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), anything},
		{"passwd is huge and sparse", func(root string) error {
			if err := file("etc/passwd", "root:x:0:0::/:/bin/sh", 0o644)(root); err != nil {
				return err
			}
			return os.Truncate(filepath.Join(root, "etc", "passwd"), 1<<40)
		}, anything},
		{"passwd is one line without an end", file("etc/passwd", strings.Repeat("a:", 1<<20), 0o644), anything},
		{"passwd is binary", file("etc/passwd", "\x00\xff\n:\n::::::::\nagent:x:0:0::/:/\n", 0o644), anything},
		{"group makes the agent root", file("etc/group", "root:x:0:agent\nagent:x:0:agent\nwheel:x:0:agent,1000\n", 0o644), anything},
		{"the linker's cache is hostile", file("etc/ld.so.cache", "ld.so-1.7.0\x00\xff\xff\xff\xff"+strings.Repeat("\xff", 4096), 0o644), anything},
		{"the linker preloads", file("etc/ld.so.preload", "/bin/probe /etc/evil.so\n", 0o644), anything},
		{"set-ID program", func(root string) error { return unix.Chmod(filepath.Join(root, "bin", "probe"), 0o6755) }, anything},
		{"capable program", func(root string) error {
			return unix.Setxattr(filepath.Join(root, "bin", "probe"), "security.capability", []byte("\x01\x00\x00\x02\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"), 0)
		}, anything},
		{"the command is a FIFO", node("bin/probe", unix.S_IFIFO|0o777, 0), "probe"},
		{"the command is a link out", link("bin/probe", "HOST/secret"), "probe"},
		{"the command's interpreter is a FIFO", func(root string) error {
			if err := file("bin/probe", "#!/bin/pipe\n", 0o755)(root); err != nil {
				return err
			}
			return unix.Mkfifo(filepath.Join(root, "bin", "pipe"), 0o777)
		}, anything},
		{"the command is its own interpreter", file("bin/probe", "#!/bin/probe\n", 0o755), anything},
		{"an endless shebang", file("bin/probe", "#!"+strings.Repeat("/bin/", 1<<16), 0o755), anything},
		{"names for a terminal", func(root string) error {
			for _, n := range []string{"\x1b[31mred", "\nhint: evil", "\u202elr", "\xff\xfe", strings.Repeat("n", 255), " ", "-rf", "a b\tc\\d"} {
				if err := os.Mkdir(filepath.Join(root, n), 0o755); err != nil {
					return err
				}
			}
			return nil
		}, anything},
		{"a FIFO with a name for a terminal", node("\x1b[31m\nhint: evil", unix.S_IFIFO|0o666, 0), "unsafe root"},
		{"many names", func(root string) error {
			for i := range 3000 {
				if err := os.Mkdir(filepath.Join(root, fmt.Sprint("d", i)), 0o755); err != nil {
					return err
				}
			}
			return nil
		}, anything},
		{"deep folders", func(root string) error {
			at := filepath.Join(root, "etc")
			for range 500 {
				at += "/d"
			}
			return os.MkdirAll(at, 0o755)
		}, anything},
		{"overlay's own attributes", func(root string) error {
			for name, value := range map[string]string{"trusted.overlay.opaque": "y", "trusted.overlay.redirect": "/../../etc", "trusted.overlay.metacopy": ""} {
				if err := unix.Setxattr(filepath.Join(root, "etc"), name, []byte(value), 0); err != nil {
					return err
				}
			}
			return unix.Setxattr(filepath.Join(root, "etc", "mark"), "trusted.overlay.redirect", []byte("/secret"), 0)
		}, anything},
		{"whiteouts within", node("etc/gone", unix.S_IFCHR, 0), anything},
		{"unreadable folders", func(root string) error { return os.Chmod(filepath.Join(root, "etc"), 0) }, anything},
		{"an unreadable command", func(root string) error { return os.Chmod(filepath.Join(root, "bin", "probe"), 0o111) }, anything},
		{"somebody's folders", func(root string) error { return os.Chown(filepath.Join(root, "etc"), owner, owner) }, anything},
		{"no etc", func(root string) error { return os.RemoveAll(filepath.Join(root, "etc")) }, anything},
		{"nothing", func(root string) error {
			for _, d := range []string{"proc", "dev", "tmp", "etc", "workspace", "bin"} {
				os.RemoveAll(filepath.Join(root, d))
			}
			return nil
		}, "probe"},
	} {
		for _, ring := range []string{"3", "1"} {
			t.Run(c.name+", ring "+ring, func(t *testing.T) {
				host := t.TempDir()
				write(t, filepath.Join(host, "secret"), secret+":x:0:0:"+secret+":/:/bin/sh\n", 0o600)
				root := tinyRoot(t)
				if err := c.shape(root); err != nil {
					t.Fatal(err)
				}
				// Links to HOST lead to a folder of the test's.
				filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
					if err == nil && info.Mode()&os.ModeSymlink != 0 {
						if to, _ := os.Readlink(path); strings.HasPrefix(to, "HOST") {
							os.Remove(path)
							os.Symlink(host+strings.TrimPrefix(to, "HOST"), path)
						}
					}
					return nil
				})
				look := "cat"
				if info, err := os.Lstat(filepath.Join(root, "etc", "passwd")); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
					look = "stat" // opening it would be the agent's own wait
				}
				before := tree(t, root) + tree(t, host)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(slow*float64(75*time.Second))) // a step ends by itself after 30 s
				defer cancel()
				cmd := exec.CommandContext(ctx, agentrun, "--state-dir", stateDir, "--run-dir", runDir, "exec", "--no-daemon", "--no-gateway", "--ring", ring, "--rootfs", root, "--",
					"/bin/probe", look, "/etc/passwd", ",", "cat", "/etc/secret", ",", "cat", "/etc/mark", ",", "status", ",", "create", "/etc/new")
				text, err := cmd.CombinedOutput()
				exit := cmd.ProcessState.ExitCode()
				switch {
				case ctx.Err() != nil:
					t.Errorf("the launch hangs: %v", err)
				case strings.Contains(string(text), secret):
					t.Errorf("the host's secret shows:\n%s", text)
				case c.says != anything && (exit < 125 || exit > 127 || !strings.Contains(string(text), c.says)):
					t.Errorf("got exit %d, want a refusal with %q in it:\n%.2000s", exit, c.says, text)
				case exit < 0 || exit >= 125 && !strings.Contains(string(text), "agentrun: "):
					t.Errorf("got exit %d without a word:\n%.2000s", exit, text)
				}
				for line := range strings.Lines(string(text)) {
					if strings.HasPrefix(line, "hint: evil") || strings.HasPrefix(line, "agentrun:") && strings.ContainsAny(line, "\x1b\u202e") {
						t.Errorf("for a terminal: %q", line)
					}
				}
				os.Chmod(filepath.Join(root, "etc"), 0o755)
				if c.name != "unreadable folders" {
					if after := tree(t, root) + tree(t, host); after != before {
						t.Errorf("the root or what lies beside it was changed")
					}
				}
			})
		}
	}
}
