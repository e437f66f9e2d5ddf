// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoLandlock says that the kernel has none, or that it is switched off.
var ErrNoLandlock = errors.New("the kernel has no Landlock")

const (
	readRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	writeRights = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
	treeRights = unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REFER
	// fileRights are those that a rule on a file may carry; landlock_add_rule(2) answers EINVAL to others.
	fileRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE

	scopeAbstractUnix = 1 << 0 // landlock(7), ABI 6
)

// alwaysRead is what Go's resolver, certificate pools and time zones look for, on Debian, Fedora and Alpine. What isn't there
// is passed over. No folder that has keys: of /etc/ssl only the certificates.
func alwaysRead() []string {
	return []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/localtime", "/usr/share/zoneinfo",
		"/etc/ssl/certs", "/etc/ssl/cert.pem", "/usr/lib/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
		"/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
	}
}

// handledRights is every right that the ABI knows: what isn't handled isn't refused.
func handledRights(abi int) unix.LandlockRulesetAttr {
	fs := uint64(readRights | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM)
	attr := unix.LandlockRulesetAttr{}
	if abi >= 2 {
		fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP // connecting stays: it is the work
	}
	if abi >= 5 {
		fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		// Not the scope of signals: each thread gets a domain of its own here, and before erratum 2 (fixed in 6.15) that kept
		// threads of one process from signalling each other. The filter holds signals to this process.
		attr.Scoped = scopeAbstractUnix
	}
	attr.Handled_access_fs = fs
	return attr
}

// domain is a ruleset that waits to be entered. fd is -1 where there is none.
type domain struct{ fd int }

func openDomain(o Options) (*domain, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		if o.BestEffort && (errno == unix.ENOSYS || errno == unix.EOPNOTSUPP) {
			return &domain{-1}, nil
		}
		return nil, fmt.Errorf("%w: landlock_create_ruleset(2): %w", ErrNoLandlock, errno)
	}
	if o.tree != "" && abi < 2 { // it would refuse links between folders of the tree
		return nil, fmt.Errorf("%w of ABI 2 (Linux 5.19): it has %d", ErrNoLandlock, abi)
	}
	attr := handledRights(int(abi))
	// The kernel takes a longer structure than it knows if the rest is zero (landlock_create_ruleset(2)).
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, fmt.Errorf("landlock_create_ruleset(2): %w", errno)
	}
	d := &domain{int(fd)}
	if err := d.fill(o, attr.Handled_access_fs); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *domain) fill(o Options, handled uint64) error {
	for _, path := range alwaysRead() {
		if o.offline {
			break
		}
		if err := d.allow(path, readRights&handled); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	for _, path := range o.Read {
		if err := d.allow(path, readRights&handled); err != nil {
			return err
		}
	}
	for _, path := range o.Write {
		if err := d.allow(path, (readRights|writeRights)&handled); err != nil {
			return err
		}
	}
	if o.tree == "" {
		return nil
	}
	return d.allow(o.tree, (readRights|writeRights|treeRights)&handled)
}

func (d *domain) allow(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(d.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule(2) %s: %w", path, errno)
	}
	return nil
}

func (d *domain) enter() error {
	if d.fd < 0 {
		return nil
	}
	return everyThread("landlock_restrict_self(2)", unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(d.fd), 0)
}

func (d *domain) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
}
