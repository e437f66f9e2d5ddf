# SPDX-License-Identifier: Apache-2.0
"""A process that lives on: forked away, in a session of its own, deaf to signals, or asked for by a timer."""
import os
import signal
import time


def stay():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return True
    os.setsid()
    if os.fork() == 0:
        for n in range(1, 32):
            try:
                signal.signal(n, signal.SIG_IGN)
            except OSError:
                pass
        for fd in range(3):
            os.close(fd)
        os.chdir("/")
        while True:
            time.sleep(3600)
    os._exit(0)


def attack(a):
    a.private("fork away", stay)
    a.private("a timer that signals", signal.setitimer, signal.ITIMER_REAL, 3600)
