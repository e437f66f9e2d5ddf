# SPDX-License-Identifier: Apache-2.0
"""A secret that was removed from the workspace is still in its git history."""
import glob
import zlib

from run import PLANTED, WORKSPACE

WORKS = {"objects of the repository": ["ring1", "ring2", "ring3", "strict"]}


def objects():
    for path in glob.glob(WORKSPACE + "/.git/objects/??/*"):
        if PLANTED in zlib.decompress(open(path, "rb").read()):
            return True
    return False


def attack(a):
    a.step("objects of the repository", objects)
