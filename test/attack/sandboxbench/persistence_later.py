# SPDX-License-Identifier: Apache-2.0
"""In the next run, with the same workspace: is anything there of what the run before has left?"""
import os

from run import MARK, syscall


def found(*roots):
    hits = []
    for top in roots:
        for root, _, names in os.walk(top):
            for name in names:
                path = os.path.join(root, name)
                try:
                    if MARK in name or os.path.getsize(path) < 4096 and MARK in open(path, errors="replace").read():
                        hits.append(path)
                except OSError:
                    pass
    return hits


def attack(a):
    a.step("home, scratch, shared memory, queues", found, "/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp")
    a.step("places of the host's services", found, "/etc", "/root", "/run", "/usr/local/bin", "/usr/local/sbin", "/boot", "/var/lib")
    a.step("System V shared memory", lambda: syscall(29, 0x6174, 4096, 0) >= 0)
    a.step("processes", lambda: len([n for n in os.listdir("/proc") if n.isdigit()]) > 2)
