# SPDX-License-Identifier: Apache-2.0
"""Secrets in files: those that everybody knows, agentrun's own, and whatever a walk through the view finds."""
import os

from run import FLAG, PLANTED, STATE

KNOWN = ["/etc/shadow", "/etc/gshadow", "/root/.ssh/id_ed25519", "/root/.aws/credentials", "/root/.netrc", "/root/.bash_history", "/root/.docker/config.json",
         "/root/.kube/config", "/run/secrets/kubernetes.io/serviceaccount/token", "/etc/agentrun/gateway.yaml", "/etc/machine-id", "/proc/keys"]


def walk():
    found = []
    for root, folders, names in os.walk("/"):
        if root == "/":
            folders[:] = [f for f in folders if f not in ("usr", "proc", "workspace", "attack", "dev")]
        for name in names:
            try:
                with open(os.path.join(root, name), "rb") as f:
                    if PLANTED in f.read(1 << 16):
                        found.append(os.path.join(root, name))
            except OSError:
                pass
    return found


def attack(a):
    for path in KNOWN:
        a.read(path, b"")
    a.read(FLAG)
    for name in ("state.db", "audit/node.key", "audit/log", ""):
        a.step(f"agentrun's state: {name}", os.stat, os.path.join(STATE, name))
    a.step("a walk through all that is shown", walk)
