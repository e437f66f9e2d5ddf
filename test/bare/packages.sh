#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the .deb and the .rpm of `make packages` on the bare Debian of run.sh, upgrades each under a daemon with a run, removes it,
# and purges the .deb:
#
#   test/bare/packages.sh
#
# It fails unless daemon and run outlive the upgrade, a removal leaves state alone, and a purge leaves nothing. rpm is Debian's own,
# which knows no dependencies there: ours has none. run.sh makes the Debian; `make packages` must have been run. Needs root, and
# network the first time, for rpm. Units under systemd: test/vm/packages.sh.
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
apart() { unshare --mount --propagation private --pid --fork --kill-child "$@"; }
with_rpm=${base%.tar}-rpm.tar
if [[ ! -e $with_rpm ]]; then
	mkdir "$work/rpm"
	tar -C "$work/rpm" -xf "$base"
	cp -L /etc/resolv.conf /etc/hosts "$work/rpm/etc/"
	cat >"$work/add" <<'EOF'
set -e
mount -t proc proc "$1/proc"
chroot "$1" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
	sh -c 'apt-get -q update && apt-get -q install -y --no-install-recommends rpm && apt-get clean'
EOF
	apart bash "$work/add" "$work/rpm" </dev/null >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "rpm could not be installed"; }
	tar -C "$work/rpm" --one-file-system -cf "$work/tar" .
	mv "$work/tar" "$with_rpm"
fi
mkdir -p "$work"/tree/{old,first,second}
tar -C "$work/tree" -xf "$with_rpm"
for version in 0.0.1:first 0.0.2:second; do
	for kind in deb rpm; do
		PACKAGE_VERSION=${version%:*} PACKAGE_MAINTAINER=test .cache/bin/nfpm package -f packaging/nfpm.yaml -p $kind -t "$work/tree/${version#*:}/" >/dev/null
	done
done
cat >"$work/tree/try" <<'EOF'
set -e
# cycle KIND INSTALL UPGRADE VERSION REMOVE: from the first install to the removal, with a daemon that has a run
cycle() {
	$2 /first/*.$1
	for f in /usr/bin/agentrun /usr/bin/agentrun-gateway /usr/bin/agentrun-safety /usr/bin/agentrun-image /usr/bin/agentrun-ring2 /usr/lib/systemd/system/agentrun.service \
		/usr/lib/systemd/system/agentrun.socket /usr/share/man/man1/agentrun.1.gz /usr/share/bash-completion/completions/agentrun \
		/usr/share/doc/agentrun/copyright /usr/share/doc/agentrun/profiles/ring3.yaml; do
		test -s "$f" || { echo "missing: $f"; exit 1; }
	done
	grep -q '^ExecStart=/usr/bin/agentrun serve$' /usr/lib/systemd/system/agentrun.service
	agentrun serve &
	daemon=$!
	until test -S /run/agentrun/control/exec.handoff; do kill -0 $daemon; sleep 0.05; done
	agentrun exec --detach --name long -- sleep 600
	$3 /second/*.$1
	test "$($4)" = 0.0.2
	kill -0 $daemon
	agentrun ps | grep -w long | grep -w running
	test "$(agentrun exec --no-gateway -- echo a new run)" = 'a new run'
	agentrun kill long
	kill $daemon
	wait $daemon
	$5
	test ! -e /usr/bin/agentrun
	test -d /var/lib/agentrun
}
nothing_left() {
	left=$(find / -xdev -name '*agentrun*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/first/*' -not -path '/second/*' -not -path '/var/log/*')
	test -z "$left" || { echo "left behind: $left"; exit 1; }
}
cycle deb 'dpkg -i' 'dpkg -i' 'dpkg-query -W -f ${Version} agentrun' 'dpkg -r agentrun'
dpkg -P agentrun
nothing_left
cycle rpm 'rpm -i' 'rpm -U' 'rpm -q --qf %{VERSION} agentrun' 'rpm -e agentrun'
rm -r /var/lib/agentrun /run/agentrun # rpm has no purge
nothing_left
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
apart timeout 240 bash "$work/enter" "$work/tree" </dev/null >"$work/log" 2>&1 ||
	{ tail -n 30 "$work/log" >&2; die "see above"; }
