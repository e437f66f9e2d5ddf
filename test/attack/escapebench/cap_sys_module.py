# SPDX-License-Identifier: Apache-2.0
"""CAP_SYS_MODULE: load a module into the host's kernel."""
import os

from run import syscall

RECORD = ["init_module", "finit_module", "delete_module", "kexec_load"]


def attack(a):
    image = b"\x7fELF" + bytes(60)
    a.step("init_module", syscall, 175, image, len(image), b"")
    fd = os.open("/tmp/sandbox/m.ko", os.O_RDWR | os.O_CREAT, 0o600)
    a.step("finit_module", syscall, 313, fd, b"", 0)
    os.close(fd)
    a.step("delete_module", syscall, 176, b"dummy", 0)
    a.step("kexec_load", syscall, 246, 0, 0, None, 0)
    a.write("/proc/sys/kernel/modprobe")
    a.step("list of modules", lambda: open("/proc/modules").read())
    a.step("a family that would load its module", lambda: __import__("socket").socket(30, 5, 0))
