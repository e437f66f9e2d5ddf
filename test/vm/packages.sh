#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The .deb of `make packages` under systemd, in the VM:
#
#   test/vm/packages.sh
#
# It fails unless the units start and serve, an upgrade leaves the daemon and its run alone and says so, a restart brings the new
# version, a removal stops both and ends the runs, and a purge leaves nothing. `make packages` must have been run. Needs root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/agentrun-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir "$work/first" "$work/second"
for version in 0.0.1:first 0.0.2:second; do
	PACKAGE_VERSION=${version%:*} PACKAGE_MAINTAINER=test .cache/bin/nfpm package -f packaging/nfpm.yaml -p deb -t "$work/${version#*:}/" >/dev/null
done

# What a machine has when its service manager begins. The disk is thrown away: nothing is hidden from what follows.
cat >"$work/boot" <<'EOT'
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

cat >"$work/try" <<'EOT'
set -euxo pipefail
# Tells what is there when a step fails, and ends.
trap 'systemctl status --no-pager agentrun.service || true; journalctl --no-pager -n 30 || true' ERR
daemon() { systemctl show -P MainPID agentrun.service; }
supervisor() { agentrun inspect "$1" --json | sed -n 's/.*"supervisor": *\([0-9]*\).*/\1/p' | head -n 1; }
long() { agentrun exec --detach --timeout 300s --name "$1" -- /bin/sleep 300; }
cd /srv

dpkg -i /payload/first/*.deb
test -z "$(systemctl is-active agentrun.service agentrun.socket | grep -x active || true)" # nothing is started by an install
systemctl enable --now agentrun.socket agentrun.service
before=$(daemon)
test "$(agentrun exec -- /bin/echo by the service)" = 'by the service'
long old
test "$(supervisor old)" = "$before"

dpkg -i /payload/second/*.deb 2>&1 | tee upgrade
grep -q 'the daemon still runs the version before' upgrade
test "$(dpkg-query -W -f '${Version}' agentrun)" = 0.0.2
test "$(daemon)" = "$before"
agentrun ps | grep -w old | grep -w running
test "$(agentrun exec -- /bin/echo a new run)" = 'a new run'
agentrun ps | grep -w old | grep -w running

systemctl restart agentrun.service
test "$(daemon)" != "$before"
test -z "$(agentrun ps | grep -w old | grep -w running || true)" # as the upgrade said
long new
test "$(supervisor new)" = "$(daemon)"

dpkg -r agentrun
test ! -e /usr/bin/agentrun
test -z "$(pgrep -x sleep || true)"
test -z "$(systemctl list-units --all --no-legend 'agentrun*')"
test -z "$(systemctl list-unit-files --no-legend 'agentrun*')"
test -d /var/lib/agentrun
dpkg -P agentrun
rm upgrade
left=$(find / -xdev -name '*agentrun*' -not -path '/payload/*'; find /run /tmp /sys/fs/cgroup -name '*agentrun*')
test -z "$left" || { echo "left behind: $left"; exit 1; }
EOT

cat >"$work/guest" <<'EOT'
set -euo pipefail
mkdir /sys/fs/cgroup/machine
sh -c 'echo $$ >/sys/fs/cgroup/machine/cgroup.procs && exec unshare --mount --cgroup --pid --fork --kill-child env -i PATH="$PATH" container=test sh /payload/boot' &
parent=$!
until machine=$(pgrep -P $parent); do sleep 0.1; done
echo $parent >/sys/fs/cgroup/cgroup.procs # a group with groups below holds no processes
touch /payload/go
inside() { nsenter -t "$machine" -m -p -C -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SYSTEMD_COLORS=0 "$@"; }
until [[ -S /proc/$machine/root/run/systemd/private ]]; do kill -0 "$machine"; sleep 0.2; done
inside systemctl is-system-running --wait
code=0
inside bash /payload/try || code=$?
kill -9 "$machine"
exit $code
EOT
test/vm/run.sh --payload "$work" --timeout 500 -- bash /payload/guest
