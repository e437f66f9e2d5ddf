# SPDX-License-Identifier: Apache-2.0
"""An engine's socket is in the container: ask it for a container that has the host."""
import socket

SOCKETS = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
           "/run/user/0/podman/podman.sock", "/run/agentrun/control.sock"]


def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
    return True


def tcp(host, port):
    with socket.socket() as s:
        s.settimeout(3)
        s.connect((host, port))
    return True


def attack(a):
    for path in SOCKETS:
        a.step(f"connect {path}", unix, path)
    for host in ("127.0.0.1", "172.17.0.1", "10.0.2.2"):
        for port in (2375, 2376):
            a.step(f"connect {host}:{port}", tcp, host, port)
