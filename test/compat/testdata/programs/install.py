# SPDX-License-Identifier: Apache-2.0
"""What pip does to the machine: files into site-packages, a program into /usr/local/bin, both used at once."""
import importlib
import os
import subprocess
import sys

site = "/usr/local/lib/python3.11/dist-packages"
program = "/usr/local/bin/agentrun-compat"
if os.path.exists(site + "/agentrun_compat") or os.path.exists(program):
    sys.exit("an earlier run is still there")
os.makedirs(site + "/agentrun_compat", exist_ok=True)
with open(site + "/agentrun_compat/__init__.py", "w") as f:
    f.write("answer = 42\n")
with open(program, "w") as f:
    f.write("#!/usr/bin/python3\nimport sys\nsys.path.insert(0, %r)\nimport agentrun_compat\nprint('installed', agentrun_compat.answer)\n" % site)
os.chmod(program, 0o755)
print(subprocess.run(["agentrun-compat"], capture_output=True, text=True, check=True).stdout.strip())
