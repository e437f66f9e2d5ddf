# SPDX-License-Identifier: Apache-2.0
"""A folder of the host is writable in the container: leave something there that the host runs."""
from run import FLAG, MARK

PLACES = [f"/etc/cron.d/{MARK}", f"/var/spool/cron/crontabs/{MARK}", f"/etc/profile.d/{MARK}.sh", f"/etc/systemd/system/{MARK}.service",
          f"/usr/local/bin/{MARK}", f"/root/.ssh/{MARK}", f"/etc/ld.so.conf.d/{MARK}.conf", f"/{MARK}"]


def writable():
    """Mounts of a disk that may be written, but for the workspace and ring 1's private root."""
    found = []
    for line in open("/proc/self/mountinfo"):
        before, after = line.split(" - ")
        words, kind = before.split(), after.split()[0]
        if kind in ("ext4", "xfs", "btrfs") and words[5].split(",")[0] == "rw" and not (words[4] + "/").startswith("/workspace/"):
            found.append(words[4])
    return found


def attack(a):
    a.step("mounts that may be written", writable)
    for path in PLACES:
        a.write(path)
    for root in ("", "/host", "/mnt", "/rootfs", "/hostfs"):
        a.read(root + FLAG)
