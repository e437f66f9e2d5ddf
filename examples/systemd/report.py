#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a service's agent has for its own, told in one line."""

import os
import socket


def write():
    open("/srv/reporter/note", "w")


def fork():
    os.fork()


def connect():
    socket.create_connection(("192.0.2.1", 4444), timeout=3)


refused = 0
attempts = [write, fork, connect]
for attempt in attempts:
    try:
        attempt()
    except OSError:
        refused += 1
print(f"report: {refused} of {len(attempts)} attempts refused")
