# SPDX-License-Identifier: Apache-2.0
"""CVE-2019-5736: the runtime runs itself inside; its binary is then open to be overwritten."""
import glob
import os


def overwrite(path):
    fd = os.open(path, os.O_WRONLY)
    os.close(fd)
    return True


def attack(a):
    for exe in sorted(glob.glob("/proc/[0-9]*/exe")):
        if exe != f"/proc/{os.getpid()}/exe":
            a.step(f"write {exe.replace(exe.split('/')[2], 'N') if exe != '/proc/1/exe' else exe}", overwrite, exe)
            a.step("see which program it is", os.readlink, exe)
    a.step("write one's own interpreter while it runs", overwrite, "/proc/self/exe")
    for fd in range(3, 64):
        try:
            to = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        a.step(f"a descriptor of the runtime's: {fd}", lambda: "agentrun" in to or "runc" in to)
