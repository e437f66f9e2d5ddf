#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In the VM: boots systemd in namespaces of its own, with all of the machine's controllers, and runs /payload/try beside it.
set -euo pipefail
# What a machine has when its service manager begins. The disk is thrown away: nothing is hidden from what follows.
cat >/payload/boot <<'EOT'
set -e
until [ -e /payload/go ]; do sleep 0.1; done # the process before us has left our cgroup
mount -t proc proc /proc
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for d in /run /tmp; do mount -t tmpfs tmpfs $d; done
mkdir -p /etc/systemd/system-generators
cd /usr/lib/systemd # what a machine with hardware and users wants
for u in system-generators/* system/sysinit.target.wants/* system/local-fs.target.wants/* system/timers.target.wants/*; do
	case $u in
	*journal* | *'*') ;;
	system-generators/*) ln -sf /dev/null "/etc/systemd/$u" ;;
	*) ln -sf /dev/null "/etc/systemd/system/${u##*/}" ;;
	esac
done
mount --make-rshared /
exec /usr/lib/systemd/systemd --show-status=no --unit=basic.target
EOT
mkdir /sys/fs/cgroup/machine
sh -c 'echo $$ >/sys/fs/cgroup/machine/cgroup.procs && exec unshare --mount --cgroup --pid --fork --kill-child env -i PATH="$PATH" container=test sh /payload/boot' &
parent=$!
until machine=$(pgrep -P $parent); do sleep 0.1; done
echo $parent >/sys/fs/cgroup/cgroup.procs # a group with groups below holds no processes
touch /payload/go
mkdir /sys/fs/cgroup/machine/try
# Within the machine's part of the hierarchy: systemd can move nobody into it from outside (nsdelegate).
inside() (
	echo "$BASHPID" >/sys/fs/cgroup/machine/try/cgroup.procs
	exec nsenter -t "$machine" -m -p -C -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SYSTEMD_COLORS=0 "$@"
)
until [[ -S /proc/$machine/root/run/systemd/private ]]; do kill -0 "$machine"; sleep 0.2; done
inside systemctl is-system-running --wait
code=0
inside bash /payload/try || code=$?
kill -9 "$machine"
exit $code
