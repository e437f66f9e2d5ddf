// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// plain is a bundle as engines write them.
func plain() *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2", Process: &specs.Process{
			Args: []string{"true"}, Cwd: "/", Env: []string{"A=b", "HOME=/root"},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}},
		}, Root: &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev/shm", Type: "tmpfs", Source: "shm"},
			{Destination: "/etc/resolv.conf", Type: "bind", Source: "/somewhere", Options: []string{"rbind"}},
		},
		Linux: &specs.Linux{
			MaskedPaths: []string{"/proc/kcore"},
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}, {Type: "cgroup"}},
		},
	}
}

// What a bundle demands beyond a ring is refused by name, and nothing of what engines always write is.
func TestBeyond(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if list := beyond(plain(), nil); len(list) > 0 {
		t.Errorf("a plain bundle: %q", list)
	}
	for name, tc := range map[string]struct {
		change func(*specs.Spec)
		want   string
	}{
		"capability":     {func(c *specs.Spec) { c.Process.Capabilities.Ambient = []string{"CAP_SYS_ADMIN"} }, `capability "CAP_SYS_ADMIN"`},
		"host network":   {func(c *specs.Spec) { c.Linux.Namespaces = slices.Delete(c.Linux.Namespaces, 1, 2) }, "the host's network namespace"},
		"host pids":      {func(c *specs.Spec) { c.Linux.Namespaces = c.Linux.Namespaces[1:] }, "the host's pid namespace"},
		"another's pids": {func(c *specs.Spec) { c.Linux.Namespaces[0].Path = "/proc/1/ns/pid" }, "another container's pid namespace"},
		"device":         {func(c *specs.Spec) { c.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}} }, `device "/dev/kvm"`},
		"all devices": {func(c *specs.Spec) {
			c.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true}}}
		}, "all devices"},
		"unmasked":         {func(c *specs.Spec) { c.Linux.MaskedPaths = nil }, "an unmasked /proc"},
		"masked":           {func(c *specs.Spec) { c.Linux.MaskedPaths = append(c.Linux.MaskedPaths, "/srv/secret") }, `a masked path "/srv/secret"`},
		"read-only":        {func(c *specs.Spec) { c.Linux.ReadonlyPaths = []string{"/proc/sys", "/proc/../srv"} }, `a read-only path "/proc/../srv"`},
		"AppArmor":         {func(c *specs.Spec) { c.Process.ApparmorProfile = "mine" }, `the AppArmor profile "mine"`},
		"SELinux":          {func(c *specs.Spec) { c.Process.SelinuxLabel = "system_u:system_r:mine.process:s0:c1,c2" }, `the SELinux type "mine.process"`},
		"no label":         {func(c *specs.Spec) { c.Process.SelinuxLabel = "mine" }, `the SELinux type "mine"`},
		"sysctl":           {func(c *specs.Spec) { c.Linux.Sysctl = map[string]string{"kernel.core_pattern": "|/x"} }, `sysctl "kernel.core_pattern"`},
		"hook":             {func(c *specs.Spec) { c.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/x"}}} }, "a hook inside the container"},
		"host folder":      {func(c *specs.Spec) { c.Mounts[2].Destination = "/x" }, `the host's "/somewhere"`},
		"out of the offer": {func(c *specs.Spec) { c.Mounts[2] = specs.Mount{Destination: "/x", Type: "bind", Source: dir + "/link"} }, `the host's "` + dir + `/link"`},
		"by dots": {func(c *specs.Spec) {
			c.Mounts[2] = specs.Mount{Destination: "/dev/../x", Options: []string{"bind"}, Source: "/etc"}
		}, `the host's "/etc"`},
		"on a place of the sandbox's": {func(c *specs.Spec) {
			c.Mounts[2] = specs.Mount{Destination: "/run/../tmp/x", Type: "bind", Source: dir}
		}, `the host's "` + dir + `" on "/tmp/x", where the sandbox has its own`},
		"a file system of its own": {func(c *specs.Spec) { c.Mounts[0] = specs.Mount{Destination: "/x", Type: "ramfs"} }, `a mount of "ramfs" on "/x"`},
	} {
		c := plain()
		tc.change(c)
		if list := beyond(c, []string{dir}); !slices.Contains(list, tc.want) {
			t.Errorf("%s: %q, want %q", name, list, tc.want)
		}
		if _, err := request("/", c, 3, []string{dir}, false); !errors.Is(err, ErrBeyond) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := plain()
	c.Process.SelinuxLabel = "system_u:system_r:container_t:s0:c1,c2"
	c.Mounts[2] = specs.Mount{Destination: "/x", Type: "bind", Source: dir}
	if list := beyond(c, []string{dir}); len(list) > 0 {
		t.Errorf("what is offered: %q", list)
	}
}

// A pod is shown the folders of its own, and of whoever is in none nothing of pods.
func TestOffersOfPods(t *testing.T) {
	file := filepath.Join(t.TempDir(), "oci-mounts")
	if err := os.WriteFile(file, []byte("# pods\n/srv\n/pods/{pod}/volumes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string]string{
		"1f-2a": "/srv /pods/1f-2a/volumes", "": "/srv", "..": "/srv", "a/b": "/srv", "a b": "/srv", "*": "/srv", "a\n": "/srv", strings.Repeat("a", 65): "/srv",
	} {
		if list, err := offersIn(file, pod); err != nil || strings.Join(list, " ") != want {
			t.Errorf("pod %q: %q, %v, want %s", pod, list, err, want)
		}
	}
	for _, bad := range []string{"{pod}", "/", "pods/{pod}"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := offersIn(file, "1f"); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if err := errors.Join(os.WriteFile(file, []byte("/srv"), 0o600), os.Chmod(file, 0o662)); err != nil {
		t.Fatal(err)
	}
	if list, err := offersIn(file, ""); !errors.Is(err, os.ErrPermission) {
		t.Errorf("by others' word: %q, %v", list, err)
	}
}

// THREATS "engines and images": what a root's content says leads nowhere when mount points are made in it.
func TestMountPointsStayInTheRoot(t *testing.T) {
	root, outside := filepath.Join(t.TempDir(), "rootfs"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "srv"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"out": outside, "up": "../../..", "self": "self", "srv/in": "/srv"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{"/out/x", "/out", "/up/x", "/self/x", "/srv/in/x", "/out/x/y"} {
		if err := mountPoint(root, at, true); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	for _, at := range []string{outside, filepath.Join(root, "srv")} {
		if found, _ := os.ReadDir(at); len(found) > 1 || at == outside && len(found) > 0 {
			t.Errorf("made in %s: %v", at, found)
		}
	}
	for at, folder := range map[string]bool{"/srv": true, "/srv/new/a": true, "/data/file": false} {
		for range 2 { // it may be there
			err := mountPoint(root, at, folder)
			if info, serr := os.Stat(root + at); err != nil || serr != nil || info.IsDir() != folder {
				t.Errorf("%s: %v, %v", at, err, serr)
			}
		}
	}
	if err := mountPoint(root, "/data/file/x", true); err == nil {
		t.Error("a file is taken for a folder")
	}
}

func TestRings(t *testing.T) {
	for _, tc := range []struct {
		handler, annotation string
		want                int // 0: refused
	}{
		{"agentrun-oci", "", 3}, {"/usr/bin/agentrun-ring2", "", 2}, {"agentrun-ring1", "", 1}, {"agentrun-ring4", "", 0}, {"agentrun-ring", "", 0},
		{"agentrun-oci", "1", 1}, {"agentrun-oci", "0", 0}, {"agentrun-oci", "-1", 0}, {"agentrun-oci", "", 3},
		{"agentrun-ring2", "3", 3}, {"agentrun-ring2", "1", 0}, {"agentrun-ring2", "x", 0},
	} {
		c := plain()
		if tc.annotation != "" {
			c.Annotations = map[string]string{ringAnnotation: tc.annotation}
		}
		ring, err := ringOf(tc.handler, c)
		if (err != nil) != (tc.want == 0) || err == nil && ring != tc.want {
			t.Errorf("%s, %q: ring %d, %v, want %d", tc.handler, tc.annotation, ring, err, tc.want)
		}
	}
}

func TestWords(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "srv"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := plain()
	memory, quota, period := int64(64<<20), int64(50000), uint64(100000)
	c.Process.Cwd = "/srv"
	c.Linux.Resources = &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory}, CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}, Pids: &specs.LinuxPids{Limit: 20},
	}
	c.Mounts = append(c.Mounts, specs.Mount{Destination: "/data", Type: "bind", Source: dir})
	words, err := request(dir, c, 2, []string{dir}, false)
	want := "--ring 2 --rootfs " + dir + "/rootfs --cwd /srv -i --bind " + dir + ":/data --memory 67108864 --cpus 0.500 --pids 20"
	if got := strings.Join(words, " "); err != nil || got != want {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
	if words, err = request(dir, c, 3, []string{dir}, false); err != nil || !slices.Contains(words, "--ro-bind") {
		t.Errorf("in ring 3: %q, %v", words, err)
	}
}

// A working directory may be behind links, which lead within the root as they would in it, and within a volume.
func TestWorkingFolder(t *testing.T) {
	root, volume := filepath.Join(t.TempDir(), "rootfs"), t.TempDir()
	for _, dir := range []string{filepath.Join(root, "opt/app/bin"), filepath.Join(root, "run/lock"), filepath.Join(root, "src"), filepath.Join(root, "tmp/x"), filepath.Join(volume, "app")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"app": "/opt/app", "up": "../../../../opt", "lock": "/run/lock", "host": "/etc", "self": "/self"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for cwd, want := range map[string]string{
		"": "/", "/": "/", "/opt/app": "/opt/app", "/app": "/opt/app", "/app/bin": "/opt/app/bin", "/up/app": "/opt/app", "/opt/../app/bin/": "/opt/app/bin",
		"/src": "/src", "/src/app": "/src/app", "/src/none": "", "/none": "", "/host": "", "/self": "", "/lock": "", "/tmp": "/tmp", "/tmp/x": "", "/run/../tmp": "/tmp", "/proc/self/cwd": "",
	} {
		c := plain()
		c.Process.Cwd = cwd
		c.Mounts = append(c.Mounts, specs.Mount{Destination: "/src", Type: "bind", Source: volume})
		if at, ok := cwdOf(root, c); ok != (want != "") || ok && at != want {
			t.Errorf("%q: %q, %t, want %q", cwd, at, ok, want)
		}
	}
}

// A volume that is read-only with all below it (mount_setattr(2)) is no writable one.
func TestReadOnlyMounts(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	for option, want := range map[string]string{"rw": "--bind", "ro": "--ro-bind", "rro": "--ro-bind"} {
		c := plain()
		c.Mounts = append(c.Mounts, specs.Mount{Destination: "/data", Type: "bind", Source: dir, Options: []string{"rbind", option}})
		if words, err := request(dir, c, 2, []string{dir}, false); err != nil || !slices.Contains(words, want) {
			t.Errorf("%s: %q, %v, want %s", option, words, err, want)
		}
	}
}

// An engine's init isn't asked for: the run has its own. The image's is a program like any other.
func TestInitOfTheEngine(t *testing.T) {
	for _, tt := range []struct {
		init  string
		mount bool
		args  []string
		want  string
	}{
		{"/sbin/docker-init", true, []string{"/sbin/docker-init", "--", "sleep", "1"}, "sleep 1"},
		{"/run/podman-init", true, []string{"/run/podman-init", "--", "true"}, "true"},
		{"/sbin/docker-init", false, []string{"/sbin/docker-init", "--", "true"}, "/sbin/docker-init -- true"},
		{"/sbin/init", true, []string{"/sbin/init", "--", "true"}, "/sbin/init -- true"},
		{"/sbin/docker-init", true, []string{"/sbin/docker-init", "--"}, "/sbin/docker-init --"},
		{"/sbin/docker-init", true, []string{"/sbin/docker-init", "-s", "--", "true"}, "/sbin/docker-init -s -- true"},
	} {
		c := plain()
		c.Process.Args = tt.args
		before := len(c.Mounts)
		if tt.mount {
			c.Mounts = append(c.Mounts, specs.Mount{Destination: tt.init, Type: "bind", Source: "/usr/bin/docker-init", Options: []string{"bind", "ro"}})
		}
		all := len(c.Mounts)
		withoutInit(c)
		taken := strings.Join(tt.args, " ") != tt.want
		if got := strings.Join(c.Process.Args, " "); got != tt.want || taken && len(c.Mounts) != before || !taken && len(c.Mounts) != all {
			t.Errorf("%q, mounted %t: %q and %d mounts", tt.args, tt.mount, got, len(c.Mounts))
		}
	}
}

// What a bundle mounts a tmpfs on the run has one on, but where agentrun has its own; within those there may be some.
func TestTmpfsMounts(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"/var/cache": "/var/cache:1m", "/run/nginx": "/run/nginx:1m", "/var/run/../run/nginx/": "/run/nginx:1m", "/tmp/x": "/tmp/x:1m",
		"/run": "", "/var/run": "", "/tmp": "", "/dev": "", "/dev/shm": "", "/proc/acpi": "", "/sys/firmware": "", "/run/secrets": "",
	} {
		c := plain()
		c.Mounts = append(c.Mounts, specs.Mount{Destination: at, Type: "tmpfs", Options: []string{"noexec", "size=1m", "mode=1777"}})
		words, err := request(dir, c, 2, nil, false)
		i := slices.Index(words, "--tmpfs")
		if err != nil || (i >= 0) != (want != "") || i >= 0 && words[i+1] != want {
			t.Errorf("%s: %q, %v, want %q", at, words, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "rootfs", "var", "cache")); err != nil || !info.IsDir() {
		t.Errorf("the mount point: %v", err)
	}
	for options, want := range map[string]string{"size=50%": "/x", "": "/x", "size=64k": "/x:64k"} {
		if at, size, ok := tmpfs(specs.Mount{Destination: "/x", Type: "tmpfs", Options: []string{options}}); !ok || at+size != want {
			t.Errorf("%s: %s%s, %t", options, at, size, ok)
		}
	}
	for _, at := range []string{"/dev/x", "/run/agentrun", "/run/agentrun/tools.sock", "/var/run/agentrun", "/tmp/sandbox", "/run/a:1m", "/x:1m"} {
		c := plain()
		c.Mounts = append(c.Mounts, specs.Mount{Destination: at, Type: "tmpfs"})
		if list := beyond(c, nil); !slices.Contains(list, fmt.Sprintf(`a mount of "tmpfs" on %q`, at)) {
			t.Errorf("%s is left out without a word: %q", at, list)
		}
	}
	for _, m := range []specs.Mount{{Destination: "/x", Type: "tmpfs", Options: []string{"rbind"}}, {Destination: "/x:1m", Type: "tmpfs"}} {
		if at, _, ok := tmpfs(m); ok {
			t.Errorf("%+v: %s", m, at)
		}
	}
}

// A file for a pid is whole, and what a link in its place leads to is left alone.
func TestPIDFile(t *testing.T) {
	dir := t.TempDir()
	other, at := filepath.Join(dir, "other"), filepath.Join(dir, "pid")
	if err := errors.Join(os.WriteFile(other, []byte("kept"), 0o600), os.Symlink("other", at)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tellPID(at, 42), tellPID("", 42)); err != nil {
		t.Fatal(err)
	}
	kept, _ := os.ReadFile(other)
	text, _ := os.ReadFile(at)
	info, err := os.Lstat(at)
	if string(kept) != "kept" || string(text) != "42" || err != nil || info.Mode() != 0o644 {
		t.Errorf("the link's file is %q, the pid's %q %v, %v", kept, text, info, err)
	}
	if err := tellPID(dir, 42); err == nil {
		t.Error("a folder is taken for a file")
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

// Whatever a bundle says, its words are those of flags that are known, and what it demands beyond a ring is not among them.
func FuzzBundle(f *testing.F) {
	text, err := json.Marshal(plain())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"process":{"args":["x"],"env":["=","A"]},"root":{"path":"/"},"linux":{}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := loadBundle(dir)
		if err != nil {
			return
		}
		if _, err := ringOf("agentrun-ring2", c); err != nil {
			return
		}
		words, err := request(dir, c, 2, nil, false)
		if err != nil {
			return
		}
		if slices.Contains(words, "--bind") || slices.Contains(words, "--ro-bind") || !slices.Equal(words[:3], []string{"--ring", "2", "--rootfs"}) {
			t.Errorf("%q", words)
		}
	})
}
