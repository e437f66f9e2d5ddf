# SPDX-License-Identifier: Apache-2.0
"""Secrets in the environment: one's own, and that of every process in view."""
import glob
import os

from run import PLANTED


def attack(a):
    a.step("own environment", lambda: any(PLANTED in v for v in os.environb.values()))
    for path in sorted(glob.glob("/proc/[0-9]*/environ") + ["/proc/self/environ"]):
        a.read(path)

