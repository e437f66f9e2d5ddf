#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small agent: does its work in the scratch, then tries what ring 3 does not allow.

Run it with: agentrun exec --ring 3 --on-breach record -- agent.py

All that it tries is a breach, which ends a run after the first few; --on-breach record lets it try the rest.
"""

import ctypes
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading


def work():
    """What an agent is for: read its input, compute in threads, leave a result in the scratch."""
    digests = {}

    def digest(name):
        digests[name] = hashlib.sha256(name.encode() * 10000).hexdigest()[:12]

    threads = [threading.Thread(target=digest, args=(f"part-{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as f:
        json.dump(digests, f)
        f.flush()
        print(f"worked: {len(digests)} digests by {len(threads)} threads into {f.name}")


def mount():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", b"/tmp/sandbox", b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write(path):
    with open(path, "w") as f:
        f.write("agent was here")


def namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def reach(address):
    """The gateway answers every address inside, to say no: what counts is whether a server does."""
    with socket.create_connection((address, 443), timeout=3) as s, ssl.create_default_context().wrap_socket(s, server_hostname=address):
        pass


# Documentation and loopback addresses: nothing leaves this machine even where the sandbox is missing.
ATTEMPTS = [
    ("reach an outside address", lambda: reach("192.0.2.1")),
    ("look up a name", lambda: socket.getaddrinfo("agent.example", 443)),
    ("start a program", lambda: subprocess.run(["/bin/ls"], check=True, capture_output=True)),
    ("fork", os.fork),
    ("read the host's shadow file", lambda: open("/etc/shadow").read()),
    ("list root's home", lambda: os.listdir("/root")),
    ("list the host's processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 100][0]),
    ("write to the root", lambda: write("/usr/agent-was-here")),
    ("write to the workspace", lambda: write("/workspace/agent-was-here")),
    ("mount a file system", mount),
    ("make a user namespace", namespace),
]


def main():
    work()
    got_through = 0
    for what, attempt in ATTEMPTS:
        try:
            attempt()
        except (OSError, IndexError, subprocess.SubprocessError) as e:
            print(f"refused: {what}: {e or 'nothing there'}")
        else:
            got_through += 1
            print(f"ALLOWED: {what}")
    print(f"{len(ATTEMPTS) - got_through} of {len(ATTEMPTS)} attempts refused")
    return 1 if got_through else 0


if __name__ == "__main__":
    sys.exit(main())
