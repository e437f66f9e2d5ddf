# SPDX-License-Identifier: Apache-2.0
import mmap
import os
import shutil
import tempfile

assert tempfile.gettempdir() == "/tmp/sandbox", tempfile.gettempdir()
with tempfile.TemporaryDirectory() as d:
    path = os.path.join(d, "a", "b")
    os.makedirs(path)
    with open(os.path.join(path, "f"), "w") as f:
        f.write("x" * 5000)
    os.symlink("f", os.path.join(path, "link"))
    shutil.make_archive(os.path.join(d, "archive"), "gztar", path)
    print(sorted(os.listdir(d)))
with tempfile.TemporaryFile() as f:
    f.truncate(8192)
    with mmap.mmap(f.fileno(), 8192) as m:
        m[4096:4099] = b"map"
    f.seek(4096)
    print(f.read(3).decode(), os.path.exists(d))
with tempfile.SpooledTemporaryFile(max_size=4) as f:
    f.write(b"longer than four")
    print(f.tell())
