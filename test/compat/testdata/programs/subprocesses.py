# SPDX-License-Identifier: Apache-2.0
import asyncio
import multiprocessing
import os
import pty
import subprocess
import sys


def square(x):
    return x * x


async def child():
    p = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    out, _ = await p.communicate(b"through cat")
    return out.decode()


if __name__ == "__main__":
    print(subprocess.run("echo a b | tr a-z A-Z", shell=True, capture_output=True, text=True).stdout.strip())
    print(subprocess.run([sys.executable, "-c", "import sys; sys.exit(7)"]).returncode)
    print(asyncio.run(child()))
    for method in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, [2, 3]))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("tty", ["tty"])
    print(os.read(terminal, 100).decode().strip().startswith("/dev/pts/"), os.waitpid(pid, 0)[1])
