# SPDX-License-Identifier: Apache-2.0
"""CAP_SYS_ADMIN: mount what the host has, or enter its namespaces."""
import os

from run import syscall

RECORD = ["mount", "unshare", "setns", "pivot_root", "open_tree"]


def attack(a):
    for kind in (b"proc", b"sysfs", b"devtmpfs", b"tmpfs", b"debugfs", b"overlay"):
        a.step(f"mount {kind.decode()}", syscall, 165, b"none", b"/tmp/sandbox", kind, 0, None)
    a.step("bind / elsewhere", syscall, 165, b"/", b"/tmp/sandbox", None, 4096 | 16384, None)
    a.step("unshare a mount namespace", syscall, 272, 0x00020000)
    a.step("unshare a user namespace first", syscall, 272, 0x10000000 | 0x00020000)
    fd = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    a.step("setns", syscall, 308, fd, 0)
    os.close(fd)
    a.step("open the namespace of pid 1", os.open, "/proc/1/ns/mnt", os.O_RDONLY)
    a.step("pivot_root", syscall, 155, b"/tmp/sandbox", b"/tmp/sandbox")
    a.step("open_tree", syscall, 428, -100, b"/", 1)
