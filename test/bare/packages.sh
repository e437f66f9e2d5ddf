#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the .deb of `make packages` on the bare Debian of run.sh, upgrades it under a daemon with a run, removes and purges it:
#
#   test/bare/packages.sh
#
# It fails unless daemon and run outlive the upgrade, a removal leaves state alone, and a purge leaves nothing.
# run.sh makes the Debian; `make packages` must have been run. Needs root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${AGENTRUN_CACHE:-$root/.cache}/bare
die() { echo "test/bare/packages.sh: $*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die "it needs root"
# shellcheck disable=SC1091
. /etc/os-release
base=$cache/$VERSION_CODENAME.tar
[[ -e $base ]] || die "there is no $base: test/bare/run.sh makes it"
work=$(mktemp -d "$cache/packages.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

cd "$root"
mkdir -p "$work"/tree/{old,first,second}
tar -C "$work/tree" -xf "$base"
for version in 0.0.1:first 0.0.2:second; do
	PACKAGE_VERSION=${version%:*} PACKAGE_MAINTAINER=test .cache/bin/nfpm package -f packaging/nfpm.yaml -p deb -t "$work/tree/${version#*:}/" >/dev/null
done
cat >"$work/tree/try" <<'EOF'
set -e
dpkg -i /first/*.deb
for f in /usr/bin/agentrun /usr/bin/agentrun-gateway /usr/bin/agentrun-safety /usr/lib/systemd/system/agentrun.service /usr/lib/systemd/system/agentrun.socket \
	/usr/share/man/man1/agentrun.1.gz /usr/share/bash-completion/completions/agentrun /usr/share/doc/agentrun/copyright /usr/share/doc/agentrun/profiles/ring3.yaml; do
	test -s "$f" || { echo "missing: $f"; exit 1; }
done
grep -q '^ExecStart=/usr/bin/agentrun serve$' /usr/lib/systemd/system/agentrun.service
agentrun serve &
daemon=$!
until test -S /run/agentrun/control/exec.handoff; do kill -0 $daemon; sleep 0.05; done
agentrun exec --detach --name long -- sleep 600
dpkg -i /second/*.deb
test "$(dpkg-query -W -f '${Version}' agentrun)" = 0.0.2
kill -0 $daemon
agentrun ps | grep -w long | grep -w running
test "$(agentrun exec --no-gateway -- echo a new run)" = 'a new run'
agentrun kill long
kill $daemon
wait $daemon
dpkg -r agentrun
test ! -e /usr/bin/agentrun
test -d /var/lib/agentrun
dpkg -P agentrun
left=$(find / -xdev -name '*agentrun*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/run/*' -not -path '/first/*' -not -path '/second/*' -not -path '/var/log/*')
test -z "$left" || { echo "left behind: $left"; exit 1; }
EOF
cat >"$work/enter" <<'EOF'
set -e
cd "$1"
mount --bind . .
cd "$1" # pivot_root(2) wants a mount point
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
pivot_root . old
umount -l /old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -x /try
EOF
unshare --mount --propagation private --pid --fork --kill-child timeout 120 bash "$work/enter" "$work/tree" </dev/null >"$work/log" 2>&1 ||
	{ tail -n 30 "$work/log" >&2; die "see above"; }
