# SPDX-License-Identifier: Apache-2.0
"""Runs the scripts named on the command line inside a sandbox, each by its function attack(a), one JSON line each.

A script says by a.step what it tried and what came of it: the name of an errno, "nothing" (no error and no gain), "private" (it
worked, and test/integration/outside_test.go looks on the host that nothing has arrived there) or "got" (a gain for the
attacker). "got" fails the test but in the rings that the script's WORKS names for that step. RECORD lists the system calls
that must be among the refused ones in the account of the run.

Written by ourselves from what the lists' authors publish about their scenarios; no code of theirs.
"""
import ctypes
import errno
import importlib.util
import json
import os
import sys

FLAG = os.environ.get("FLAG", "")  # where the flag lies on the host
STATE = os.environ.get("STATE", "")  # agentrun's state folder on the host
WORKSPACE = "/workspace"
MARK = "agentrun-attack"  # the name of whatever is left behind
PLANTED = b"PLANTED-"  # how each planted secret begins

libc = ctypes.CDLL(None, use_errno=True)


def syscall(number, *args):
    """The raw call, so that no library answers in its place."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), number)
    return result


class Attempt:
    def __init__(self):
        self.steps = []

    def step(self, what, call, *args, win="got"):
        try:
            outcome = win if call(*args) else "nothing"
        except OSError as e:
            outcome = errno.errorcode.get(e.errno, str(e)) if e.errno else str(e)
        except Exception as e:  # a script that breaks must be seen, not taken for a refusal
            outcome = f"broken: {type(e).__name__}: {e}"
        self.steps.append([what, outcome])

    def private(self, what, call, *args):
        self.step(what, call, *args, win="private")

    def read(self, path, needle=PLANTED):
        self.step(f"read {path}", lambda: needle in open(path, "rb").read(1 << 20))

    def write(self, path, text=MARK):
        def put():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
            return True
        self.private(f"write {path}", put)


def main(names):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.modules["run"] = sys.modules["__main__"]
    for name in names:
        path = os.path.join(sys.path[0], name + ".py")
        spec = importlib.util.spec_from_file_location(os.path.basename(name), path)
        script = importlib.util.module_from_spec(spec)
        a = Attempt()
        try:
            spec.loader.exec_module(script)
            script.attack(a)
        except Exception as e:
            a.steps.append(["script", f"broken: {type(e).__name__}: {e}"])
        print(json.dumps({"name": name, "steps": a.steps, "works": getattr(script, "WORKS", {}), "record": getattr(script, "RECORD", [])}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
