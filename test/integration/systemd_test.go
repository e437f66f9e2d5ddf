// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

const systemdProgram = "/usr/lib/systemd/systemd"

// boot is what a machine has when its service manager begins, with our programs and units where docs/daemon.md puts them. What the
// service manager would change of the real machine is out of sight.
const boot = `set -e
mount -t proc proc /proc
mount --bind "$SRV" /srv # a disk: tmpfs has no idmapped mounts before Linux 6.3
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for d in /run /tmp /var/lib /var/log /etc/systemd; do mount -t tmpfs tmpfs $d; done
mkdir /etc/systemd/system /etc/systemd/system-generators
cd /usr/lib/systemd # what a machine with hardware and users wants
for u in system-generators/* system/sysinit.target.wants/* system/local-fs.target.wants/* system/timers.target.wants/*; do
	case $u in
	*journal* | *'*') ;;
	system-generators/*) ln -sf /dev/null /etc/systemd/$u ;;
	*) ln -sf /dev/null /etc/systemd/system/${u##*/} ;;
	esac
done
mkdir -p /usr/local/bin
mount --bind "$BIN" /usr/local/bin
install -m 0644 "$UNITS"/agentrun.service "$UNITS"/agentrun.socket /etc/systemd/system/
mkdir /etc/systemd/system/agentrun.service.d
printf '[Service]\nWatchdogSec=%s\n' "$WATCHDOG" >/etc/systemd/system/agentrun.service.d/soon.conf
mount --make-rshared /
unset BIN UNITS WATCHDOG SRV
exec ` + systemdProgram + ` --show-status=no --unit=basic.target`

// machine is a real systemd as the first process of namespaces of its own.
type machine struct {
	t     *testing.T
	pid   int
	group string // its root in the tree of cgroups
	srv   string // what is /srv there
}

func needSystemd(t *testing.T) {
	t.Helper()
	needSandbox(t)
	need(t, hostcaps.CloneIntoCgroup)
	if err := unix.Access(systemdProgram, unix.X_OK); err != nil {
		unmet(t, "program systemd: not at "+systemdProgram)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); errors.Is(err, fs.ErrNotExist) {
		unmet(t, "cgroup v2 alone at /sys/fs/cgroup")
	}
}

func bootSystemd(t *testing.T, watchdog time.Duration) machine {
	t.Helper()
	units, err := filepath.Abs("../../packaging/systemd")
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprint("/sys/fs/cgroup/machine-", os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroups(t, group) })
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	log, srv := filepath.Join(t.TempDir(), "systemd.log"), t.TempDir()
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", boot)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "container=test", "BIN=" + filepath.Dir(agentrun), "UNITS=" + units, "WATCHDOG=" + watchdog.String(), "SRV=" + srv}
	cmd.Stdout, cmd.Stderr = out, out
	// The cgroup namespace is made by the child, in its group already: it is the tree's root for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP,
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL, Setsid: true, //nolint:gosec // a descriptor
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := machine{t, cmd.Process.Pid, group, srv}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("systemd: %.4000s", b)
			t.Logf("journal: %s", m.do("journalctl", "--no-pager", "-o", "cat", "-u", "agentrun.service", "-n", "40").stdout)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, time.Duration(min(slow, 3)*float64(20*time.Second)), "systemd listens", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/systemd/private", m.pid))
		return err == nil
	})
	if state := m.do("systemctl", "is-system-running", "--wait"); state.stdout != "running\n" {
		t.Fatalf("systemd is %s%s", state.stdout, state.stderr)
	}
	return m
}

// removeGroups removes a tree of groups whose processes are dead, or dying.
func removeGroups(t *testing.T, top string) {
	eventually(t, hang(), "the machine's cgroups are gone", func() bool {
		var all []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for i := len(all) - 1; i >= 0; i-- {
			_ = unix.Rmdir(all[i])
		}
		return len(all) == 0
	})
}

// enter is the command in front of one that is to run there, in a folder of it.
func (m machine) enter(dir string) []string {
	// The shell enters the folder: nsenter's --wd is one of the namespace that it comes from.
	return []string{"nsenter", "-t", strconv.Itoa(m.pid), "-m", "-p", "-C", "--", "/bin/sh", "-c", `cd "$0" && exec "$@"`, dir}
}

// environ is what a login there has.
func (m machine) environ() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "SYSTEMD_COLORS=0"}
}

// do runs a program as somebody who has logged in there.
func (m machine) do(argv ...string) result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	enter := append(m.enter("/"), argv...)
	cmd := exec.CommandContext(ctx, enter[0], enter[1:]...)
	cmd.Env = m.environ()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		m.t.Errorf("%v: %v", argv, err)
	}
	return result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String(), wall: time.Since(began)}
}

func (m machine) must(argv ...string) string {
	m.t.Helper()
	r := m.do(argv...)
	if r.exit != 0 {
		m.t.Fatalf("%v: exit %d\n%s%s", argv, r.exit, r.stdout, r.stderr)
	}
	return r.stdout
}

// unit is what systemd says of the service.
func (m machine) unit() map[string]string {
	m.t.Helper()
	is := map[string]string{}
	for _, line := range strings.Split(m.must("systemctl", "show", "agentrun.service", "-p", "ActiveState,SubState,MainPID,NRestarts,Result,StatusText,ControlGroup"), "\n") {
		k, v, _ := strings.Cut(line, "=")
		is[k] = v
	}
	return is
}

// M-23: the units of packaging/systemd under a real systemd, as docs/daemon.md installs them. Active when the daemon says so; a run by
// way of the socket; reload; a daemon that hangs is killed, and its agents with it, and started again; stop drains.
func TestM23SystemdUnits(t *testing.T) {
	needSystemd(t)
	m := bootSystemd(t, time.Duration(min(slow, 4)*float64(1500*time.Millisecond)))
	is := func(when string, want map[string]string) map[string]string {
		t.Helper()
		got := m.unit()
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s: %s is %q, want %q (%v)", when, k, got[k], v, got)
			}
		}
		return got
	}
	if r := m.do("systemd-analyze", "verify", "agentrun.service", "agentrun.socket"); r.exit != 0 || r.stdout+r.stderr != "" {
		t.Errorf("systemd-analyze verify: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	m.must("systemctl", "enable", "--now", "agentrun.socket", "agentrun.service")
	first := is("started", map[string]string{"ActiveState": "active", "SubState": "running", "ControlGroup": "/system.slice/agentrun.service"})
	if !strings.Contains(first["StatusText"], "0 runs") {
		t.Errorf("status: %q", first["StatusText"])
	}

	// What the unit takes from the daemon it needs for no run: the ring with the most, and the gateway.
	if got := m.must("agentrun", "exec", "--profile", "ring1", "--", "/bin/sh", "-c",
		`curl -s -d '{"args":{"expression":"6*7"}}' -H 'Content-Type: application/json' $AGENTRUN_TOOLS_URL/math`); !strings.Contains(got, "42") {
		t.Errorf("a tool call in ring 1: %q", got)
	}
	id := strings.TrimSpace(m.must("agentrun", "exec", "-d", "--timeout", "300s", "--name", "held", "--", "/bin/sleep", "300"))
	held := m.must("agentrun", "inspect", "held", "--json")
	if want := fmt.Sprintf(`"supervisor":\s*%s\b`, first["MainPID"]); !regexp.MustCompile(want).MatchString(held) {
		t.Errorf("the run isn't the service's: %s, want %s", held, want)
	}
	m.must("systemctl", "daemon-reload") // writes the controllers of its tree anew
	m.must("systemctl", "reload", "agentrun.service")
	is("reloaded", map[string]string{"ActiveState": "active", "SubState": "running", "MainPID": first["MainPID"], "NRestarts": "0"})
	if !agentsAlive() {
		t.Error("the run did not live through a reload")
	}
	// Its group is no unit's: systemd has left it alone, and its controllers on.
	for file, want := range map[string]string{"memory.max": strconv.FormatInt(limits3.Memory, 10), "pids.max": strconv.FormatInt(limits3.PIDs, 10)} {
		if b, err := os.ReadFile(filepath.Join(m.group, "agentrun", id, file)); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s of the run after a reload: %q, %v, want %s", file, b, err, want)
		}
	}

	m.must("kill", "-STOP", first["MainPID"])
	gone(t, hang())
	eventually(t, hang(), "the watchdog's restart", func() bool { u := m.unit(); return u["NRestarts"] == "1" && u["ActiveState"] == "active" })
	if log := m.must("journalctl", "--no-pager", "-o", "cat", "-u", "agentrun.service"); !strings.Contains(log, "cleaned up after crashed runs") || !strings.Contains(log, "atchdog") {
		t.Errorf("the journal doesn't tell of the crash: %s", log)
	}

	m.must("agentrun", "exec", "-d", "--timeout", "300s", "--", "/bin/sleep", "300")
	if r := m.do("systemctl", "stop", "agentrun.service"); r.exit != 0 {
		t.Errorf("stop: exit %d, %s", r.exit, r.stderr)
	}
	is("stopped", map[string]string{"ActiveState": "inactive", "SubState": "dead", "Result": "success"})
	noAgents(t)
	// The socket is still there, and begins a daemon for whoever comes.
	if got := m.must("agentrun", "exec", "--", "/bin/echo", "again"); got != "again\n" {
		t.Errorf("by the socket: %q", got)
	}
	is("by the socket", map[string]string{"ActiveState": "active", "NRestarts": "0"})
	m.must("systemctl", "stop", "agentrun.socket", "agentrun.service")
}
