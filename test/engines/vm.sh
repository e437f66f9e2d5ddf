#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh on Debian's kernel with cgroup v2 only, in the VM of test/vm; `vm.sh systemd`: systemd.sh, beside systemd. The engines' packages are unpacked into the machine's disk, which is thrown
# away, and not installed: what they would start at boot isn't there. Needs root, and half an hour without KVM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

image=$(test/vm/build.sh)
work=$(mktemp -d "${TMPDIR:-/var/tmp}/agentrun-engines-vm.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/debs/partial" "$work/tree" "$work/payload/bin" "$work/payload/test/engines"
debugfs -R "dump /var/lib/dpkg/status $work/status" "$image/rootfs.ext4" 2>/dev/null
mapfile -t packages < <(sed -n 's/^engines) packages+=(\(.*\)) ;;$/\1/p' scripts/install-deps.sh | tr ' ' '\n')
((${#packages[@]} > 3))
# What the machine lacks of them, and nothing that is merely recommended.
apt-get -qq -o "Dir::State::status=$work/status" -o "Dir::Cache::archives=$work/debs" -o APT::Sandbox::User=root \
	install --download-only --yes --no-install-recommends "${packages[@]}" iptables bsdutils >&2
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/tree"; done
rm -rf "$work/tree"/usr/share/{doc,man,locale} # the alternatives are made by an installation
for name in iptables ip6tables; do ln -s "$name-legacy" "$work/tree/usr/sbin/$name"; done
tar -C "$work/tree" -cf "$work/payload/engines.tar" .
cp bin/agentrun* "$work/payload/bin/"
cp test/engines/*.sh "$work/payload/test/engines/"
if [[ ${1:-} == systemd ]]; then
	cp test/engines/systemd.sh "$work/payload/try"
	cp test/vm/under-systemd.sh "$work/payload/then"
else
	echo 'AGENTRUN_ENGINES_IN=/work AGENTRUN_ENGINES_PATIENCE=300 COMPOSE_HTTP_TIMEOUT=300 exec bash test/engines/run.sh' >"$work/payload/then"
fi
printf 'set -e\ntar -C / --keep-directory-symlink -xf engines.tar\nexec bash /payload/then\n' >"$work/payload/guest"
test/vm/run.sh --payload "$work/payload" --timeout "${AGENTRUN_VM_TIMEOUT:-3000}" -- bash /payload/guest
