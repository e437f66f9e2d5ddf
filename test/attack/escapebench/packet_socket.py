# SPDX-License-Identifier: Apache-2.0
"""Bugs behind packet sockets (a use after free in rings and fanout): make one, if need be in a namespace of one's own."""
import socket

from run import syscall

RECORD = ["socket", "unshare"]


def attack(a):
    a.step("AF_PACKET raw", lambda: socket.socket(17, socket.SOCK_RAW, 3))
    a.step("AF_PACKET datagram", lambda: socket.socket(17, socket.SOCK_DGRAM, 3))
    a.step("unshare user and network namespaces", syscall, 272, 0x10000000 | 0x40000000)
    a.step("AF_INET raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
