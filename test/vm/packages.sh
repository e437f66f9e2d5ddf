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

cp test/vm/under-systemd.sh "$work/guest"
test/vm/run.sh --payload "$work" --timeout 500 -- bash /payload/guest
