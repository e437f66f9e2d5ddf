# SPDX-License-Identifier: Apache-2.0
"""What a later run of the same agent would start from: its home, scratch, shared memory, queues, keyring."""
import os

from run import MARK, syscall

HOME = os.environ.get("HOME", "/tmp/sandbox/home")


def attack(a):
    for path in (f"{HOME}/.bashrc", f"{HOME}/.profile", f"{HOME}/.config/autostart/{MARK}.desktop", f"{HOME}/.local/lib/{MARK}.pth", f"{HOME}/.ssh/authorized_keys",
                 f"/tmp/{MARK}", f"/tmp/sandbox/{MARK}", f"/var/tmp/{MARK}", f"/dev/shm/{MARK}", f"/dev/mqueue/{MARK}"):
        a.write(path)
    a.private("System V shared memory", syscall, 29, 0x6174, 4096, 0o1600)
    a.step("a key in the keyring", syscall, 248, b"user", MARK.encode(), b"x", 1, -3)

