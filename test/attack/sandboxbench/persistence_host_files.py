# SPDX-License-Identifier: Apache-2.0
"""Files that the host's own services start from."""
from run import MARK


def attack(a):
    for path in (f"/etc/cron.d/{MARK}", f"/etc/cron.daily/{MARK}", f"/var/spool/cron/crontabs/{MARK}", f"/etc/systemd/system/{MARK}.service",
                 f"/etc/init.d/{MARK}", f"/etc/profile.d/{MARK}.sh", f"/etc/ld.so.conf.d/{MARK}.conf", f"/etc/udev/rules.d/{MARK}.rules", f"/root/.ssh/{MARK}",
                 f"/usr/lib/python3/dist-packages/{MARK}.pth", f"/usr/local/sbin/{MARK}", f"/lib/modules/{MARK}", f"/boot/{MARK}", f"/run/{MARK}", f"/var/lib/{MARK}"):
        a.write(path)
