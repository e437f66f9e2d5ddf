// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
)

// maxBundle bounds a bundle's configuration.
const maxBundle = 4 << 20

const configFile = "config.json" // of a bundle, and of a container as it was created

// ringAnnotation asks for a ring; the name of the handler may ask for one too, and then an annotation may only ask for less.
const ringAnnotation = "agentrun.ring"

// defaultRing is that of a bundle and a handler that ask for none.
const defaultRing = 3

func loadBundle(dir string) (c *specs.Spec, err error) {
	file := filepath.Join(dir, configFile)
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxBundle {
		return nil, fmt.Errorf("%s has %d bytes, and %d are the most", file, info.Size(), maxBundle)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if c == nil || c.Process == nil || c.Root == nil || c.Linux == nil || len(c.Process.Args) == 0 {
		return nil, fmt.Errorf("%s: a bundle has process.args, root and linux", file)
	}
	withoutInit(c)
	return c, nil
}

// withoutInit leaves out the init that engines put before a container's program (--init): a run has one that reaps and passes signals on.
func withoutInit(c *specs.Spec) {
	args := c.Process.Args
	if len(args) < 3 || args[1] != "--" || !slices.Contains([]string{"/sbin/docker-init", "/run/podman-init", "/dev/init"}, args[0]) {
		return
	}
	mounts := slices.DeleteFunc(slices.Clone(c.Mounts), func(m specs.Mount) bool { return bound(m) && m.Destination == args[0] })
	if len(mounts) < len(c.Mounts) { // else it is the image's
		c.Process.Args, c.Mounts = args[2:], mounts
	}
}

// ringOf is what handler (the name that this program was called by) and annotations ask for: the less of the two.
func ringOf(handler string, c *specs.Spec) (int, error) {
	read := func(what, text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 3 {
			return 0, fmt.Errorf("%s: %.32q is no ring: want 1, 2 or 3", what, text)
		}
		return n, nil
	}
	ring, most := defaultRing, 1
	if _, of, ok := strings.Cut(filepath.Base(handler), "-ring"); ok {
		n, err := read("the handler's name", of)
		if err != nil {
			return 0, err
		}
		ring, most = n, n
	}
	if text, ok := c.Annotations[ringAnnotation]; ok {
		n, err := read("annotation "+ringAnnotation, text)
		if err != nil {
			return 0, err
		}
		if n < most {
			return 0, fmt.Errorf("annotation %s: %d is above the handler's ring %d", ringAnnotation, n, most)
		}
		ring = n
	}
	return ring, nil
}

// engineCapabilities are those that Docker, Podman and Kubernetes give without being asked. A ring gives none; who asks for more is told.
var engineCapabilities = strings.Fields("CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE CAP_NET_RAW " +
	"CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT")

// engineProfiles are the AppArmor profiles that engines name by themselves, and what they are called where there is none: a ring forbids what
// they do. One that somebody has written may forbid more.
var engineProfiles = []string{"docker-default", "containers-default-", "cri-containerd.apparmor.d", "crio-default", "unconfined"}

// engineTypes likewise of SELinux, which a ring applies no label of.
var engineTypes = []string{"container_t", "container_init_t", "container_kvm_t", "svirt_lxc_net_t", "spc_t"}

// engineSysctls likewise; of the sandbox's own namespaces.
var engineSysctls = []string{"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"}

// ownPlaces are filled by agentrun, whatever a bundle would mount there.
var ownPlaces = []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/var/run", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/sys/fs/cgroup"}

// enginePlaces are those of them on which engines and kubelet mount files of their own, unasked; the sandbox has its own there, or, of a pod's
// token for the API and the file for its last words, none.
var enginePlaces = strings.Fields("/etc/resolv.conf /etc/hosts /etc/hostname /dev/shm /dev/termination-log /run/.containerenv /run/secrets " +
	"/var/run/secrets/kubernetes.io/serviceaccount /run/secrets/kubernetes.io/serviceaccount /sys/fs/cgroup")

// ownDevices are in every sandbox.
var ownDevices = strings.Fields("/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/console /dev/pts /dev/shm /dev/mqueue")

// mostNamed of what a bundle demands: a privileged one has a hundred devices.
const mostNamed = 10

// ErrBeyond is a bundle that demands more than a ring gives.
var ErrBeyond = errors.New("the bundle demands what no ring gives")

// beyond lists what a bundle demands and a ring doesn't give, by name. Where a ring is merely stricter (no capability at all, its own
// filter, a read-only root) nothing is said: the stricter of the two holds.
func beyond(c *specs.Spec, mounts []string) (list []string) {
	no := func(format string, a ...any) { list = append(list, fmt.Sprintf(format, a...)) }
	if caps := c.Process.Capabilities; caps != nil {
		var asked []string
		for _, set := range [][]string{caps.Bounding, caps.Effective, caps.Inheritable, caps.Permitted, caps.Ambient} {
			for _, name := range set {
				if !slices.Contains(engineCapabilities, name) && !slices.Contains(asked, name) {
					asked = append(asked, name)
				}
			}
		}
		for _, name := range asked {
			no("capability %.64q", name)
		}
	}
	for _, need := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.NetworkNamespace} {
		if !slices.ContainsFunc(c.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == need }) {
			no("the host's %s namespace", need)
		}
	}
	for _, n := range c.Linux.Namespaces {
		if n.Path != "" && (n.Type == specs.PIDNamespace || n.Type == specs.MountNamespace) {
			no("another container's %s namespace", n.Type)
		}
	}
	for _, d := range c.Linux.Devices {
		if !slices.Contains(ownDevices, d.Path) {
			no("device %.128q", d.Path)
		}
	}
	if r := c.Linux.Resources; r != nil {
		for _, d := range r.Devices {
			if d.Allow && (d.Type == "" || d.Type == "a") {
				no("all devices")
			}
		}
	}
	if len(c.Linux.MaskedPaths) == 0 {
		no("an unmasked /proc")
	}
	for what, paths := range map[string][]string{"masked": c.Linux.MaskedPaths, "read-only": c.Linux.ReadonlyPaths} {
		for _, at := range paths {
			if !owned(at) {
				no("a %s path %.128q", what, at)
			}
		}
	}
	if p := c.Process.ApparmorProfile; p != "" && !slices.ContainsFunc(engineProfiles, func(own string) bool { return strings.HasPrefix(p, own) }) {
		no("the AppArmor profile %.64q", p)
	}
	if label := c.Process.SelinuxLabel; label != "" {
		kind := label
		if parts := strings.Split(label, ":"); len(parts) > 2 { // user:role:type:level
			kind = parts[2]
		}
		if !slices.Contains(engineTypes, kind) {
			no("the SELinux type %.64q", kind)
		}
	}
	for name := range c.Linux.Sysctl {
		if !slices.Contains(engineSysctls, name) {
			no("sysctl %.64q", name)
		}
	}
	if c.Hooks != nil && len(c.Hooks.CreateContainer)+len(c.Hooks.StartContainer) > 0 {
		no("a hook inside the container")
	}
	for _, m := range c.Mounts {
		if _, ok := offered(m.Source, mounts); bound(m) && !owned(m.Destination) && !ok {
			no("the host's %.200q", m.Source)
		}
		if at := path.Clean("/" + m.Destination); bound(m) && owned(at) && !slices.Contains(enginePlaces, at) {
			no("the host's %.200q on %.128q, where the sandbox has its own", m.Source, at)
		}
		if _, _, given := tmpfs(m); !bound(m) && !given && !filled(m) {
			no("a mount of %.32q on %.128q", m.Type, m.Destination)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func bound(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// filled tells of a file system of the bundle's own in whose place the sandbox has another, as engines count on unasked.
func filled(m specs.Mount) bool {
	at := path.Clean("/" + m.Destination)
	within := func(dir string) bool { return strings.HasPrefix(at, dir+"/") }
	return owned(at) && (m.Type != "tmpfs" || slices.Contains(ownPlaces, at) || slices.Contains(enginePlaces, at) || within("/proc") || within("/sys"))
}

// tmpfs gives the place of a tmpfs that the run has, and its size: anywhere but where agentrun has its own, and within /tmp and /run. A colon
// would be the size's. Other options than size are not looked at.
func tmpfs(m specs.Mount) (at, size string, given bool) {
	at = path.Clean("/" + m.Destination)
	if below, ok := strings.CutPrefix(at, "/var/run/"); ok {
		at = "/run/" + below
	}
	within := strings.HasPrefix(at, "/run/") || strings.HasPrefix(at, "/tmp/")
	ours := slices.Contains(enginePlaces, at) || strings.HasPrefix(at+"/", "/run/agentrun/") || at == "/tmp/sandbox"
	if m.Type != "tmpfs" || bound(m) || ours || owned(at) && !within || strings.Contains(at, ":") {
		return "", "", false
	}
	for _, o := range m.Options {
		if s, ok := strings.CutPrefix(o, "size="); ok && !strings.HasSuffix(s, "%") {
			size = ":" + s
		}
	}
	return at, size, true
}

// owned tells whether a destination is agentrun's to fill.
func owned(destination string) bool {
	at := path.Clean("/" + destination)
	return slices.ContainsFunc(ownPlaces, func(own string) bool { return at == own || strings.HasPrefix(at, own+"/") })
}

// there tells of a working directory that the sandbox may have: what engines' images have in its own places isn't there, and in all there is /tmp.
func there(cwd string) bool { return !owned(cwd) || path.Clean("/"+cwd) == "/tmp" }

// offered gives a folder of the host's without links in its path, if the operator lets bundles show it. An agent that may write on the way
// could make a link of it by the time it is mounted: agentrun refuses that (runtime.Spec.NoLinks).
func offered(source string, mounts []string) (at string, ok bool) {
	at, err := filepath.EvalSymlinks(source)
	return at, err == nil && slices.ContainsFunc(mounts, func(m string) bool {
		m = filepath.Clean(m)
		return at == m || m != "/" && strings.HasPrefix(at, m+"/")
	})
}

// request are the words of agentrun exec that a bundle becomes.
func request(bundle string, c *specs.Spec, ring int, mounts []string, systemd bool) ([]string, error) {
	if list := beyond(c, mounts); len(list) > 0 {
		if n := len(list) - mostNamed; n > 0 {
			list = append(list[:mostNamed], fmt.Sprintf("and %d more", n))
		}
		return nil, hinted.New(fmt.Errorf("%w: %s", ErrBeyond, strings.Join(list, ", ")), "docs/engines.md says what of it an operator can allow")
	}
	root, err := rootOf(bundle, c)
	if err == nil {
		err = mountPoints(root, c)
	}
	if err != nil {
		return nil, err
	}
	words := []string{"--ring", strconv.Itoa(ring), "--rootfs", root}
	if at, ok := cwdOf(root, c); ok {
		words = append(words, "--cwd", at)
	}
	if c.Process.Terminal {
		words = append(words, "-t")
	}
	words = append(words, "-i")
	for _, m := range c.Mounts {
		if at, size, ok := tmpfs(m); ok {
			words = append(words, "--tmpfs", at+size)
		}
		if !bound(m) || owned(m.Destination) {
			continue
		}
		at, ok := offered(m.Source, mounts)
		if !ok {
			return nil, fmt.Errorf("%w: the host's %.200q", ErrBeyond, m.Source) // since beyond looked
		}
		flag := "--bind"
		if ring == defaultRing || slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro") {
			flag = "--ro-bind"
		}
		words = append(words, flag, at+":"+path.Clean("/"+m.Destination))
	}
	// The last part is the container's own, which engines don't make.
	if above := path.Dir(path.Clean("/" + c.Linux.CgroupsPath)); above != "/" && !systemd {
		words = append(words, "--cgroup-above", above)
	}
	return append(words, limits(c.Linux.Resources)...), nil
}

// cwdOf finds a container's working directory: a folder of its root's, by links as they lead within it, or of what is mounted there. Without
// one the run has its own.
func cwdOf(root string, c *specs.Spec) (at string, ok bool) {
	at = path.Clean("/" + c.Process.Cwd)
	within, rest := root, at
	for _, m := range c.Mounts {
		to := path.Clean("/" + m.Destination)
		if below, is := strings.CutPrefix(at+"/", to+"/"); is && bound(m) && !owned(to) {
			within, rest = m.Source, below
		}
	}
	dir, err := unix.Open(within, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, "./"+rest, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	if within == root {
		real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			return "", false
		}
		at = path.Clean("/" + strings.TrimPrefix(real, root))
	}
	return at, there(at)
}

// limits are those that a bundle sets; those of the ring hold where they are less, or where it sets none.
func limits(r *specs.LinuxResources) (words []string) {
	if r == nil {
		return nil
	}
	if m := r.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		words = append(words, "--memory", strconv.FormatInt(*m.Limit, 10))
	}
	if c := r.CPU; c != nil && c.Quota != nil && c.Period != nil && *c.Quota > 0 && *c.Period > 0 {
		words = append(words, "--cpus", strconv.FormatFloat(float64(*c.Quota)/float64(*c.Period), 'f', 3, 64))
	}
	if p := r.Pids; p != nil && p.Limit > 0 {
		words = append(words, "--pids", strconv.FormatInt(p.Limit, 10))
	}
	return words
}
