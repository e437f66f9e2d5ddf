// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// THREATS "paths the host follows" (A-M7, A-M8): agentrun's own folders, by any path, are in no sandbox. The mounts are made in a
// mount namespace of the test, which is the host's as far as that agentrun knows.
func TestOwnFoldersByAnyPath(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "unshare", "mount", "sh")
	tool(t, "agent", "set", "own-folders", "--score", "0.9", "--reason", "so that there is a state folder")
	run(t, opts{}, "/probe", "ok") // and a run folder
	const (
		alias   = `mount --bind "$1" "$T/alias"`
		within  = `mkdir -p "$T/ws/deep/er" && mount --bind "$1" "$T/ws/deep/er"`
		tmp     = `mount -t tmpfs t "$T/ws"`
		overlay = `mkdir "$T/up" "$T/work" && mount -t overlay o -o lowerdir="$1",upperdir="$T/up",workdir="$T/work" "$T/ws"`
	)
	for _, c := range []struct {
		name, mounts, source, shows string
		taken                       bool
	}{
		{"the state folder", ":", "STATE", "STATE", false},
		{"a folder of it", ":", "STATE", "STATE/audit", false},
		{"a folder above it", ":", "STATE", "STATE/..", false},
		{"state bound elsewhere", alias, "STATE", "T/alias", false},
		{"its keys bound elsewhere", alias, "STATE/audit", "T/alias", false},
		{"a folder above it bound elsewhere", alias, "STATE/..", "T/alias", false},
		{"a folder within that", alias, "STATE/..", "T/alias/state/audit", false},
		{"a link to that", alias, "STATE/..", "T/link", false},
		{"state below the workspace", within, "STATE", "T/ws", false},
		{"state below the workspace, by a folder above", within, "STATE/..", "T/ws", false},
		{"state below an overlay", overlay, "STATE", "T/ws", false},
		{"the run folder", ":", "RUN", "RUN", false},
		{"its locks", ":", "RUN", "RUN/locks", false},
		{"run folder bound elsewhere", alias, "RUN", "T/alias", false},
		{"run folder below the workspace", within, "RUN", "T/ws", false},
		{"what all runs share", ":", "RUN", "/run/agentrun", false},
		{"all of /run", ":", "RUN", "/run", false},
		{"the configuration", ":", "RUN", "HOME/.config", false},
		{"home, with the configuration in it", ":", "RUN", "HOME", false},
		{"another folder", alias, "T/ws", "T/alias", true},
		{"another file system", tmp, "T", "T/ws", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mounts == tmp {
				need(t, hostcaps.IDMappedMounts("/dev/shm")) // a tmpfs too
			}
			dir, home := t.TempDir(), t.TempDir()
			for _, d := range []string{dir + "/alias", dir + "/ws", home + "/.config/agentrun"} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("alias", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			place := func(s string) string {
				for word, path := range map[string]string{"STATE": stateDir, "RUN": runDir, "HOME": home, "T": dir} {
					if s == word || strings.HasPrefix(s, word+"/") {
						return path + s[len(word):]
					}
				}
				return s
			}
			shows := place(c.shows)
			for _, flags := range []string{"--workspace " + shows, "--ring 2 --bind " + shows + ":/mnt", "--ro-bind " + shows + ":/mnt", "--rootfs " + shows} {
				if strings.HasPrefix(flags, "--rootfs") && (c.taken || c.shows == "HOME" || c.shows == "RUN/locks") {
					continue // it is no root; and of a root only what is there already is shown
				}
				cmd := exec.CommandContext(t.Context(), sandboxProgram("unshare"), append([]string{"-m", "--propagation", "private", "/bin/sh", "-c",
					c.mounts + ` && shift && exec "$@"`, "sh", place(c.source), agentrun, "--state-dir", stateDir, "--run-dir", runDir, "exec", "--no-daemon", "--ro-bind", probeBin + ":/probe"},
					append(strings.Fields(flags), "--", "/probe", "ok")...)...)
				cmd.Env = append(os.Environ(), "T="+dir, "HOME="+home)
				text, err := cmd.CombinedOutput()
				switch {
				case c.taken && !strings.Contains(string(text), "ok: ok"):
					t.Errorf("%s: %v\n%s", flags, err, text)
				case !c.taken && (cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(text), "agentrun's own")):
					t.Errorf("%s: got exit %d, want 125: the sandbox has it\n%s", flags, cmd.ProcessState.ExitCode(), text)
				}
				if !c.taken && !strings.Contains(string(text), "hint: ") {
					t.Errorf("%s: no way out is named\n%s", flags, text)
				}
				exec.Command("rm", "-rf", dir+"/up", dir+"/work").Run()
			}
		})
	}
}
