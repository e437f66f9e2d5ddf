# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scripts that try other programs in the VM: brings Debian's packages along. They are unpacked into the machine's disk, which is thrown away, and not
# installed: what they would start at boot isn't there.

# carry SET PACKAGE…: makes $work, which goes with the script, and $work/payload with the programs, the packages that scripts/install-deps.sh names for SET,
# and those given.
carry() {
	local set=$1 image packages deb name
	shift
	image=$(test/vm/build.sh)
	work=$(mktemp -d "${TMPDIR:-/var/tmp}/agentrun-carry.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/debs/partial" "$work/tree" "$work/payload/bin"
	debugfs -R "dump /var/lib/dpkg/status $work/status" "$image/rootfs.ext4" 2>/dev/null
	mapfile -t packages < <(sed -n "s/^$set) packages+=(\(.*\)) ;;.*/\1/p" scripts/install-deps.sh | tr ' ' '\n')
	((${#packages[@]} > 3)) || { echo "scripts/install-deps.sh names no packages for $set" >&2; return 1; }
	# What the machine lacks of them, and nothing that is merely recommended.
	apt-get -qq -o "Dir::State::status=$work/status" -o "Dir::Cache::archives=$work/debs" -o APT::Sandbox::User=root \
		install --download-only --yes --no-install-recommends "${packages[@]}" "$@" >&2
	for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/tree"; done
	rm -rf "$work/tree"/usr/share/{doc,man,locale} # the alternatives are made by an installation
	for name in iptables ip6tables; do ln -s "$name-legacy" "$work/tree/usr/sbin/$name"; done
	tar -C "$work/tree" -cf "$work/payload/packages.tar" .
	rm -r "$work/tree" "$work/debs"
	cp bin/agentrun* "$work/payload/bin/"
	printf 'set -e\ntar -C / --keep-directory-symlink -xf packages.tar\nrm packages.tar\nexec bash /payload/then\n' >"$work/payload/guest"
}

# tries SECONDS: runs $work/payload/then in the machine.
tries() { test/vm/run.sh --payload "$work/payload" --timeout "${AGENTRUN_VM_TIMEOUT:-$1}" -- bash /payload/guest; }
