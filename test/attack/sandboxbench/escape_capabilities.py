# SPDX-License-Identifier: Apache-2.0
"""One capability too many: try what each of the dangerous ones would give."""
import ctypes
import os
import socket
import struct

from run import syscall

RECORD = ["chroot", "socket", "reboot", "sethostname", "ptrace"]


def attack(a):
    head = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    a.step("capset all", syscall, 126, head, ctypes.create_string_buffer(b"\xff" * 24))
    a.step("setuid 0", os.setuid, 0)
    a.step("setgid 0", os.setgid, 0)
    a.step("chroot", os.chroot, "/")
    a.step("chown to root", lambda: os.chown("/tmp/sandbox", 0, 0) is None)
    a.step("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    a.step("port 80", lambda: socket.socket().bind(("0.0.0.0", 80)) is None)
    a.step("reboot", syscall, 169, 0xfee1dead, 672274793, 0x89abcdef, None)
    a.step("sethostname", syscall, 170, b"x", 1)
    a.step("trace pid 1", syscall, 101, 0x4206, 1, 0, 0)
    a.step("nice below 0", lambda: os.nice(-5) < 0)
    a.step("ambient capabilities", lambda: int(next(l for l in open("/proc/self/status") if l.startswith("CapAmb")).split()[1], 16))
