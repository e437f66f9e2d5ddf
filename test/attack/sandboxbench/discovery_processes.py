# SPDX-License-Identifier: Apache-2.0
"""Secrets in the command lines of other processes, and in what connects them."""
import glob

from run import PLANTED


def attack(a):
    for path in sorted(glob.glob("/proc/[0-9]*/cmdline")):
        a.read(path)
    a.step("unix sockets of others", lambda: [l for l in open("/proc/net/unix") if PLANTED.decode() in l])
    a.step("kernel log", lambda: PLANTED in open("/dev/kmsg", "rb").read(100))
    a.step("mounts that name a secret", lambda: PLANTED.decode() in open("/proc/self/mountinfo").read())
