#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up sales.csv. With --daemonize it tries to leave its session first, as programs do that want to outlive their caller."""

import collections
import csv
import os
import sys

if "--daemonize" in sys.argv:
    os.setsid()
sums = collections.Counter()
with open("sales.csv", newline="") as table:
    for row in csv.DictReader(table):
        sums[row["region"]] += int(row["sold"])
for region, sold in sums.items():
    print(region, sold)
